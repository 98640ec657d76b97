#!/usr/bin/env python3
"""The instructions of a request in Weir's own code, counted by valgrind's callgrind, which counts alike on every machine.

    python3 integration/bench/instructions.py [--weir BINARY] [--baseline BINARY] [--keep DIRECTORY]

Weir is a proxy of an nginx with one limit per client address, as in proxies.py: far above the load (`passing`), or one
request a second (`denied`). 16 connections ask at once, twice: the difference between 8,800 and 800 requests is that of
8,000, without the start. The kernel's share is not in it, and a cache miss counts as much as a hit: what a change costs
in time is for proxies.py to say.

With --keep, callgrind's files stay there, for `callgrind_annotate`. Needs Debian's valgrind.
"""

import argparse
import pathlib
import re
import socket
import subprocess
import tempfile

from contenders import WEIR_LIMITS, Front, upstream, weir_command
from processes import Failure, free_ports
from stage import Stage, program, weir_program

CONNECTIONS = 16
FEW, MANY = 800, 8_800
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
TIMEOUT = 30


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", help="the binary (default: built with cargo build --profile dist)")
    parser.add_argument("--baseline", help="another weir binary")
    parser.add_argument("--keep", type=pathlib.Path, help="where to leave callgrind's files")
    options = parser.parse_args()
    binaries = {"weir": weir_program(options.weir)}
    if options.baseline:
        binaries["baseline"] = weir_program(options.baseline)
    for scenario in WEIR_LIMITS:
        counts = {name: of_request(name, binary, scenario, options.keep) for name, binary in binaries.items()}
        line = ", ".join(f"{name} {count:,.0f}" for name, count in counts.items())
        ratio = f", weir / baseline {counts['weir'] / counts['baseline']:.3f}" if options.baseline else ""
        print(f"instructions per request, {scenario}: {line}{ratio}", flush=True)


def of_request(name, binary, scenario, keep):
    few, many = (of_run(name, binary, scenario, requests, keep) for requests in (FEW, MANY))
    return (many - few) / (MANY - FEW)


def of_run(name, binary, scenario, requests, keep):
    with tempfile.TemporaryDirectory(prefix="weir-instructions-") as directory, Stage(directory) as stage:
        [port, admin] = free_ports(2)
        behind = upstream(stage).port
        out = (keep or stage.directory) / f"{name}.{scenario}.{requests}.callgrind"
        command = [program("valgrind"), "--tool=callgrind", f"--callgrind-out-file={out}"]
        limits = stage.write("limits.yaml", WEIR_LIMITS[scenario])
        command += weir_command(binary, behind, (port, admin), Front(), limits, "--store", "memory")
        process, _ = stage.start(name, command, port)
        statuses = ask(port, requests)
        wanted = b"200" if scenario == "passing" else b"429"
        if statuses.get(wanted, 0) < requests * 0.99:
            raise Failure(f"{name}, {scenario}: answers {statuses}")
        process.stop()
        counted = re.search(r"Collected : (\d+)", process.log.read_text(errors="replace"))
        if counted is None:
            raise Failure(f"{name}: callgrind counted nothing:\n{process.last_words()}")
        return int(counted[1])


def ask(port, requests):
    """How many answers had each status. Each connection sends its next request when all have their answers."""
    connections = [socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) for _ in range(CONNECTIONS)]
    statuses = {}
    for _ in range(requests // CONNECTIONS):
        for connection in connections:
            connection.sendall(REQUEST)
        for connection in connections:
            status = answer(connection)
            statuses[status] = statuses.get(status, 0) + 1
    return statuses


def answer(connection):
    """Reads an answer with Content-Length and returns its status."""
    read = b""
    while True:
        head, end, body = read.partition(b"\r\n\r\n")
        if end:
            length = int(re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)[1])
            if len(body) >= length:
                return head[9:12]
        part = connection.recv(65536)
        if not part:
            raise Failure(f"the connection ended after {read!r}")
        read += part


if __name__ == "__main__":
    try:
        main()
    except (Failure, subprocess.SubprocessError) as failure:
        raise SystemExit(f"instructions.py: {failure}") from failure
