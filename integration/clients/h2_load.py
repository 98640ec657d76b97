#!/usr/bin/env python3
"""Asks ADDRESS over HTTP/2 for some time, on several streams at once, and compares each answer with its request.

The server must answer 200 with the target as the body. After GOAWAY the streams up to its number must still be
answered; those above it were not looked at (RFC 9113, 6.8) and are asked again on a new connection. Prints
{"requests": N, "connections": N, "goaways": N, "retried": N, "failed": [..]}.
"""

import argparse
import json
import ssl
import sys
import time

from hyperframe.frame import DataFrame, HeadersFrame, WindowUpdateFrame

from h2_wire import PATIENCE, Closed, Connection

STREAMS = 8
PAUSE = 0.002
# After so many requests there is a new connection, so that new certificates are met.
REQUESTS_A_CONNECTION = 2000


class Client(Connection):
    """One connection, and the requests that are under way on it."""

    def __init__(self, address, tls, totals):
        context = None
        if tls:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        super().__init__(address, context)
        self.totals, self.open, self.asked = totals, {}, 0
        totals["connections"] += 1

    def ask(self, path):
        stream = 1 + 2 * self.asked
        self.asked += 1
        self.open[stream] = {"path": path, "body": b"", "since": time.monotonic()}
        fields = [(":method", "GET"), (":scheme", "http"), (":authority", "a.example"), (":path", path)]
        self.send(self.headers(fields, stream))

    def see(self, found):
        super().see(found)
        if isinstance(found, DataFrame) and found.flow_controlled_length:
            self.send(WindowUpdateFrame(0, found.flow_controlled_length).serialize())
        one = self.open.get(found.stream_id)
        if isinstance(found, DataFrame) and one:
            one["body"] += found.data
        if isinstance(found, (DataFrame, HeadersFrame)) and "END_STREAM" in found.flags and one:
            del self.open[found.stream_id]
            self.totals["requests"] += 1
            if (self.statuses.pop(found.stream_id), one["body"].decode()) != (200, one["path"]):
                fail(self.totals, f"{one['path']}: not answered with 200 and itself, but {one['body'][:100]!r}")

    def not_done(self):
        """Takes away the requests of which the server says that it did nothing with them; returns their paths."""
        # RFC 9113: REFUSED_STREAM (8.7), and what is above the number in GOAWAY (6.8).
        refused = [stream for stream, error in self.resets.items() if error == "REFUSED_STREAM"]
        above = [stream for stream in self.open if self.last_stream is not None and stream > self.last_stream]
        again = [self.open.pop(stream)["path"] for stream in {*refused, *above} if stream in self.open]
        for stream, error in self.resets.items():
            if one := self.open.pop(stream, None):
                fail(self.totals, f"{one['path']}: reset with {error}")
        self.resets.clear()
        return again


def fail(totals, why):
    totals["failed"].append(f"{time.monotonic() - totals['started']:7.2f} s  {why}")


def use(client, paths, ends):
    """Keeps streams under way on a connection until it is used up, left or time is over; returns what to ask again."""
    again = []
    while True:
        fresh = not client.goaway and not client.closed
        fresh = fresh and client.asked < REQUESTS_A_CONNECTION and time.monotonic() < ends
        while fresh and len(client.open) < STREAMS:
            try:
                client.ask(next(paths))
            except Closed:
                # What the server said before it closed tells which requests it did not look at.
                break
        client.read(PAUSE)
        again += client.not_done()
        if client.open and client.closed:
            fail(
                client.totals,
                f"the connection ended before the answers to {[one['path'] for one in client.open.values()]}",
            )
        late = [one["path"] for one in client.open.values() if time.monotonic() - one["since"] > PATIENCE]
        if late:
            fail(client.totals, f"no answer within {PATIENCE} s to {late}")
        if client.closed or late or (not fresh and not client.open):
            break
        time.sleep(PAUSE)
    client.totals["goaways"] += client.goaway is not None
    if client.goaway not in (None, "NO_ERROR"):
        fail(client.totals, f"GOAWAY with {client.goaway}")
    return again


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--tls", action="store_true", help="whatever the certificate is")
    options = parser.parse_args()
    totals = {"requests": 0, "connections": 0, "goaways": 0, "retried": 0, "failed": [], "started": time.monotonic()}
    ends, number, again = time.monotonic() + options.seconds, 0, []

    def paths():
        nonlocal number
        while True:
            if again:
                totals["retried"] += 1
                yield again.pop()
            else:
                number += 1
                yield f"/h2/{number}"

    source = paths()
    while time.monotonic() < ends:
        try:
            client = Client(options.address, options.tls, totals)
            with client:
                again += use(client, source, ends)
        except (OSError, Closed) as error:
            fail(totals, f"{type(error).__name__}: {error}")
            time.sleep(0.1)
    del totals["started"]
    print(json.dumps(totals))
    sys.exit(1 if totals["failed"] else 0)


if __name__ == "__main__":
    main()
