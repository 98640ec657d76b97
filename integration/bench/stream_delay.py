#!/usr/bin/env python3
"""The delay that Weir adds to each event of a stream, with and without a limit that reads the events.

An upstream sends events one at a time, each with the time in it; a client notes when each arrives. Streams with and without inspection
take turns. Prints the median and the 99th percentile of the delay per event, and the memory of Weir before and after.

    python3 integration/bench/stream_delay.py [--weir PATH] [--events N] [--rounds N]
"""

import argparse
import json
import socket
import statistics
import tempfile
import threading
import time

from processes import Failure, free_ports
from stage import Stage, weir_program

READ = "limits: { A: { by: global, burst: 1000000000, cost_from_response: { usage: openai, reserve: 1 } } }"
UNREAD = "limits: { A: { by: global, burst: 1000000000 } }"
INTERVAL = 0.0002


def event(number, count):
    usage = {"total_tokens": 25} if number == count else None
    delta = {"content": "some words of an answer, as a model gives them"}
    chunk = {"id": "chatcmpl-1", "at": time.perf_counter_ns(), "choices": [{"delta": delta}], "usage": usage}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def serve(listener, count):
    """Answers each connection with one stream, and ends it."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            if not connection.recv(65536):
                continue
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
            for number in range(1, count + 1):
                connection.sendall(event(number, count))
                time.sleep(INTERVAL)
            connection.sendall(b"data: [DONE]\n\n")


def delays(port):
    """Reads one stream. The delay of each event in microseconds."""
    found, buffered = [], b""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(60)
        connection.sendall(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        while data := connection.recv(65536):
            now = time.perf_counter_ns()
            buffered += data
            *events, buffered = buffered.split(b"\n\n")
            for text in events:
                start = text.find(b'"at": ')
                if start >= 0:
                    found.append((now - int(text[start + 6 : text.index(b",", start)])) / 1000)
    return found


def start(stage, weir, name, rules, upstream):
    """Starts Weir with these rules. Returns the process and its port."""
    proxy, admin = free_ports(2)
    command = [weir, "serve", "--limits", stage.write(f"{name}.yaml", rules), "--workers", "1"]
    command += ["--upstream", f"http://127.0.0.1:{upstream}", "--proxy", f"127.0.0.1:{proxy}", "--admin", f"127.0.0.1:{admin}"]
    return stage.start(name, command, proxy)[0], proxy


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", help="a binary; otherwise a release is built")
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    weir = weir_program(options.weir)
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(listener, options.events), daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="weir-stream-delay-") as directory, Stage(directory) as stage:
        upstream = listener.getsockname()[1]
        sides = {name: start(stage, weir, name, rules, upstream) for name, rules in (("read", READ), ("unread", UNREAD))}
        found = {name: [] for name in sides}
        before = {name: process.pss_mib() for name, (process, _) in sides.items()}
        for _ in range(options.rounds):
            for name, (_, port) in sides.items():
                stream = delays(port)
                if len(stream) != options.events:
                    raise Failure(f"{name}: {len(stream)} events")
                found[name] += stream
        for name, (process, _) in sides.items():
            cuts = statistics.quantiles(found[name], n=100)
            memory = f"{before[name]:.1f} MiB before, {process.pss_mib():.1f} MiB after"
            print(f"{name:7} median {cuts[49]:7.1f} us  p99 {cuts[98]:8.1f} us  {memory}")
        added = statistics.median(found["read"]) - statistics.median(found["unread"])
        print(f"reading adds {added:.1f} us to the median of an event")


if __name__ == "__main__":
    main()
