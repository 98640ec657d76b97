#!/usr/bin/env python3
"""A million overrides: the time until Weir serves them, from a file and by URL, and until new ones are in force.

    python3 integration/bench/overrides.py [--weir BINARY]... [--overrides 1000000] [--runs 3] [--style flow|block|json]

Several binaries are measured in turns. Prints the median of each, and its ratio to that of the first: the seconds from the start of the process,
from SIGHUP and from the fetch of a changed URL until the last override decides, the longest of the decisions that are asked for one after the
other meanwhile, and the most memory of the process.
"""

import argparse
import http.client
import http.server
import json
import pathlib
import statistics
import subprocess
import tempfile
import threading
import time

from processes import Failure, Process, free_ports
from stage import carry_out, weir_program

LIMITS = "limits:\n  PerAccount: { by: { header: x-account }, count: 20, period: 1s }\n"
DEADLINE = 240
ORIGINAL = {f"x-original-{part}": value for part, value in [("uri", "/"), ("method", "GET"), ("host", "a.example")]}


def overrides(count, base, style):
    """Override `number` has a burst of its own, and all have others with another `base`."""
    numbers = ((number, base + number % 7) for number in range(count))
    if style == "json":
        return json.dumps({f"PerAccount:{number}": {"count": burst, "period": "1s"} for number, burst in numbers})
    entry = "PerAccount:%d: { count: %d, period: 1s }\n" if style == "flow" else "PerAccount:%d:\n  count: %d\n  period: 1s\n"
    return "".join(entry % both for both in numbers)


class Source:
    """Serves a text, and remembers when the last one was asked for first."""

    def __init__(self):
        self.text, self.asked = b"", None
        source = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                source.asked = source.asked or time.monotonic()
                text = source.text
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/overrides.yaml"

    def put(self, text):
        self.text, self.asked = text.encode(), None


class Gateway:
    def __init__(self, binary, folder, source):
        check, self.admin = free_ports(2)
        command = [binary, "serve", "--limits", folder / "limits.yaml", "--overrides", source, "--store", "memory", "--workers", "1", "--headers", "x-ratelimit"]
        command += ["--check", f"127.0.0.1:{check}", "--admin", f"127.0.0.1:{self.admin}", "--overrides-interval", "1s", "--overrides-cache", folder]
        self.process = Process("weir", command, check, folder / "log")
        self.process.wait_until_listening()
        self.connection = http.client.HTTPConnection("127.0.0.1", check, timeout=60)
        self.slowest = 0.0

    def burst(self, account):
        """Asks for a decision, and returns the burst of the account."""
        start = time.monotonic()
        self.connection.request("GET", "/nginx", headers={"x-account": str(account), **ORIGINAL})
        answer = self.connection.getresponse()
        answer.read()
        self.slowest = max(self.slowest, time.monotonic() - start)
        return int(answer.headers["X-RateLimit-Limit"].split(",")[0])

    def until(self, account, burst, start):
        while time.monotonic() - start < DEADLINE:
            if self.burst(account) == burst:
                return time.monotonic() - start
            time.sleep(0.005)
        raise Failure(f"account {account} never had a burst of {burst}")

    def peak_mib(self):
        status = pathlib.Path(f"/proc/{self.process.child.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


def measure(binary, texts, last, source):
    """`last` is the account whose override stands at the end."""
    result = {}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "limits.yaml").write_text(LIMITS)
        (folder / "overrides.yaml").write_text(texts[0])
        gateway = Gateway(binary, folder, folder / "overrides.yaml")
        result["start from a file, s"] = gateway.until(last, 100 + last % 7, gateway.process.started)
        gateway.slowest = 0.0
        start = time.monotonic()
        (folder / "new").write_text(texts[1])
        (folder / "new").rename(folder / "overrides.yaml")
        subprocess.run(["kill", "-HUP", str(gateway.process.child.pid)], check=True)
        result["reload of a file, s"] = gateway.until(last, 200 + last % 7, start)
        result["slowest decision meanwhile, ms"] = gateway.slowest * 1000
        result["most memory, MiB"] = gateway.peak_mib()
        gateway.process.stop()
        source.put(texts[0])
        gateway = Gateway(binary, folder, source.url)
        result["start by URL, s"] = gateway.until(last, 100 + last % 7, gateway.process.started)
        source.put(texts[1])
        while not source.asked:
            gateway.burst(last)
        gateway.slowest = 0.0
        result["reload by URL, s"] = gateway.until(last, 200 + last % 7, source.asked)
        result["slowest decision meanwhile by URL, ms"] = gateway.slowest * 1000
        result["most memory by URL, MiB"] = gateway.peak_mib()
        gateway.process.stop()
    return result


def parser():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--weir", action="append", help="defaults to target/dist/weir")
    arguments.add_argument("--overrides", type=int, default=1_000_000)
    arguments.add_argument("--runs", type=int, default=3)
    arguments.add_argument("--style", choices=["flow", "block", "json"], default="flow")
    arguments.add_argument("--json", metavar="FILE", help="also write the medians there")
    return arguments


def run(given):
    texts = [overrides(given.overrides, base, given.style) for base in (100, 200)]
    binaries = [weir_program(binary) for binary in given.weir or [None]]
    source, runs = Source(), [[] for _ in binaries]
    for _ in range(given.runs):
        for binary, measured in zip(binaries, runs):
            measured.append(measure(binary, texts, given.overrides - 1, source))
    rows = []
    for figure in runs[0][0]:
        medians = [statistics.median(run[figure] for run in measured) for measured in runs]
        ratios = "".join(f"  {median / medians[0]:.2f}" for median in medians[1:])
        print(f"{figure:40}" + "".join(f"{median:9.2f}" for median in medians) + ratios)
        rows.append({"figure": figure, "medians": medians})
    return rows


if __name__ == "__main__":
    carry_out(run, parser().parse_args())
