#!/usr/bin/env python3
"""Calls one method of gRPC at 127.0.0.1:PORT for some seconds, on some connections with some streams each at once.

Each message comes from a file of messages, one after the other: each is two bytes of length and the message. Prints a line
of JSON: {"calls": N, "seconds": S, "p50_us": .., "p99_us": ..}. It looks at no answer, only for where it ends; who starts
it can see in the metrics of the server what became of the calls.

h2load would do, but it has one body for all calls, and a limiter that always sees the same id is asked an easy question.
"""

import argparse
import collections
import json
import selectors
import socket
import struct
import sys
import time

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7
END_STREAM, ACK, END_HEADERS = 0x1, 0x1, 0x4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LARGEST_WINDOW = (1 << 31) - 1
# For each call, of which there are 50,000 a second, a time would be more to sort than to measure.
TIMED_EVERY = 16


def literal(name, value):
    """A field that nobody remembers (RFC 7541, 6.2.2)."""
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


class Calls:
    """The calls of all connections."""

    def __init__(self, messages, method):
        self.messages, self.next = messages, 0
        fields = [(":method", "POST"), (":scheme", "http"), (":authority", "localhost"), (":path", method)]
        fields += [("content-type", "application/grpc"), ("te", "trailers"), ("user-agent", "grpc-c++/1.60")]
        self.block = b"".join(literal(*field) for field in fields)
        self.head = frame(HEADERS, END_HEADERS, 0, self.block)[:5]
        self.done, self.times = 0, []

    def call(self, stream):
        """The frames of one more call."""
        message = self.messages[self.next]
        self.next = (self.next + 1) % len(self.messages)
        number = struct.pack(">I", stream)
        data = struct.pack(">IB", len(message) + 5 << 8 | DATA, END_STREAM) + number + struct.pack(">BI", 0, len(message))
        return b"".join((self.head, number, self.block, data, message))


class Connection:
    def __init__(self, port, calls, streams):
        self.calls, self.stream, self.buffer = calls, 1, b""
        self.started = collections.deque()
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        window = struct.pack(">HI", 4, LARGEST_WINDOW)
        opening = PREFACE + frame(SETTINGS, 0, 0, window)
        opening += frame(0x8, 0, 0, struct.pack(">I", LARGEST_WINDOW - 65_535))
        self.socket.sendall(opening + b"".join(self.begin() for _ in range(streams)))

    def begin(self):
        stream, self.stream = self.stream, self.stream + 2
        if stream // 2 % TIMED_EVERY == 0:
            self.started.append((stream, time.monotonic()))
        return self.calls.call(stream)

    def read(self):
        """Takes what has come, and puts a call into the place of each that has ended."""
        data = self.buffer + self.socket.recv(1 << 16)
        place, end, more = 0, len(data), []
        while end - place >= 9:
            head, flags, stream = struct.unpack_from(">IBI", data, place)
            after = place + 9 + (head >> 8)
            if after > end:
                break
            kind = head & 0xFF
            if kind <= HEADERS:
                if flags & END_STREAM:
                    self.end(stream)
                    more.append(self.begin())
            elif kind == SETTINGS and not flags & ACK:
                more.append(frame(SETTINGS, ACK, 0, b""))
            elif kind == PING and not flags & ACK:
                more.append(frame(PING, ACK, 0, data[place + 9 : after]))
            elif kind in (RST_STREAM, GOAWAY):
                sys.exit(f"grpc_load.py: the server ended stream {stream} with {data[place:after].hex()}")
            place = after
        if not data:
            sys.exit("grpc_load.py: the server closed a connection")
        self.buffer = data[place:]
        if more:
            self.socket.sendall(b"".join(more))

    def end(self, stream):
        self.calls.done += 1
        if stream // 2 % TIMED_EVERY == 0:
            # Answers come in the order of the calls, as good as always.
            for index, (started, since) in enumerate(self.started):
                if started == stream:
                    self.calls.times.append(time.monotonic() - since)
                    del self.started[index]
                    break


def read_messages(path):
    with open(path, "rb") as file:
        data = file.read()
    messages, place = [], 0
    while place < len(data):
        (length,) = struct.unpack_from(">H", data, place)
        messages.append(data[place + 2 : place + 2 + length])
        place += 2 + length
    return messages


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("method")
    parser.add_argument("messages")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--streams", type=int, default=16)
    options = parser.parse_args()
    calls = Calls(read_messages(options.messages), options.method)
    selector = selectors.DefaultSelector()
    start = time.monotonic()
    for _ in range(options.connections):
        connection = Connection(options.port, calls, options.streams)
        selector.register(connection.socket, selectors.EVENT_READ, connection)
    end = start + options.seconds
    while time.monotonic() < end:
        for key, _ in selector.select(0.25):
            key.data.read()
    seconds = time.monotonic() - start
    times = sorted(calls.times) or [0.0]
    at = lambda share: round(times[int((len(times) - 1) * share)] * 1e6)
    print(json.dumps({"calls": calls.done, "seconds": seconds, "p50_us": at(0.5), "p99_us": at(0.99)}))


if __name__ == "__main__":
    main()
