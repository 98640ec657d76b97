#!/usr/bin/env python3
"""The CPU that an open live page costs a process: /live each second, and what has ids every five, on one connection, as the page does.

    python3 integration/bench/live_page.py [--weir PATH] [--limits N] [--seconds N]

All limits have counted every second result. The idle process is measured first, for as long.
"""

import argparse
import http.client
import pathlib
import tempfile
import time

from processes import Failure, free_ports
from stage import Stage, weir_program

IDS = ["/top?n=7", "/overrides?source=live&n=100", "/blocks"]

# Of one worker's time.
TARGET = 0.01


def nanoseconds(pid):
    """CPU time of all threads."""
    threads = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", help="a binary; otherwise a release is built")
    parser.add_argument("--limits", type=int, default=100)
    parser.add_argument("--seconds", type=int, default=20)
    options = parser.parse_args()
    weir = weir_program(options.weir)
    with tempfile.TemporaryDirectory(prefix="weir-live-page-") as directory, Stage(directory) as stage:
        names = [f"RequestsPerAccount{number}" for number in range(options.limits)]
        rules = stage.write("limits.yaml", "limits:\n" + "".join(
            f"  {name}: {{ by: {{ header: x-{name} }}, burst: 1, count: 1, period: 1h }}\n" for name in names
        ))  # fmt: skip
        proxy, admin = free_ports(2)
        command = [weir, "serve", "--upstream", "echo", "--limits", rules, "--workers", "1"]
        command += ["--proxy", f"127.0.0.1:{proxy}", "--admin", f"127.0.0.1:{admin}"]
        process, _ = stage.start("weir", command, admin)
        pid = process.child.pid
        client = http.client.HTTPConnection("127.0.0.1", proxy)
        for name in names * 2:
            client.request("GET", "/", headers={f"x-{name}": "a"})
            client.getresponse().read()
        client.close()
        page = http.client.HTTPConnection("127.0.0.1", admin)
        read(page)
        idle = measure(pid, options.seconds, lambda _: None)
        size = len(read(page))
        busy = measure(pid, options.seconds, lambda second: [read(page, path) for path in ["/live", *([] if second % 5 else IDS)]])
        share = (busy - idle) / 1e9 / options.seconds
        verdict = "within" if share <= TARGET else "OVER"
        print(f"{options.limits} limits, {size} bytes: {(busy - idle) / 1e3 / options.seconds:.0f} us of CPU per second, "
              f"{share:.3%} of a worker, {verdict} {TARGET:.0%} (idle: {idle / 1e3 / options.seconds:.0f} us per second)")


def measure(pid, seconds, act):
    """Returns the CPU time of some seconds, in each of which `act` is called once."""
    begin, before = time.monotonic(), nanoseconds(pid)
    for second in range(seconds):
        act(second)
        time.sleep(max(0, begin + second + 1 - time.monotonic()))
    return nanoseconds(pid) - before


def read(page, path="/live"):
    page.request("GET", path)
    reply = page.getresponse()
    body = reply.read()
    if reply.status != 200:
        raise Failure(f"{path} answered with {reply.status}: {body!r}")
    return body


if __name__ == "__main__":
    main()
