#!/usr/bin/env python3
"""The memory of idle connections, of Weir and of nginx: KiB (PSS) for each, and what is left when they have closed.

    python3 integration/bench/idle_connections.py [--weir BINARY] [--baseline BINARY] [--connections 5000] [--rounds 3]

A round opens the connections, sends a request on each and reads the answer, counts, closes them all, and counts again.
`first` compares the first crowd with a process that has served one request; `then` compares each later crowd with what the
one before has left, so it is 0 for a process that gives nothing back. What the kernel holds for a connection is in neither.
"""

import argparse
import os
import socket
import ssl
import tempfile
import time

import contenders
from processes import Failure
from stage import Certificate, Stage, allow_open_files, carry_out, weir_program

# No proxy that bounds the connections of an address would hold all of them from one.
ADDRESSES = 250
TIMEOUT = 10
# Connections are closed, and what was freed is returned, within this time.
SETTLE_SECONDS = 3
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: idle\r\nAccept: */*\r\n\r\n"
# A preface with settings of the client, and a GET of `/` without references to the table (RFC 7541 section 6.2.2).
FIELDS = b"\x82\x86\x84\x01\x09localhost"
REQUEST_HTTP2 = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0" + len(FIELDS).to_bytes(3, "big") + b"\x01\x05\0\0\0\x01" + FIELDS
)
SETTINGS, END_STREAM, ACK = 4, 1, 1

FRONTS = {
    "http1": lambda directory: contenders.Front(),
    "tls": lambda directory: contenders.Front(certificate=Certificate(directory)),
    "http2": lambda directory: contenders.Front(http2=True),
    "http2+tls": lambda directory: contenders.Front(certificate=Certificate(directory), http2=True),
}


def connect(port, number, front):
    connection = socket.socket()
    connection.settimeout(TIMEOUT)
    connection.bind((f"127.1.0.{1 + number % ADDRESSES}", 0))
    connection.connect(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if front.certificate is None:
        return connection
    context = ssl.create_default_context(cafile=front.certificate.certificate)
    context.set_alpn_protocols(["h2" if front.http2 else "http/1.1"])
    return context.wrap_socket(connection, server_hostname="localhost")


def receive(connection, count):
    read = b""
    while len(read) < count:
        part = connection.recv(count - len(read))
        if not part:
            raise Failure(f"the connection ended after {read!r}")
        read += part
    return read


def answer_http1(connection):
    read = b""
    while not read.endswith(contenders.BODY):
        part = connection.recv(4096)
        if not part:
            raise Failure(f"the connection ended after {read!r}")
        read += part


def answer_http2(connection):
    ended = settled = False
    while not (ended and settled):
        head = receive(connection, 9)
        payload = receive(connection, int.from_bytes(head[:3], "big"))
        kind, flags = head[3], head[4]
        if kind == SETTINGS and not flags & ACK:
            connection.sendall(b"\0\0\0\x04\x01\0\0\0\0")
            settled = True
        ended = ended or (kind in (0, 1) and flags & END_STREAM and head[5:] == b"\0\0\0\x01")
        if kind == 7:
            raise Failure(f"the connection was given up: {payload!r}")


def ask(connections, front):
    """Sends a request on each connection, and then reads all the answers."""
    for connection in connections:
        connection.sendall(REQUEST_HTTP2 if front.http2 else REQUEST)
    for connection in connections:
        (answer_http2 if front.http2 else answer_http1)(connection)


def crowd(contender, front, options):
    """Opens connections with a request each, and returns the memory while they are idle, and when they have closed."""
    connections = []
    try:
        for start in range(0, options.connections, options.at_once):
            numbers = range(start, min(start + options.at_once, options.connections))
            connections += [connect(contender.port, number, front) for number in numbers]
            ask(connections[start:], front)
        time.sleep(3)
        held = contender.pss_mib()
    finally:
        for connection in connections:
            connection.close()
    time.sleep(SETTLE_SECONDS)
    return held, contender.pss_mib()


def run(options):
    allow_open_files(2 * options.connections + 1000)
    binaries = {"weir": weir_program(options.weir)}
    if options.baseline:
        binaries["baseline"] = options.baseline
    done = []
    for name in options.over or FRONTS:
        with tempfile.TemporaryDirectory(prefix="weir-idle-") as directory, Stage(directory) as stage:
            # nginx' workers are of another user when it is started by root.
            stage.directory.chmod(0o755)
            front = FRONTS[name](stage.directory)
            origin = contenders.upstream(stage)
            starts = [contenders.weir(binary, called) for called, binary in binaries.items()] + [contenders.nginx]
            for contender in [start(stage, "passing", origin.port, front) for start in starts]:
                with connect(contender.port, 0, front) as first:
                    ask([first], front)
                start = contender.pss_mib()
                rounds = [crowd(contender, front, options) for _ in range(options.rounds + 1)]
                ends = [after for _, after in rounds]
                each = [(held - before) * 1024 / options.connections for (held, _), before in zip(rounds[1:], ends)]
                first_each = (rounds[0][0] - start) * 1024 / options.connections
                print(
                    f"{name:10}{contender.name:9} KiB each: first {first_each:5.2f}, then "
                    + " ".join(f"{one:5.2f}" for one in each)
                    + f"   MiB: start {start:6.1f}, held {rounds[-1][0]:6.1f}, closed {ends[0]:6.1f} to {ends[-1]:6.1f}",
                    flush=True,
                )
                done.append({"over": name, "contender": contender.name, "start": start, "rounds": rounds})
    return {"options": vars(options), "cores": os.cpu_count(), "crowds": done}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--over", action="append", choices=FRONTS, help="may be repeated (default: all)")
    parser.add_argument("--connections", type=int, default=5000, help="(default: %(default)s)")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="requests under way (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="after the first (default: %(default)s)")
    parser.add_argument("--weir", metavar="PATH", help="a weir binary (default: built with cargo build --profile dist)")
    parser.add_argument("--baseline", metavar="PATH", help="another weir binary")
    parser.add_argument("--json", metavar="FILE", help="also write every figure of every round there")
    options = parser.parse_args()
    carry_out(run, options)


if __name__ == "__main__":
    main()
