#!/usr/bin/env python3
"""Every goal of Weir's speed as a ratio in one run, each a HIT, a MISS or not measured. Takes some 15 minutes, or 5 with --quick.

The parts are the benchmarks beside this script, each run with the contenders that its goals need:

    http1      CPU of a denied request over HTTP/1 beside nginx, in memory and on Redis        proxies.py
    http2      CPU of a request over HTTP/2 beside HAProxy                                     proxies.py --http2
    bodies     CPU of an answer of 64 KiB beside nginx                                         proxies.py --body 65536
    tail       p99 and p99.9 at fixed rates beside nginx                                       proxies.py --open-loop
    idle       memory of idle connections beside nginx                                         idle_connections.py
    grpc       CPU of a call to the rate limit service beside limitador (needs --limitador)    grpc.py
    redis      what a decision costs Redis, and how long it takes                              cargo bench --bench redis
    overrides  a million overrides at the start and by reload (needs --baseline)               overrides.py

A part that fails, or lacks what it needs, is printed as not measured. The exit code is 1 unless all goals that were
measured are hit. Run it on a machine that does nothing else.
"""

import argparse
import json
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading

import report
from processes import Failure
from proxies import LARGE_BODY, subset
from stage import ROOT, carry_out, weir_program

HERE = pathlib.Path(__file__).resolve().parent
# What an idle connection of Weir may hold more than one of nginx.
IDLE_KIB = 2.0
# The share of the memory of idle connections that may be left when they have closed.
IDLE_LEFT = 0.1
# No slower than the baseline, but for what two runs differ by.
OVERRIDES_AT_MOST = 1.05
PART_SECONDS = 900
# Fat link-time optimization of the benchmark of Redis takes minutes.
BUILD_SECONDS = 1800

UNIFORM = re.compile(r"^uniform, the store +[\d.]+ +[\d.]+ +([\d.]+)", re.MULTILINE)
ALONE = re.compile(r"the store's p99 is ([\d.]+) times that of GET")
CLUSTER = re.compile(r"^three masters +decide ([\d.]+) times as much", re.MULTILINE)


def goal(name, value, at_most=None, at_least=None):
    hit = value <= at_most if at_least is None else value >= at_least
    return {"goal": name, "value": value, "at_most": at_most, "at_least": at_least, "hit": hit}


class Run:
    """What is measured, and how long."""

    def __init__(self, options):
        self.options, self.weir = options, weir_program(options.weir)
        self.figures = {}
        self.rounds, self.seconds = ("2", "2") if options.quick else ("5", "3")

    def benchmark(self, part, script, *arguments):
        """The JSON that a script of this folder writes."""
        if not (HERE / script).exists():
            raise Failure(f"there is no {script}")
        with tempfile.TemporaryDirectory(prefix="weir-goals-") as directory:
            path = pathlib.Path(directory) / "figures.json"
            self.command(part, [sys.executable, str(HERE / script), *arguments, "--json", str(path)], PART_SECONDS)
            if not path.exists():
                raise Failure(f"{script} wrote no figures; see above")
            self.figures[part] = json.loads(path.read_text(encoding="utf-8"))
            return self.figures[part]

    def command(self, part, command, seconds):
        """Runs it with its output shown, and returns that output."""
        print(f"\n=== {part}: {' '.join(command)}", flush=True)
        said = []
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
            # Interrupted, a benchmark ends what it has started.
            deadline = threading.Timer(seconds, child.send_signal, [signal.SIGINT])
            deadline.start()
            try:
                for line in child.stdout:
                    print(line, end="", flush=True)
                    said.append(line)
            finally:
                deadline.cancel()
        return "".join(said)

    def proxies(self, part, only, *more):
        arguments = ["--weir", self.weir, "--only", only, "--rounds", self.rounds, "--seconds", self.seconds, *more]
        return self.benchmark(part, "proxies.py", *arguments)

    def judged(self, part, only, *more):
        """The goals that proxies.py knows, of one variant."""
        [variant] = self.proxies(part, only, *more)["variants"]
        for row in variant["ratios"]:
            if row["hit"] is not None:
                title = f"{report.FIGURES[row['figure']]}, {row['scenario']}, {row['variant']}: {row['weir']} / {row['peer']}"
                yield goal(title, row["ratio"], row["at_most"])

    def http1(self):
        return self.judged("http1", "weir,weir+redis,nginx", "--scenario", "denied")

    def http2(self):
        return self.judged("http2", "weir,haproxy", "--http2")

    def bodies(self):
        return self.judged("bodies", "weir,nginx", "--body", str(LARGE_BODY), "--scenario", "passing")

    def tail(self):
        for row in self.proxies("tail", "weir,nginx", "--open-loop")["open_loop"]["ratios"]:
            if row["hit"] is not None:
                title = f"{row['figure']}, {row['scenario']} at {row['share']} %: weir / {row['peer']}"
                yield goal(title, row["ratio"], row["at_most"])

    def idle(self):
        figures = self.benchmark("idle", "idle_connections.py", "--weir", self.weir)
        connections, fronts = figures["options"]["connections"], {}
        for crowd in figures["crowds"]:
            fronts.setdefault(crowd["over"], {})[crowd["contender"]] = crowd
        for front, crowds in fronts.items():
            each = {}
            for name, crowd in crowds.items():
                held = max(held for held, _ in crowd["rounds"]) - crowd["start"]
                each[name] = held * 1024 / connections
                left = crowd["rounds"][-1][1] - crowd["start"]
                if name == "weir":
                    yield goal(f"memory left when idle connections have closed, {front}: weir / held", left / held, IDLE_LEFT)
            yield goal(f"KiB of an idle connection, {front}: weir - nginx", each["weir"] - each["nginx"], IDLE_KIB)

    def grpc(self):
        if not self.options.limitador:
            raise Failure("needs --limitador")
        seconds = ["--rounds", "2" if self.options.quick else "3", "--seconds", self.seconds]
        arguments = ["--weir", self.weir, "--limitador", self.options.limitador, "--kinds", "rls", "--stores", "memory"]
        for row in self.benchmark("grpc", "grpc.py", *arguments, *seconds):
            if row["goal"] is not None:
                title = f"CPU of a call, {row['kind']}, {row['ids']} ids, in {row['store']}: weir / limitador"
                yield goal(title, row["ratios"]["limitador"], row["goal"])

    def redis(self):
        bench = [self.options.redis_bench, "--bench"] if self.options.redis_bench else ["cargo", "bench", "--locked", "--bench", "redis", "--"]
        said = "".join(self.command("redis", [*bench, filter_of], BUILD_SECONDS) for filter_of in ("uniform", "cluster"))
        uniform, alone, cluster = UNIFORM.search(said), ALONE.findall(said), CLUSTER.findall(said)
        if not (uniform and alone and cluster):
            raise Failure("the benchmark of Redis said no figures; see above")
        self.figures["redis"] = said
        yield goal("CPU of Redis, uniform ids: a decision / an EVALSHA", float(uniform[1]), at_most=0.30)
        yield goal("p99 of one decision at a time: weir / GET", statistics.mean(map(float, alone)), at_most=1.3)
        # The last one has as many requests under way as fill the calls to three servers.
        yield goal("decisions of three masters / one server, a core each", float(cluster[-1]), at_least=2.2)

    def overrides(self):
        if not self.options.baseline:
            raise Failure("needs --baseline")
        arguments = ["--weir", self.options.baseline, "--weir", self.weir, "--runs", "1" if self.options.quick else "2"]
        for row in self.benchmark("overrides", "overrides.py", *arguments):
            if row["figure"].startswith(("start", "reload")):
                title = f"a million overrides, {row['figure'].removesuffix(', s')}: weir / baseline"
                yield goal(title, row["medians"][1] / row["medians"][0], OVERRIDES_AT_MOST)


PARTS = ["http1", "http2", "bodies", "tail", "idle", "grpc", "redis", "overrides"]
# What no part can see from outside.
ELSEWHERE = {"allocations of a call to the rate limit service, at most 16": "a test of the library counts them"}


def print_goals(goals, missing):
    print(f"\n{'goal':80}{'value':>8}")
    for row in goals:
        bound = f"at most {row['at_most']}" if row["at_least"] is None else f"at least {row['at_least']}"
        print(f"{row['goal']:80}{row['value']:8.3f}   {bound:14} {'HIT' if row['hit'] else 'MISS'}")
    for name, reason in missing.items():
        print(f"{name:80}{'-':>8}   not measured: {reason}")
    missed = sum(not row["hit"] for row in goals)
    print(f"\n{len(goals) - missed} of {len(goals)} goals hit, {missed} missed, {len(missing)} not measured")


def run(options):
    everything, goals, missing = Run(options), [], {}
    for part in PARTS:
        if part not in options.only:
            missing[part] = "left out by --only"
            continue
        try:
            goals += getattr(everything, part)()
        except (Failure, OSError, subprocess.SubprocessError) as failure:
            missing[part] = str(failure)
    print_goals(goals, missing | ELSEWHERE)
    return {"options": vars(options), "goals": goals, "not measured": missing | ELSEWHERE, "figures": everything.figures}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", metavar="PATH", help="a weir binary (default: built with cargo build --profile dist)")
    parser.add_argument("--baseline", metavar="PATH", help="another weir binary, for `overrides`")
    parser.add_argument("--limitador", metavar="PATH", help="a binary of limitador's server, for `grpc`")
    parser.add_argument("--redis-bench", metavar="PATH", help="the built benchmark of Redis (default: cargo bench)")
    parser.add_argument("--only", type=subset(PARTS), default=PARTS, metavar="PART,..", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--json", metavar="FILE", help="also write every figure of every part there")
    done = carry_out(run, parser.parse_args())
    return 0 if all(row["hit"] for row in done["goals"]) else 1


if __name__ == "__main__":
    sys.exit(main())
