#!/usr/bin/env python3
"""What slow clients cost the others: the p99 of a moderate load without them and with them, of Weir and of nginx.

    head     connections that send a byte a second of a request's fields
    body     connections that send a byte a second of a request's body
    unread   connections that ask for 64 MiB and read none of it

The load is wrk on connections that pause between requests, so that what is measured is the wait of a request and not
a full machine. A load ends before Weir's patience with the crowd does (5 s for a body at a byte a second): to close
2,000 connections at once, and to open them again, is another matter. Each crowd is measured next to the same load
without it, and all take turns, round by round. Ratios are medians of the rounds' ratios; at most 1.5 is asked of
Weir. The slow clients have 250 addresses, as no proxy that bounds the connections of an address would hold 2,000 of
one. A connection that the proxy closes, which is its right, is opened again and counted. The system asks whoever
reads nothing for room, again and again (a probe of the window each, a thousand and more a second); the proxy has no
part in that, so `unread` is to be read next to nginx. What this needs beside Weir comes with `integration/install.sh`.
"""

import argparse
import os
import select
import socket
import statistics
import sys
import tempfile
import threading
import time

import contenders
import loads
from processes import Failure, free_ports
from stage import Stage, allow_open_files, carry_out, weir_program

TARGET = 1.5
ADDRESSES = 250
# A byte or two go out at a time. Real slow clients do not wait for each other, and what is sent in bursts makes others
# wait for the burst: one of 10 ms a second is their p99, whatever the proxy is.
TICKS_A_SECOND = 1000
# To look for connections that were closed is a call to the system, too.
TICKS_A_LOOK = 20
LARGE = "/large"
LARGE_BYTES = 64 << 20
# Room that the kernel doubles; less than one answer's window, so that the proxy is stuck soon.
RECEIVE_BUFFER = 4096
CONNECT_SECONDS = 5
SETTLE_SECONDS = 30
SETTLE_STEP = 0.5
# Of a core. 2,000 bytes per second cost a proxy some 2 %.
SETTLED_SHARE = 0.1

BEGINNINGS = {
    "head": b"GET / HTTP/1.1\r\nHost: slow.example\r\nX-Slow: ",
    "body": b"POST /upload HTTP/1.1\r\nHost: slow.example\r\nContent-Length: 1000000\r\n\r\n",
    "unread": f"GET {LARGE} HTTP/1.1\r\nHost: slow.example\r\n\r\n".encode(),
}


class Crowd:
    """Slow connections to a port, kept alive by a thread while this is entered."""

    def __init__(self, kind, port, count):
        self.kind, self.port, self.count = kind, port, count
        self.by_file = {}
        self.by_tick = [{} for _ in range(TICKS_A_SECOND)]
        self.closed_by_proxy, self.rejected = 0, 0
        self.ends = threading.Event()
        self.closings = select.epoll()
        self.thread = threading.Thread(target=self.live)

    def __enter__(self):
        for number in range(self.count):
            self.open(number)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.thread.join()
        for connection, _ in self.by_file.values():
            connection.close()
        self.closings.close()

    def open(self, number):
        connection = socket.socket()
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            connection.settimeout(CONNECT_SECONDS)
            connection.bind((f"127.1.0.{1 + number % ADDRESSES}", 0))
            connection.connect(("127.0.0.1", self.port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.send(BEGINNINGS[self.kind])
        except OSError:
            connection.close()
            self.rejected += 1
            return
        connection.setblocking(False)
        self.by_file[connection.fileno()] = (connection, number)
        self.by_tick[number % TICKS_A_SECOND][number] = connection
        self.closings.register(connection, select.EPOLLRDHUP)

    def live(self):
        """A byte a second on each, evenly over the second; whoever was closed comes back."""
        tick, start = 0, time.monotonic()
        while not self.ends.is_set():
            tick += TICKS_A_LOOK if self.kind == "unread" else 1
            time.sleep(max(0, start + tick / TICKS_A_SECOND - time.monotonic()))
            if tick % TICKS_A_LOOK == 0:
                for file, _ in self.closings.poll(0):
                    self.reopen(file)
            if self.kind != "unread":
                for connection in list(self.by_tick[tick % TICKS_A_SECOND].values()):
                    self.send_byte(connection)

    def send_byte(self, connection):
        try:
            connection.send(b"a")
        except BlockingIOError:
            pass
        except OSError:
            self.reopen(connection.fileno())

    def reopen(self, file):
        connection, number = self.by_file.pop(file)
        del self.by_tick[number % TICKS_A_SECOND][number]
        connection.close()
        self.closed_by_proxy += 1
        self.open(number)


def upstream(stage):
    """An nginx with a small answer, and a large one that costs no disk."""
    [port] = free_ports(1)
    with open(stage.directory / LARGE.strip("/"), "wb") as large:
        large.truncate(LARGE_BYTES)
    locations = (
        f"location / {{ return 200 '{contenders.BODY.decode()}'; }} location = {LARGE} {{ root {stage.directory}; }}"
    )
    # `return` does not wait for a request's body; a proxy does.
    locations += f"location = /upload {{ proxy_pass http://127.0.0.1:{port}/; }}"
    server = f"sendfile on; client_body_timeout 1h; server {{ listen 127.0.0.1:{port}; {locations} }}"
    return stage.start("upstream", contenders.nginx_command(stage, "upstream", 1, server), port)[0]


def settle(processes):
    """Waits until nothing is going on but a byte now and then: the crowd is accepted and stuck, or gone."""
    for _ in range(int(SETTLE_SECONDS / SETTLE_STEP)):
        before = sum(process.cpu_seconds() for process in processes)
        time.sleep(SETTLE_STEP)
        if sum(process.cpu_seconds() for process in processes) - before < SETTLED_SHARE * SETTLE_STEP:
            return
    raise Failure(f"{processes[-1].name} is still busy {SETTLE_SECONDS} s after the slow clients came or went")


def load(contender, front, options):
    figures = loads.wrk(front.url(contender.port), options.seconds, options.connections, lambda: None, options.pause)
    if figures["socket_errors"] or figures["statuses_above_399"]:
        raise Failure(f"{contender.name} failed requests that are none of the slow clients': {figures}")
    # Not while it runs: the system walks through all of the memory for it, milliseconds on one of a few cores.
    return figures | {"pss_mib": contender.pss_mib()}


def turn(contender, origin, front, kind, options):
    """The load without the crowd, and then with it."""
    settle([origin, *contender.processes])
    before = load(contender, front, options)
    with Crowd(kind, contender.port, options.clients) as crowd:
        settle([origin, *contender.processes])
        with_them = load(contender, front, options)
        held = len(crowd.by_file)
    return {
        "p99_before": before["p99"],
        "p99_with": with_them["p99"],
        "rps_before": before["requests"] / before["micros"] * 1e6,
        "rps_with": with_them["requests"] / with_them["micros"] * 1e6,
        "ratio": with_them["p99"] / before["p99"],
        "pss_before": before["pss_mib"],
        "pss_with": with_them["pss_mib"],
        "held": held,
        "closed_by_proxy": crowd.closed_by_proxy,
        "rejected": crowd.rejected,
    }


TITLES = {
    "p99_before": "p99 us", "p99_with": "with them", "ratio": "ratio", "rps_before": "req/s", "rps_with": "with them",
    "pss_before": "PSS MiB", "pss_with": "with them", "held": "held", "closed_by_proxy": "closed", "rejected": "rejected",
}  # fmt: skip
DIGITS = {"ratio": 2, "pss_before": 1, "pss_with": 1}


def print_row(contender, kind, figures):
    cells = (f"{figures[column]:11,.{DIGITS.get(column, 0)}f}" for column in TITLES)
    verdict = ""
    if contender == "weir":
        verdict = f"   at most {TARGET}: {'HIT' if figures['ratio'] <= TARGET else 'MISS'}"
    print(f"{contender:8}{kind:8}" + "".join(cells) + verdict)


def run(options):
    allow_open_files(3 * options.clients + 1000)
    weir = weir_program(options.weir)
    front = contenders.Front(workers=options.workers)
    kinds = list(BEGINNINGS) if options.crowd == "all" else [options.crowd]
    with tempfile.TemporaryDirectory(prefix="weir-slow-") as directory, Stage(directory) as stage:
        # nginx' workers are of another user when it is started by root.
        stage.directory.chmod(0o755)
        origin = upstream(stage)
        running = [start(stage, "passing", origin.port, front) for start in (contenders.weir(weir), contenders.nginx)]
        turns = {(contender.name, kind): [] for kind in kinds for contender in running}
        for number in range(options.rounds):
            for kind in kinds:
                for contender in running:
                    if number == 0:
                        load(contender, front, options)  # Warms up.
                    turns[contender.name, kind].append(turn(contender, origin, front, kind, options))
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
    print(f"{'':16}" + "".join(f"{title:>11}" for title in TITLES.values()))
    done = []
    for (contender, kind), of_one in turns.items():
        figures = {column: statistics.median(one[column] for one in of_one) for column in TITLES}
        print_row(contender, kind, figures)
        done.append({"contender": contender, "crowd": kind, **figures, "rounds": of_one})
    print(f"\nmedians of {options.rounds} rounds; {options.clients} slow clients; wrk on {options.connections}")
    return {"options": vars(options), "cores": os.cpu_count(), "crowds": done}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--crowd", choices=[*BEGINNINGS, "all"], default="all")
    parser.add_argument("--clients", type=int, default=2000, help="slow ones (default: %(default)s)")
    parser.add_argument("--connections", type=int, default=64, help="of the load (default: %(default)s)")
    parser.add_argument("--pause", type=int, default=8, metavar="MS", help="on average (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="of each contender (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=3, help="of each load (default: %(default)s)")
    parser.add_argument("--weir", metavar="PATH", help="a weir binary (default: built with cargo build --profile dist)")
    parser.add_argument("--json", metavar="FILE", help="also write every figure of every round there")
    options = parser.parse_args()
    carry_out(run, options)


if __name__ == "__main__":
    main()
