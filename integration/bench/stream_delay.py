"""The delay that Weir adds to each event of a stream, with and without a limit that reads the events.

An upstream sends events one at a time, each with the time in it; a client notes when each arrives. Streams with and without inspection
take turns. Prints the median and the 99th percentile of the delay per event, and the memory of Weir before and after.

    python3 integration/bench/stream_delay.py [--weir target/release/weir] [--events 10000] [--rounds 3]
"""

import argparse
import json
import pathlib
import socket
import statistics
import subprocess
import tempfile
import threading
import time

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


def resident(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Weir:
    def __init__(self, binary, rules, upstream, folder):
        self.port = free_port()
        limits = pathlib.Path(folder) / f"{self.port}.yaml"
        limits.write_text(rules)
        flags = ["--limits", limits, "--upstream", f"http://127.0.0.1:{upstream}", "--workers", "1"]
        flags += ["--proxy", f"127.0.0.1:{self.port}", "--admin", f"127.0.0.1:{free_port()}"]
        self.process = subprocess.Popen([binary, "serve", *flags], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--weir", default="target/release/weir")
    arguments.add_argument("--events", type=int, default=10_000)
    arguments.add_argument("--rounds", type=int, default=3)
    given = arguments.parse_args()
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(listener, given.events), daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        upstream = listener.getsockname()[1]
        sides = {name: Weir(given.weir, rules, upstream, folder) for name, rules in (("read", READ), ("unread", UNREAD))}
        try:
            found = {name: [] for name in sides}
            before = {name: resident(side.process.pid) for name, side in sides.items()}
            for _ in range(given.rounds):
                for name, side in sides.items():
                    stream = delays(side.port)
                    assert len(stream) == given.events, f"{name}: {len(stream)} events"
                    found[name] += stream
            for name, side in sides.items():
                cuts = statistics.quantiles(found[name], n=100)
                memory = f"{before[name]} kB before, {resident(side.process.pid)} kB after"
                print(f"{name:7} median {cuts[49]:7.1f} us  p99 {cuts[98]:8.1f} us  {memory}")
            added = statistics.median(found["read"]) - statistics.median(found["unread"])
            print(f"inspection adds {added:.1f} us to the median of an event")
        finally:
            for side in sides.values():
                side.process.terminate()
                side.process.wait()


if __name__ == "__main__":
    main()
