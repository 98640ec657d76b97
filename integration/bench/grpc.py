#!/usr/bin/env python3
"""What a decision over gRPC costs: Envoy's rate limit service and its external authorization, in memory and on Redis.

Load is grpc_load.py: 8 connections of 16 streams, with one id all the time or a million in turn. The CPU is that of the
whole Weir process, and of Redis too where there is one; user and system time are Weir's. Each row is the median of its
rounds, which take turns so that a slow moment of the machine counts against all.

`--limitador` names a binary of limitador's server, which is on no package registry. Its rate limit service is measured in the
same rounds. With one worker, Weir's figures are held against goals that are ratios to it.
"""

import argparse
import json
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile
import urllib.request

from processes import Failure, free_ports
from report import ratio
from stage import Stage, program, weir_program

HERE = pathlib.Path(__file__).resolve().parent
AMPLE = 1_000_000_000_000
RULES = f"""limits:
  Descriptors: {{ match: {{ domain: bench }}, by: {{ descriptor: remote_address }}, burst: {AMPLE}, count: 1000, period: 1s }}
  Addresses: {{ by: ip, burst: {AMPLE}, count: 1000, period: 1s }}
"""
METHODS = {
    "rls": "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
    "authz": "/envoy.service.auth.v3.Authorization/Check",
}
LABELS = {"rls": "should_rate_limit", "authz": "check"}
LIMITADOR_LIMITS = f"""- namespace: bench
  max_value: {AMPLE}
  seconds: 3600
  conditions: []
  variables: ["descriptors[0].remote_address"]
"""
# CPU of a decision with one worker, as a part of what limitador's rate limit service takes on the same store.
GOALS = {("rls", "memory"): 0.3, ("authz", "memory"): 0.5}
# What a browser sends through Envoy: ten fields besides the pseudo-fields.
HEADERS = {
    "user-agent": "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    "accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
    "accept-language": "en-US,en;q=0.5",
    "accept-encoding": "gzip, deflate, br",
    "cookie": "session=0123456789abcdef0123456789abcdef; theme=dark",
    "referer": "https://www.example.com/catalogue",
    "x-request-id": "b7e2f3a0-1c4d-4f5e-8a9b-0123456789ab",
    "x-forwarded-for": "192.0.2.1",
    "x-forwarded-proto": "https",
    "x-account-id": "12345678",
}


def varint(number):
    encoded = b""
    while number > 127:
        encoded += bytes([number & 127 | 128])
        number >>= 7
    return encoded + bytes([number])


def field(number, value):
    """A field of a protocol buffer: text, bytes (a message too) or a number."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def rls_message(address):
    entry = field(1, "remote_address") + field(2, address)
    return field(1, "bench") + field(2, field(1, entry))


def authz_message(address):
    fields = {":method": "GET", ":path": "/v1/things?x=1", ":authority": "api.example.com", **HEADERS}
    source = field(1, field(1, field(2, address) + field(3, 51234)))
    request = field(1, "1234567890") + field(2, "GET")
    request += b"".join(field(3, field(1, name) + field(2, value)) for name, value in fields.items())
    request += field(4, "/v1/things?x=1") + field(5, "api.example.com") + field(6, "https") + field(10, "HTTP/1.1")
    return field(1, field(1, source) + field(4, field(2, request)))


MESSAGES = {"rls": rls_message, "authz": authz_message}


def write_messages(stage, kind, ids):
    addresses = ["10.1.2.3"]
    if ids == "varying":
        # In an order that has nothing to do with any table's.
        numbers = [number * 7_919 % (1 << 17) for number in range(1 << 17)]
        addresses = [f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}" for number in numbers]
    messages = (MESSAGES[kind](address) for address in addresses)
    path = stage.directory / f"{kind}-{ids}"
    path.write_bytes(b"".join(struct.pack(">H", len(message)) + message for message in messages))
    return str(path)


class Contender:
    """A server and what it needs, and how its CPU is counted."""

    def __init__(self, stage, name, store):
        self.name, self.store, self.processes = name, store, []
        self.port, self.other_port = free_ports(2)
        self.redis_url = None
        if store == "redis":
            (redis_port,) = free_ports(1)
            redis = [program("redis-server"), "--port", str(redis_port), "--bind", "127.0.0.1", "--save", ""]
            self.start(stage, f"redis-{name}", [*redis, "--dir", str(stage.directory)], redis_port)
            self.redis_url = f"redis://127.0.0.1:{redis_port}"

    def start(self, stage, name, command, port):
        process, _ = stage.start(name, command, port)
        self.processes.append(process)

    def decides(self, kind):
        """Whether it has this service."""
        raise NotImplementedError

    def load(self, kind, messages, options, seconds):
        """Loads it once; returns the client's figures and the number of decisions."""
        command = [sys.executable, str(HERE / "grpc_load.py"), str(self.port), METHODS[kind], messages]
        command += ["--seconds", str(seconds)]
        command += ["--connections", str(options.connections), "--streams", str(options.streams)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + 30)
        if ran.returncode:
            raise Failure(f"{kind} of {self.name} on {self.store}: {ran.stderr.strip()}")
        figures = json.loads(ran.stdout)
        return figures, figures["calls"]

    def round(self, kind, messages, options, seconds):
        """Loads it once; returns decisions a second and CPU of a decision, each process by itself."""
        times = lambda: [process.user_and_system_seconds() for process in self.processes]
        cpu = times()
        figures, decisions = self.load(kind, messages, options, seconds)
        used = [[after - was for after, was in zip(*pair, strict=True)] for pair in zip(times(), cpu, strict=True)]
        return {
            "rps": figures["calls"] / figures["seconds"],
            "cpu_us": sum(map(sum, used)) / decisions * 1e6,
            "server_us": sum(used[-1]) / decisions * 1e6,
            "user_us": used[-1][0] / decisions * 1e6,
            "system_us": used[-1][1] / decisions * 1e6,
            "p50_us": figures["p50_us"],
            "p99_us": figures["p99_us"],
        }


class Weir(Contender):
    def __init__(self, stage, name, binary, store, workers):
        super().__init__(stage, name, store)
        self.admin = self.other_port
        limits = stage.write("limits.yaml", RULES)
        command = [binary, "serve", "--grpc", f"127.0.0.1:{self.port}", "--admin", f"127.0.0.1:{self.admin}"]
        command += ["--limits", limits, "--workers", str(workers)]
        if self.redis_url:
            command += ["--store", self.redis_url, "--store-timeout", "1s"]
        self.start(stage, f"{name}-{store}", command, self.port)

    def decides(self, kind):
        return True

    def metrics(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics", timeout=5) as page:
            lines = page.read().decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    def load(self, kind, messages, options, seconds):
        before = self.metrics()
        figures, calls = super().load(kind, messages, options, seconds)
        after = self.metrics()
        rose = lambda series: after.get(series, 0) - before.get(series, 0)
        answered = rose(f'weir_grpc_calls_total{{code="ok",method="{LABELS[kind]}"}}')
        limit = "Descriptors" if kind == "rls" else "Addresses"
        allowed = rose(f'weir_decisions_total{{limit="{limit}",result="allowed"}}')
        # Those that are on their way when the load ends are answered and not counted by it.
        most = calls + options.connections * options.streams
        if not calls <= answered <= allowed <= most:
            raise Failure(f"{kind} on {self.store}: {calls} calls, {answered} answers, {allowed} allowed")
        return figures, answered


class Limitador(Contender):
    def __init__(self, stage, binary, store, workers):
        super().__init__(stage, "limitador", store)
        limits = stage.write("limitador.yaml", LIMITADOR_LIMITS)
        # Its runtime has a thread for each core unless told otherwise.
        command = ["env", f"TOKIO_WORKER_THREADS={workers}", binary]
        command += ["--rls-ip", "127.0.0.1", "--rls-port", str(self.port)]
        command += ["--http-ip", "127.0.0.1", "--http-port", str(self.other_port), limits]
        command += ["redis", self.redis_url] if self.redis_url else ["memory"]
        self.start(stage, f"limitador-{store}", command, self.port)

    def decides(self, kind):
        return kind == "rls"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", help="the binary (default: built with cargo build --profile dist)")
    parser.add_argument("--baseline", help="another weir binary, measured beside it in the same rounds")
    parser.add_argument("--limitador", help="a binary of limitador's server, measured in the same rounds")
    parser.add_argument("--kinds", nargs="*", choices=METHODS, default=list(METHODS))
    parser.add_argument("--stores", nargs="*", choices=["memory", "redis"], default=["memory", "redis"])
    parser.add_argument("--ids", nargs="*", choices=["fixed", "varying"], default=["fixed", "varying"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", help="a file for all figures")
    options = parser.parse_args()
    binaries = {"weir": weir_program(options.weir)}
    if options.baseline:
        binaries["baseline"] = weir_program(options.baseline)
    turns = {}
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as directory, Stage(directory) as stage:
        contenders = [
            Weir(stage, name, binary, store, options.workers)
            for store in options.stores
            for name, binary in binaries.items()
        ]
        if options.limitador:
            contenders += [Limitador(stage, options.limitador, store, options.workers) for store in options.stores]
        messages = {(kind, ids): write_messages(stage, kind, ids) for kind in options.kinds for ids in options.ids}
        for number in range(options.rounds + 1):
            for (kind, ids), path in messages.items():
                # The first round opens what is slow once.
                seconds = options.seconds if number else min(1, options.seconds)
                for contender in contenders:
                    turn = contender.round(kind, path, options, seconds) if contender.decides(kind) else None
                    if turn and number:
                        turns.setdefault((kind, ids, contender.store, contender.name), []).append(turn)
    print(f"{'':33}{'decisions/s':>12}{'CPU us':>9}{'server':>9}{'user':>9}{'system':>9}{'p50 us':>9}{'p99 us':>9}")
    rows, missed = [], 0
    for (kind, ids, store, name), of_one in turns.items():
        row = {figure: statistics.median(turn[figure] for turn in of_one) for figure in of_one[0]}
        services = {"baseline": kind, "limitador": "rls"} if name == "weir" else {}
        others = {peer: turns.get((service, ids, store, peer)) for peer, service in services.items()}
        ratios = {peer: ratio(of_one, turn) for peer, turn in others.items() if turn}
        verdict = "".join(f"  / {peer} {part:.3f}" for peer, part in ratios.items())
        goal = GOALS.get((kind, store)) if options.workers == 1 and "limitador" in ratios else None
        if goal is not None:
            verdict += f", goal {goal:g}: {'hit' if ratios['limitador'] <= goal else 'MISSED'}"
        missed += "MISSED" in verdict
        figures = f"{row['rps']:12.0f}{row['cpu_us']:9.2f}{row['server_us']:9.2f}"
        figures += f"{row['user_us']:9.2f}{row['system_us']:9.2f}{row['p50_us']:9.0f}{row['p99_us']:9.0f}"
        print(f"{kind:6} {ids:8} {store:8}{name:9} {figures}{verdict}")
        rows.append({"kind": kind, "ids": ids, "store": store, "binary": name, "goal": goal, "ratios": ratios, **row, "rounds": of_one})
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1))
    return 1 if missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        sys.exit(f"grpc.py: {failure}")
