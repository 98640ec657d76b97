#!/usr/bin/env python3
"""What one proxied and rate-limited request costs: Weir, nginx, HAProxy and Envoy, in one run on one machine.

Every contender is a proxy of the same upstream, an nginx that answers 200 with a small body, and has one limit per
client address: far above the load (`passing`), or one request a second (`denied`). They take turns, round by round, so
that a machine which slows down slows all of them down; the first round warms up and is not counted. Figures are medians
over the rounds, ratios are medians of the rounds' ratios:

    CPU us/req   user and system time of all processes and threads, with Weir on Redis also that of the Redis server
    user, system the two parts of it
    PSS MiB      the largest proportional set size seen, sampled four times a second; with Redis also the server's

`relay` forwards bytes and reads no HTTP: the floor of a hop, for the plain run and large bodies where the limit is ample.

The answers are checked: all 200 where the limit is ample, more than 99 % 429 where it is not, and none that the store
did not decide; and the status, body and HTTP version of one answer after each turn.

--workers, --tls, --http2 and --body make a variant, alone or together; --all measures the plain run and then each
variant alone. The client is wrk, and h2load with --http2, where percentiles come from h2load's log of every request.

`--open-loop` instead asks by a schedule, at 30, 60 and 90 % of what Weir and nginx can do, and compares the tails of the latency:
alone, with 100,000 ids, while the limits are reloaded, and beside floods of denied requests (`open_loop.py` says how).

`--scale` instead compares Weir with 1 limit to Weir with 10,000 limits on as many paths and 1,000,000 overrides.
What this needs beside Weir comes with `integration/install.sh`.
"""

import argparse
import dataclasses
import os
import platform
import sys
import tempfile

import contenders
import loads
import open_loop
import report
import scale
from processes import Failure
from stage import Certificate, Stage, carry_out, program, version, weir_program

LARGE_BODY = 65536
STARTERS = {
    "nginx": contenders.nginx,
    "haproxy": contenders.haproxy,
    "envoy": contenders.envoy,
    "relay": contenders.relay,
}


@dataclasses.dataclass(frozen=True)
class Variant:
    """What is asked of the contenders, and where that differs from the plain run."""

    workers: int = 1
    tls: bool = False
    http2: bool = False
    body: int | None = None

    def name(self):
        """What differs, in the words of the command line."""
        parts = [f"--workers {self.workers}"] if self.workers > 1 else []
        parts += ["--tls"] if self.tls else []
        parts += ["--http2"] if self.http2 else []
        parts += [f"--body {self.body}"] if self.body else []
        return " ".join(parts) or "plain"

    def targets(self):
        if self.http2:
            return report.HTTP2_TARGETS
        if self.body:
            return report.BODY_TARGETS
        return report.TARGETS if self == Variant() else report.VARIANT_TARGETS

    def front(self, stage):
        body = contenders.BODY if self.body is None else b"x" * self.body
        certificate = Certificate(stage.directory) if self.tls else None
        return contenders.Front(self.workers, certificate, self.http2, body)


ALL = [Variant(), Variant(workers=2), Variant(tls=True), Variant(http2=True), Variant(body=LARGE_BODY)]


def load(contender, front, path, seconds, options):
    """One turn of one contender."""
    undecided = contender.store_errors()
    memory = [contender.pss_mib()]
    url, sample = front.url(contender.port, path), lambda: memory.append(contender.pss_mib())
    user, system = contender.user_and_system_seconds()
    if front.http2:
        figures = loads.h2load(url, seconds, options.connections, options.streams, sample)
    else:
        figures = loads.wrk(url, seconds, options.connections, sample)
    user_after, system_after = contender.user_and_system_seconds()
    if not figures["requests"]:
        raise Failure(f"{contender.name} answered nothing:\n{contender.processes[-1].last_words()}")
    return {
        "cpu_us": (user_after - user + system_after - system) / figures["requests"] * 1e6,
        "user_us": (user_after - user) / figures["requests"] * 1e6,
        "system_us": (system_after - system) / figures["requests"] * 1e6,
        "rps": figures["requests"] / figures["micros"] * 1e6,
        "p50_us": figures["p50"],
        "p99_us": figures["p99"],
        "pss_mib": max(memory),
        "denied": figures["statuses_above_399"] / figures["requests"],
        "socket_errors": figures["socket_errors"],
        "store_errors": contender.store_errors() - undecided,
    }


def check_answers(contender, front, scenario, path, turn):
    """A contender that answers something else is cheap for the wrong reason."""
    url = front.url(contender.port, path)
    flags = ["--http2-prior-knowledge"] if front.http2 and not front.certificate else []
    # Where TLS offers both, curl takes HTTP/2, and wrk speaks HTTP/1.1.
    flags += ["--tlsv1.3", "--http2" if front.http2 else "--http1.1"] if front.certificate else []
    status, http_version, body = loads.answer(url, *flags)
    who = f"{contender.name}, {scenario}"
    if http_version != ("2" if front.http2 else "1.1"):
        raise Failure(f"{who}: answers in HTTP/{http_version}")
    if turn["store_errors"]:
        raise Failure(f"{who}: {turn['store_errors']:.0f} requests were not decided by the store")
    if scenario == "passing":
        if (status, body) != (200, front.body):
            raise Failure(f"{who}: want 200 and the upstream's body, got {status} and {body[:80]!r}")
        if turn["denied"] or turn["socket_errors"]:
            raise Failure(f"{who}: {turn['denied']:.2%} denied, {turn['socket_errors']} socket errors")
        return
    # One request per second may pass, and it may be this one.
    if status == 200:
        status, _, _ = loads.answer(url, *flags)
    if status != 429:
        raise Failure(f"{who}: want 429, got {status}")
    if turn["denied"] <= 0.99 or turn["socket_errors"]:
        raise Failure(f"{who}: only {turn['denied']:.2%} denied, {turn['socket_errors']} socket errors")


def rounds(running, front, scenario, path, options):
    """The turns of all contenders by name; the warm-up is left out."""
    turns = {contender.name: [] for contender in running}
    for number in range(options.rounds + 1):
        for contender in running:
            seconds = 1 if number == 0 else options.seconds
            turn = load(contender, front, path, seconds, options)
            check_answers(contender, front, scenario, path, turn)
            if number:
                turns[contender.name].append(turn)
        print(f"{scenario}: {'warm-up' if number == 0 else f'round {number} of {options.rounds}'}", file=sys.stderr)
    return turns


def run_variant(variant, starters, options):
    """Measures all scenarios of a variant, prints them, and returns every figure."""
    done = {"variant": variant.name(), "options": dataclasses.asdict(variant), "ratios": []}
    for scenario in ["passing", "denied"] if options.scenario == "both" else [options.scenario]:
        with tempfile.TemporaryDirectory(prefix="weir-bench-") as directory, Stage(directory) as stage:
            # nginx' workers are of another user when it is started by root.
            stage.directory.chmod(0o755)
            front = variant.front(stage)
            upstream = contenders.upstream(stage, front.body)
            running = [start(stage, scenario, upstream.port, front) for start in starters]
            running = [contender for contender in running if contender]
            turns = rounds(running, front, scenario, "/", options)
        done[scenario] = {name: report.summary(of_one) for name, of_one in turns.items()}
        rows = report.ratios(scenario, turns, variant.targets())
        done["ratios"] += [row | {"variant": variant.name()} for row in rows]
        report.print_table(f"{variant.name()}, {scenario}", done[scenario])
    if done["ratios"]:
        report.print_ratios(variant.name(), done["ratios"])
    return done


def machine(weir, names):
    facts = {
        "cores": os.cpu_count(),
        "cpu": next(
            (
                line.partition(":")[2].strip()
                for line in open("/proc/cpuinfo", encoding="utf-8")
                if "model name" in line
            ),
            platform.machine(),
        ),
        "kernel": platform.release(),
        "wrk": version([program("wrk"), "-v"]),
        "h2load": version([program("h2load"), "--version"]),
        "nginx": version([program("nginx"), "-v"]),
    }
    if weir:
        facts["weir"] = version([weir, "--version"])
    if "weir+redis" in names:
        facts["redis"] = version([program("redis-server"), "--version"])
    if "haproxy" in names:
        facts["haproxy"] = version([program("haproxy"), "-v"])
    if "envoy" in names:
        facts["envoy"] = version([contenders.envoy_program(), "--version"])
    return facts


def parser():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", choices=["passing", "denied", "both"], default="both")
    parser.add_argument("--all", action="store_true", help="the plain run and each variant alone")
    parser.add_argument("--workers", type=positive, default=1, help="of each contender (default: %(default)s)")
    parser.add_argument("--tls", action="store_true", help="TLS 1.3 between client and contenders")
    parser.add_argument("--http2", action="store_true", help="HTTP/2 between client and contenders; h2c without --tls")
    parser.add_argument("--body", type=positive, metavar="BYTES", help="of each of the upstream's answers")
    parser.add_argument("--scale", action="store_true", help="1 limit against 10,000 limits and 1,000,000 overrides")
    parser.add_argument(
        "--open-loop",
        nargs="?",
        type=subset(list(open_loop.SCENARIOS)),
        const=list(open_loop.SCENARIOS),
        metavar="SCENARIO,..",
        help=f"the tail at fixed rates; of {', '.join(open_loop.SCENARIOS)} (default: all)",
    )
    parser.add_argument("--rounds", type=positive, default=5, help="counted rounds (default: %(default)s)")
    parser.add_argument("--seconds", type=positive, default=4, help="of each turn (default: %(default)s)")
    parser.add_argument("--connections", type=positive, default=64, help="kept alive (default: %(default)s)")
    parser.add_argument(
        "--streams", type=positive, default=1, help="at once on each, for --http2 (default: %(default)s)"
    )
    parser.add_argument("--weir", metavar="PATH", help="a weir binary (default: built with cargo build --profile dist)")
    parser.add_argument("--baseline", metavar="PATH", help="another weir binary, measured beside it in the same rounds")
    known = ["weir", "weir+redis", *STARTERS]
    parser.add_argument("--only", metavar="NAME,..", type=subset(known), default=known, help=f"of {', '.join(known)}")
    parser.add_argument("--json", metavar="FILE", help="also write every figure of every round there")
    return parser


def main():
    options = parser().parse_args()
    # A run takes minutes; what is known is said at once, into a pipe too.
    sys.stdout.reconfigure(line_buffering=True)
    carry_out(run, options)


def run(options):
    needs_weir = options.scale or options.open_loop or any(name.startswith("weir") for name in options.only)
    weir = weir_program(options.weir) if needs_weir else None
    facts = machine(weir, [] if options.scale else options.only)
    for name, fact in facts.items():
        print(f"{name:8} {fact}")
    done = {"machine": facts, "options": vars(options)}
    given = Variant(options.workers, options.tls, options.http2, options.body)
    if options.all and given != Variant():
        raise Failure("--all measures the variants one by one; leave out --workers, --tls, --http2 and --body")
    if options.open_loop:
        done["open_loop"] = open_loop.run(weir, options, options.baseline and weir_program(options.baseline))
        return done
    if options.scale:
        done["scale"] = scale.run(weir, options, rounds)
        return done
    starters = {"weir": contenders.weir(weir), "weir+redis": contenders.weir_redis(weir)} | STARTERS
    chosen = [start for name, start in starters.items() if name in options.only]
    if options.baseline:
        baseline = weir_program(options.baseline)
        baselines = {"weir": contenders.weir, "weir+redis": contenders.weir_redis}
        chosen += [start(baseline, report.BASELINES[name]) for name, start in baselines.items() if name in options.only]
    done["variants"] = [run_variant(variant, chosen, options) for variant in (ALL if options.all else [given])]
    report.print_misses([row for variant in done["variants"] for row in variant["ratios"]])
    print(f"medians of {options.rounds} rounds of {options.seconds} s, {options.connections} connections")
    return done


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def subset(known):
    def parse(text):
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"`{unknown[0]}` is none of {', '.join(known)}")
        return names

    return parse


if __name__ == "__main__":
    main()
