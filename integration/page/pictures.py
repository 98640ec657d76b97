#!/usr/bin/env python3
"""Draws docs/images: the live page of a Weir with sample limits and two minutes of made-up traffic.

    target/test-venv/bin/python integration/page/pictures.py [--weir PATH] [--seconds N]

Without --weir a release is built first. Chromium comes with `integration/install.sh`.
"""

import argparse
import http.client
import math
import pathlib
import random
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "bench"))

from browser import Browser
from processes import free_ports
from stage import ROOT, Stage, weir_program

PICTURES = ROOT / "docs/images"

LIMITS = """\
limits:
  RequestsPerIPAddress: { by: ip, burst: 60, count: 60, period: 1s }
  SearchesPerAccount:
    match: { path: /search }
    by: { header: x-account-id }
    burst: 20
    count: 4
    period: 1s
    candidate: { burst: 10, count: 3, period: 1s }
  OrdersPerAccount: { match: { methods: [POST], path: /v1/orders }, by: { header: x-account-id }, burst: 8, count: 8, period: 10s }
  LoginsPerIPAddress: { match: { path: /login }, by: ip, burst: 30, count: 5, period: 1s, mode: shadow }
  CertificatesPerDomain:
    match: { path: "/v1/certificates/{domain}" }
    by: { path: domain, as: registered-domain }
    burst: 20
    count: 1
    period: 1s
    enforce_for: 50%
"""

DOMAINS = ["example.com", "example.net", "example.org", "example.edu"]


def request(second, draw):
    """The next request at this second."""
    kind = draw.random()
    account = draw.choices(["acme", "globex", "initech", "umbrella"], [1 + 8 * (30 < second % 60), 3, 2, 1])[0]
    headers = {"x-account-id": account}
    if kind < 0.5:
        return "GET", "/", headers
    if kind < 0.75:
        return "GET", "/search", headers
    if kind < 0.85:
        return "POST", "/v1/orders", headers
    if kind < 0.95:
        return "POST", "/login", headers
    return "GET", f"/v1/certificates/{draw.choice(DOMAINS)}", headers


def load(proxy, stopping):
    """About 45 requests per second, in waves."""
    draw, begin = random.Random(1), time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", proxy, timeout=20)
    while not stopping.is_set():
        second = time.monotonic() - begin
        method, path, headers = request(second, draw)
        connection.request(method, path, headers=headers)
        connection.getresponse().read()
        rate = 45 + 20 * math.sin(second / 7) + 10 * math.sin(second / 2.3)
        time.sleep(draw.expovariate(rate))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", help="a binary; otherwise a release is built")
    parser.add_argument("--seconds", type=int, default=116)
    options = parser.parse_args()
    weir = weir_program(options.weir)
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="weir-pictures-") as directory, Stage(directory) as stage:
        proxy, admin = free_ports(2)
        command = [weir, "serve", "--upstream", "echo", "--limits", stage.write("limits.yaml", LIMITS)]
        command += ["--proxy", f"127.0.0.1:{proxy}", "--admin", f"127.0.0.1:{admin}", "--workers", "2"]
        command += ["--log-ids", "clear", "--log-denials", "off"]
        stage.start("weir", command, admin)
        stopping = threading.Event()
        loading = threading.Thread(target=load, args=(proxy, stopping))
        loading.start()
        try:
            with Browser() as browser, browser.open(f"http://127.0.0.1:{admin}/") as page:
                time.sleep(options.seconds)
                for name, width, height, dark in [
                    ("page-light", 1200, 800, False),
                    ("page-dark", 1200, 800, True),
                    ("page-narrow", 360, 740, False),
                ]:
                    page.look(width, height, dark)
                    # The next reading draws at this size.
                    time.sleep(2)
                    page.picture(PICTURES / f"{name}.png")
        finally:
            stopping.set()
            loading.join()


if __name__ == "__main__":
    main()
