#!/usr/bin/env python3
"""What one proxied and rate-limited request costs: Weir, nginx, HAProxy and Envoy, in one run on one machine.

Every contender is a proxy of the same upstream, an nginx that answers 200 with a small body, and has one limit per
client address: far above the load (`passing`), or one request a second (`refused`). They take turns, round by round, so
that a machine which slows down slows all of them down; the first round warms up and is not counted. Figures are medians
over the rounds, ratios are medians of the rounds' ratios:

    CPU us/req   user and system time of all processes and threads, with Weir on Redis also that of the Redis server
    PSS MiB      the largest proportional set size seen, sampled four times a second; with Redis also the server's

The answers are checked: all 200 where the limit is ample, more than 99 % 429 where it is not, and none that the store
did not decide.

`--scale` instead compares Weir with 1 limit to Weir with 10,000 limits on as many paths and 1,000,000 overrides.
What this needs beside Weir comes with `integration/install.sh bench`.
"""

import argparse
import http.client
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

import contenders
import scale
from processes import Failure

HERE = pathlib.Path(__file__).resolve().parent

# Weir's CPU a request divided by nginx's, at most.
TARGETS = {
    ("passing", "weir"): 1.3,
    ("refused", "weir"): 1.3,
    ("passing", "weir+redis"): 3.0,
    ("refused", "weir+redis"): 3.0,
}
COLUMNS = {"cpu_us": "CPU us/req", "rps": "req/s", "p50_us": "p50 us", "p99_us": "p99 us", "pss_mib": "PSS MiB"}


def load(contender, path, seconds, connections):
    """One turn of one contender."""
    command = [contenders.program("wrk"), "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "5s"]
    command += ["-s", str(HERE / "wrk.lua"), f"http://127.0.0.1:{contender.port}{path}"]
    undecided = contender.store_errors()
    before, memory, waited = contender.cpu_seconds(), contender.pss_mib(), 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as wrk:
        while True:
            try:
                said = wrk.communicate(timeout=0.25)[0]
                break
            except subprocess.TimeoutExpired:
                memory, waited = max(memory, contender.pss_mib()), waited + 0.25
                if waited > seconds + 10:
                    wrk.kill()
                    raise Failure(f"wrk did not end {seconds + 10} s after it began on {contender.name}") from None
    used = contender.cpu_seconds() - before
    try:
        figures = json.loads(said.splitlines()[-1])
    except (IndexError, ValueError):
        raise Failure(f"wrk on {contender.name} said no figures:\n{said}") from None
    if not figures["requests"]:
        raise Failure(f"{contender.name} answered nothing:\n{contender.processes[-1].last_words()}")
    return {
        "cpu_us": used / figures["requests"] * 1e6,
        "rps": figures["requests"] / figures["micros"] * 1e6,
        "p50_us": figures["p50"],
        "p99_us": figures["p99"],
        "pss_mib": memory,
        "refused": figures["statuses_above_399"] / figures["requests"],
        "socket_errors": figures["socket_errors"],
        "store_errors": contender.store_errors() - undecided,
    }


def answer(contender, path):
    """The status and body of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", contender.port, timeout=5)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    finally:
        connection.close()


def check_answers(contender, scenario, path, turn):
    """A contender that answers something else is cheap for the wrong reason."""
    status, body = answer(contender, path)
    who = f"{contender.name}, {scenario}"
    if turn["store_errors"]:
        raise Failure(f"{who}: {turn['store_errors']:.0f} requests were not decided by the store")
    if scenario == "passing":
        if (status, body) != (200, contenders.BODY):
            raise Failure(f"{who}: want 200 and the upstream's body, got {status} and {body[:80]!r}")
        if turn["refused"] or turn["socket_errors"]:
            raise Failure(f"{who}: {turn['refused']:.2%} refused, {turn['socket_errors']} socket errors")
        return
    # One request a second may pass, and the one that asks here may be it.
    if status == 200:
        status, _ = answer(contender, path)
    if status != 429:
        raise Failure(f"{who}: want 429, got {status}")
    if turn["refused"] <= 0.99 or turn["socket_errors"]:
        raise Failure(f"{who}: only {turn['refused']:.2%} refused, {turn['socket_errors']} socket errors")


def rounds(running, scenario, path, options):
    """The turns of all contenders by name; the warm-up is left out."""
    turns = {contender.name: [] for contender in running}
    for number in range(options.rounds + 1):
        for contender in running:
            seconds = 1 if number == 0 else options.seconds
            turn = load(contender, path, seconds, options.connections)
            check_answers(contender, scenario, path, turn)
            if number:
                turns[contender.name].append(turn)
        print(f"{scenario}: {'warm-up' if number == 0 else f'round {number} of {options.rounds}'}", file=sys.stderr)
    return turns


def summary(turns):
    figures = {column: statistics.median(turn[column] for turn in turns) for column in COLUMNS}
    return figures | {"pss_mib": max(turn["pss_mib"] for turn in turns), "rounds": turns}


def ratio(turns, others):
    return statistics.median(turn["cpu_us"] / other["cpu_us"] for turn, other in zip(turns, others, strict=True))


def run_scenario(scenario, starters, options):
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as directory, contenders.Stage(directory) as stage:
        upstream = contenders.upstream(stage)
        running = [start(stage, scenario, upstream.port, options.workers) for start in starters]
        turns = rounds(running, scenario, "/", options)
    ratios = [
        {"scenario": scenario, "weir": name, "peer": peer, "cpu_ratio": ratio(turns[name], turns[peer])}
        for name in turns
        if name.startswith("weir")
        for peer in turns
        if not peer.startswith("weir")
    ]
    return {name: summary(of_one) for name, of_one in turns.items()}, ratios


def print_table(scenario, results):
    print(f"\n{scenario:12}" + "".join(f"{title:>12}" for title in COLUMNS.values()))
    for name, figures in results.items():
        print(f"{name:12}" + "".join(f"{figures[column]:12,.{digits(column)}f}" for column in COLUMNS))


def digits(column):
    return {"cpu_us": 2, "pss_mib": 1}.get(column, 0)


def print_ratios(ratios):
    print("\nCPU per request, Weir / peer")
    for row in ratios:
        target = TARGETS.get((row["scenario"], row["weir"])) if row["peer"] == "nginx" else None
        verdict = "" if target is None else f"   at most {target}: {'hit' if row['cpu_ratio'] <= target else 'MISS'}"
        print(f"{row['scenario']:9} {row['weir']:11} / {row['peer']:8} {row['cpu_ratio']:6.2f}{verdict}")


def machine(weir):
    facts = {
        "cores": os.cpu_count(),
        "cpu": next(
            (line.partition(":")[2].strip() for line in open("/proc/cpuinfo", encoding="utf-8") if "model name" in line),
            platform.machine(),
        ),
        "kernel": platform.release(),
        "nginx": contenders.version([contenders.program("nginx"), "-v"]),
        "wrk": contenders.version([contenders.program("wrk"), "-v"]),
    }
    if weir:
        facts["weir"] = contenders.version([weir, "--version"])
        facts["redis"] = contenders.version([contenders.program("redis-server"), "--version"])
    return facts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", choices=["passing", "refused", "both"], default="both")
    parser.add_argument("--scale", action="store_true", help="1 limit against 10,000 limits and 1,000,000 overrides")
    parser.add_argument("--rounds", type=positive, default=5, help="counted rounds (default: %(default)s)")
    parser.add_argument("--seconds", type=positive, default=4, help="of each turn (default: %(default)s)")
    parser.add_argument("--connections", type=positive, default=64, help="kept alive (default: %(default)s)")
    parser.add_argument("--workers", type=positive, default=1, help="of each contender (default: %(default)s)")
    parser.add_argument("--weir", metavar="PATH", help="a weir binary (default: built with cargo build --release)")
    parser.add_argument("--peers-only", action="store_true", help="leave Weir out")
    parser.add_argument("--json", metavar="FILE", help="also write every figure of every round there")
    options = parser.parse_args()
    # A run takes minutes; what is known is said at once, into a pipe too.
    sys.stdout.reconfigure(line_buffering=True)
    try:
        report = run(options)
    except Failure as failure:
        sys.exit(f"{pathlib.Path(__file__).name}: {failure}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def run(options):
    weir = None if options.peers_only else contenders.weir_program(options.weir)
    facts = machine(weir)
    report = {"machine": facts, "options": vars(options)}
    if options.scale:
        if weir is None:
            raise Failure("--scale measures Weir; leave out --peers-only")
        print_facts(facts)
        report["scale"] = scale.run(weir, options, rounds, ratio)
        return report
    facts["haproxy"] = contenders.version([contenders.program("haproxy"), "-v"])
    facts["envoy"] = contenders.version([contenders.envoy_program(), "--version"])
    print_facts(facts)
    starters = [contenders.nginx, contenders.haproxy, contenders.envoy]
    if weir:
        starters = [contenders.weir(weir), contenders.weir_redis(weir), *starters]
    scenarios = ["passing", "refused"] if options.scenario == "both" else [options.scenario]
    ratios = []
    for scenario in scenarios:
        report[scenario], of_scenario = run_scenario(scenario, starters, options)
        ratios += of_scenario
        print_table(scenario, report[scenario])
    report["ratios"] = ratios
    if weir:
        print_ratios(ratios)
    print(f"\nmedians of {options.rounds} rounds of {options.seconds} s, {options.connections} connections, ", end="")
    print(f"{options.workers} worker(s) each")
    return report


def print_facts(facts):
    for name, fact in facts.items():
        print(f"{name:8} {fact}")


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


if __name__ == "__main__":
    main()
