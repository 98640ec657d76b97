#!/usr/bin/env python3
"""The instructions of a request in Weir's own code, counted by valgrind's callgrind, which counts alike on every machine.

    python3 integration/bench/instructions.py [--protocol http1|http2|grpc] [--streams N] [--weir BINARY]
        [--baseline BINARY] [--keep DIRECTORY]

Weir is a proxy of an nginx with one limit per client address, as in proxies.py: far above the load (`passing`), or one
request a second (`denied`). With `--protocol grpc` it is asked by calls, as in grpc.py: `rls` and `authz`. 16 connections
ask at once, over HTTP/2 on some streams each, twice: the difference between 8,800 and 800 requests is that of 8,000,
without the start. The kernel's share is not in it, and a cache miss counts as much as a hit: what a change costs in time
is for proxies.py and grpc.py to say.

With --keep, callgrind's files stay there, for `callgrind_annotate`. Needs Debian's valgrind.
"""

import argparse
import pathlib
import re
import socket
import subprocess
import tempfile

from contenders import WEIR_LIMITS, Front, upstream, weir_command
from grpc import MESSAGES, METHODS, RULES
from grpc_load import DATA, END_HEADERS, END_STREAM, HEADERS, LARGEST_WINDOW, PREFACE, SETTINGS, frame
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
    parser.add_argument("--protocol", choices=("http1", "http2", "grpc"), default="http1")
    parser.add_argument("--streams", type=int, default=1, help="of each HTTP/2 connection at once (default: 1)")
    parser.add_argument("--keep", type=pathlib.Path, help="where to leave callgrind's files")
    options = parser.parse_args()
    binaries = {"weir": weir_program(options.weir)}
    if options.baseline:
        binaries["baseline"] = weir_program(options.baseline)
    for scenario in MESSAGES if options.protocol == "grpc" else WEIR_LIMITS:
        counts = {name: of_request(name, binary, scenario, options) for name, binary in binaries.items()}
        line = ", ".join(f"{name} {count:,.0f}" for name, count in counts.items())
        ratio = f", weir / baseline {counts['weir'] / counts['baseline']:.3f}" if options.baseline else ""
        print(f"instructions per request, {scenario}: {line}{ratio}", flush=True)


def of_request(name, binary, scenario, options):
    few, many = (of_run(name, binary, scenario, requests, options) for requests in (FEW, MANY))
    return (many - few) / (MANY - FEW)


def of_run(name, binary, scenario, requests, options):
    with tempfile.TemporaryDirectory(prefix="weir-instructions-") as directory, Stage(directory) as stage:
        [port, grpc_port, admin] = free_ports(3)
        behind = upstream(stage).port
        out = (options.keep or stage.directory) / f"{name}.{options.protocol}.{scenario}.{requests}.callgrind"
        command = [program("valgrind"), "--tool=callgrind", f"--callgrind-out-file={out}"]
        limits = stage.write("limits.yaml", RULES if options.protocol == "grpc" else WEIR_LIMITS[scenario])
        command += weir_command(binary, behind, (port, admin), Front(), limits, "--store", "memory")
        command += ["--grpc", f"127.0.0.1:{grpc_port}"]
        process, _ = stage.start(name, command, grpc_port if options.protocol == "grpc" else port)
        statuses = ask(connections(scenario, options, process.port), requests)
        wanted = "denied" if scenario == "denied" else "passed"
        if statuses.get(wanted, 0) < requests * 0.99:
            raise Failure(f"{name}, {scenario}: answers {statuses}")
        process.stop()
        counted = out.exists() and re.search(r"^summary: (\d+)", out.read_text(errors="replace"), re.MULTILINE)
        if not counted:
            raise Failure(f"{name}: callgrind counted nothing:\n{process.last_words()}")
        return int(counted[1])


def connections(scenario, options, port):
    if options.protocol == "grpc":
        fields = [(":method", "POST"), (":scheme", "http"), (":path", METHODS[scenario]), (":authority", "weir")]
        fields += [("te", "trailers"), ("content-type", "application/grpc"), ("user-agent", "grpc-c++/1.60")]
        fields += [("x-envoy-internal", "true"), ("x-forwarded-for", "192.0.2.1")]
        message = MESSAGES[scenario]("10.1.2.3")
        body = b"\0" + len(message).to_bytes(4, "big") + message
        return [Http2(port, fields, body, options.streams) for _ in range(CONNECTIONS)]
    if options.protocol == "http2":
        fields = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "localhost")]
        fields += [("user-agent", "bench"), ("accept", "*/*")]
        return [Http2(port, fields, b"", options.streams) for _ in range(CONNECTIONS)]
    return [Http1(port) for _ in range(CONNECTIONS)]


def ask(connected, requests):
    """How many requests passed and were denied. Each connection asks again when all have their answers."""
    statuses, asked = {}, 0
    while asked < requests:
        for connection in connected:
            asked += connection.ask()
        for connection in connected:
            for status in connection.answers():
                statuses[status] = statuses.get(status, 0) + 1
    return statuses


class Http1:
    """A connection with one request at a time."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)

    def ask(self):
        self.socket.sendall(REQUEST)
        return 1

    def answers(self):
        return [{b"200": "passed", b"429": "denied"}.get(answer(self.socket), "other")]


class Http2:
    """A connection with some requests at a time, whose fields are in the compression table after the first."""

    def __init__(self, port, fields, body, streams):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        window = (4).to_bytes(2, "big") + LARGEST_WINDOW.to_bytes(4, "big")
        more = (LARGEST_WINDOW - 65_535).to_bytes(4, "big")
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0, window) + frame(0x8, 0, 0, more))
        self.body, self.streams, self.stream, self.buffer = body, streams, 1, b""
        # Literals with incremental indexing, and then their indices (RFC 7541, 6.2.1 and 6.1). The newest entry has the lowest.
        text = lambda value: bytes([len(value)]) + value.encode()
        self.block = b"".join(b"\x40" + text(name) + text(value) for name, value in fields)
        self.indexed = bytes(0x80 | 62 + age for age in reversed(range(len(fields))))

    def ask(self):
        sent = []
        for _ in range(self.streams):
            end = 0 if self.body else END_STREAM
            sent.append(frame(HEADERS, END_HEADERS | end, self.stream, self.block))
            if self.body:
                sent.append(frame(DATA, END_STREAM, self.stream, self.body))
            self.stream, self.block = self.stream + 2, self.indexed
        self.socket.sendall(b"".join(sent))
        return self.streams

    def answers(self):
        """A call that fails has no message; any other status than 200 is a literal or from the table."""
        passed, ended, has_data = {}, [], set()
        while len(ended) < self.streams:
            for kind, flags, stream, payload in self.frames():
                if kind == HEADERS:
                    passed.setdefault(stream, payload[:1] == b"\x88")
                elif kind == DATA:
                    has_data.add(stream)
                elif kind not in (SETTINGS, 0x8):
                    raise Failure(f"a frame of type {kind}: {payload!r}")
                if kind in (DATA, HEADERS) and flags & END_STREAM:
                    ended.append("passed" if passed[stream] and stream in has_data else "denied")
        return ended

    def frames(self):
        part = self.socket.recv(65536)
        if not part:
            raise Failure(f"the connection ended after {self.buffer!r}")
        self.buffer += part
        while len(self.buffer) >= 9:
            end = 9 + int.from_bytes(self.buffer[:3], "big")
            if len(self.buffer) < end:
                return
            yield self.buffer[3], self.buffer[4], int.from_bytes(self.buffer[5:9], "big"), self.buffer[9:end]
            self.buffer = self.buffer[end:]


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
