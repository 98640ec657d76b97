#!/usr/bin/env python3
"""Calls grpc_server.py through whatever is at ADDRESS, in all four shapes, and checks messages, metadata and statuses.

With --ca FILE over TLS. Prints {"passed": [..], "failed": {..}} and ends with 1 if anything failed. With --once it only
makes one unary call and prints its outcome: {"code": .., "details": .., "trailing": {..}}.
"""

import argparse
import json
import pathlib
import queue

import grpc

import checking
from checking import equal

TIMEOUT = 120
METADATA = (("x-id", "seven"), ("x-raw-bin", bytes(range(256))))


def path(method):
    return f"/weir.test.Shapes/{method}"


def metadata(given):
    return {key: value for key, value in given if key.startswith("x-")}


def check_metadata(call):
    equal(metadata(call.initial_metadata()), {"x-id-first": "seven", "x-raw-first-bin": bytes(range(256))})
    equal(metadata(call.trailing_metadata()), {"x-id-last": "seven", "x-raw-last-bin": bytes(range(256))})
    equal(call.code(), grpc.StatusCode.OK)


def unary(channel):
    reply, call = channel.unary_unary(path("Unary")).with_call(b"abc", timeout=TIMEOUT, metadata=METADATA)
    equal(reply, b"cba")
    check_metadata(call)


def empty_message(channel):
    equal(channel.unary_unary(path("Unary"))(b"", timeout=TIMEOUT), b"")


def large_message(channel):
    """More than the windows of a stream and of a connection hold."""
    message = bytes(range(251)) * (3 << 12)
    equal(channel.unary_unary(path("Unary"))(message, timeout=TIMEOUT) == message[::-1], True)


def server_stream(channel):
    call = channel.unary_stream(path("ServerStream"))(b"500 1000", timeout=TIMEOUT, metadata=METADATA)
    equal([(reply[0], len(reply)) for reply in call], [(number % 256, 1000) for number in range(500)])
    check_metadata(call)


def server_stream_of_nothing(channel):
    """Headers and trailers without a message between them."""
    equal(list(channel.unary_stream(path("ServerStream"))(b"0 0", timeout=TIMEOUT)), [])


def client_stream(channel):
    requests = (b"x" * 1000 for _ in range(500))
    reply, call = channel.stream_unary(path("ClientStream")).with_call(requests, timeout=TIMEOUT, metadata=METADATA)
    equal(reply, b"500 500000")
    check_metadata(call)


def bidi(channel):
    """Each message is sent only when the one before it is answered: nothing on the way may wait for more."""
    requests = queue.SimpleQueue()
    call = channel.stream_stream(path("Bidi"))(iter(requests.get, None), timeout=TIMEOUT, metadata=METADATA)
    for number in range(50):
        requests.put(f"message {number}".encode())
        equal(next(call), f"message {number}".encode()[::-1])
    requests.put(None)
    equal(list(call), [])
    check_metadata(call)


def many_at_once(channel):
    calls = [channel.unary_unary(path("Unary")).future(str(n).encode(), timeout=TIMEOUT) for n in range(200)]
    equal([call.result() for call in calls], [str(n).encode()[::-1] for n in range(200)])


def status(channel):
    """A status other than OK, and its text, which is percent-encoded on the wire."""
    try:
        channel.unary_unary(path("Fail"))(b"", timeout=TIMEOUT)
    except grpc.RpcError as error:
        equal((error.code(), error.details()), (grpc.StatusCode.FAILED_PRECONDITION, "not now: 100 % späte Züge"))
    else:
        raise AssertionError("it did not fail")


def unknown_method(channel):
    """The server answers with trailers only."""
    try:
        channel.unary_unary(path("Nothing"))(b"", timeout=TIMEOUT)
    except grpc.RpcError as error:
        equal(error.code(), grpc.StatusCode.UNIMPLEMENTED)
    else:
        raise AssertionError("it did not fail")


def deadline(channel):
    try:
        channel.unary_unary(path("Hang"))(b"", timeout=0.3)
    except grpc.RpcError as error:
        equal(error.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
    else:
        raise AssertionError("it did not fail")
    equal(int(channel.unary_unary(path("Cancelled"))(b"", timeout=TIMEOUT)) >= 1, True)


def cancellation(channel):
    """The server hears of it, and the connection is as good as before."""
    call = channel.unary_unary(path("Hang")).future(b"", timeout=TIMEOUT)
    before = int(channel.unary_unary(path("Unary"))(b"0", timeout=TIMEOUT))
    equal(before, 0)
    call.cancel()
    equal(call.cancelled(), True)
    equal(int(channel.unary_unary(path("Cancelled"))(b"", timeout=TIMEOUT)) >= 2, True)
    equal(channel.unary_unary(path("Unary"))(b"abc", timeout=TIMEOUT), b"cba")


CHECKS = [
    unary, empty_message, large_message, server_stream, server_stream_of_nothing, client_stream, bidi, many_at_once,
    status, unknown_method, deadline, cancellation,
]  # fmt: skip


def once(channel):
    try:
        _, call = channel.unary_unary(path("Unary")).with_call(b"abc", timeout=TIMEOUT)
    except grpc.RpcError as error:
        call = error
    # Metadata of binary fields is bytes.
    trailing = {key: str(value) for key, value in call.trailing_metadata() or ()}
    print(json.dumps({"code": call.code().name, "details": call.details(), "trailing": trailing}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument(
        "--ca", type=pathlib.Path, help="the authority of the server's certificate, which is localhost's"
    )
    parser.add_argument("--once", action="store_true")
    options = parser.parse_args()
    limits = [("grpc.max_receive_message_length", 64 << 20), ("grpc.enable_retries", 0)]
    if options.ca:
        credentials = grpc.ssl_channel_credentials(options.ca.read_bytes())
        limits.append(("grpc.ssl_target_name_override", "localhost"))
        channel = grpc.secure_channel(options.address, credentials, limits)
    else:
        channel = grpc.insecure_channel(options.address, limits)
    with channel:
        if options.once:
            once(channel)
        else:
            checking.run(CHECKS, channel)


if __name__ == "__main__":
    main()
