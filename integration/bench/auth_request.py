#!/usr/bin/env python3
"""How fast nginx is when Weir answers its `auth_request`, against the same nginx when another nginx answers it.

The nginx in front is that of `integration/examples/nginx`, as it stands but for ports, and asks over connections that it
keeps. One limit per client address, far above the load, is charged by every check; the other nginx answers each check with
`return 204;`. The two take turns, round by round, so that a machine which slows down slows both; the first round warms up
and is not counted. Requests per second are medians over the rounds, the ratio is the median of the rounds' ratios: at
least 0.9 is asked. What this needs beside Weir comes with `integration/install.sh`.
"""

import argparse
import re
import statistics
import tempfile

import contenders
import loads
from processes import Failure, free_ports
from stage import ROOT, Stage, carry_out, weir_program

TARGET = 0.9
EXAMPLE = ROOT / "integration" / "examples" / "nginx" / "nginx.conf"
# Where the example's parts are.
GATEWAY, APPLICATION, CHECK = 8000, 3000, 9002
# No server answers a request in less CPU time, in seconds.
LEAST_CPU = 1e-6


def front(stage, name, application, check):
    """The example's nginx, with its checks at this port."""
    [port] = free_ports(1)
    _, found, http = EXAMPLE.read_text(encoding="utf-8").partition("\nhttp {\n")
    if not found:
        raise Failure(f"{EXAMPLE} has no `http` block")
    http = http.rstrip().removesuffix("}")
    http = re.sub(r"\binclude (weir-\w+\.conf);", lambda name: (EXAMPLE.parent / name[1]).read_text(encoding="utf-8"), http)
    for place, moved in [
        (f"listen {GATEWAY};", f"listen 127.0.0.1:{port};"),
        (f"server 127.0.0.1:{APPLICATION};", f"server 127.0.0.1:{application};"),
        (f"server 127.0.0.1:{CHECK};", f"server 127.0.0.1:{check};"),
    ]:
        if http.count(place) != 1:
            raise Failure(f"{EXAMPLE} does not say `{place}` once")
        http = http.replace(place, moved)
    command = contenders.nginx_command(stage, f"front-{name}", 1, http)
    return contenders.Contender(name, [stage.start(f"front-{name}", command, port)[0]])


def weir_check(stage, binary):
    """A Weir with one worker and its check listener; returns its process and port."""
    port, admin = free_ports(2)
    limits = stage.write("limits.yaml", contenders.WEIR_LIMITS["passing"])
    command = [binary, "serve", "--check", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}", "--workers", "1"]
    return stage.start("weir", [*command, "--limits", limits], port)[0]


def nginx_check(stage):
    """An nginx that lets everything pass."""
    [port] = free_ports(1)
    server = f"server {{ listen 127.0.0.1:{port}; location / {{ return 204; }} }}"
    return stage.start("checker", contenders.nginx_command(stage, "checker", 1, server), port)[0]


def turn(asking, checker, seconds, connections, has_fields):
    """One turn of one front: its figures, and the CPU time of the checks alone."""
    url = f"http://127.0.0.1:{asking.port}/"
    before = checker.cpu_seconds()
    figures = loads.wrk(url, seconds, connections, lambda: None)
    used = checker.cpu_seconds() - before
    if not figures["requests"] or figures["statuses_above_399"] or figures["socket_errors"]:
        raise Failure(f"{asking.name}: {figures}\n{asking.processes[-1].last_words()}")
    # An nginx that does not reach Weir lets requests pass as well, and is fast for the wrong reason.
    if used < LEAST_CPU * figures["requests"]:
        raise Failure(f"{asking.name}: {figures['requests']} requests, but the check used {used} s of CPU time")
    fields = loads.fields(url)
    if ("ratelimit" in fields) != has_fields:
        raise Failure(f"{asking.name}: the answer has the fields {fields}")
    rps = figures["requests"] / figures["micros"] * 1e6
    return {"rps": rps, "check_cpu_us": used / figures["requests"] * 1e6, "p50_us": figures["p50"], "p99_us": figures["p99"]}


def run(options):
    weir = weir_program(options.weir)
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as directory, Stage(directory) as stage:
        # nginx' workers are of another user when it is started by root.
        stage.directory.chmod(0o755)
        application = contenders.upstream(stage)
        checkers = {"weir": weir_check(stage, weir), "nginx": nginx_check(stage)}
        fronts = {name: front(stage, name, application.port, checker.port) for name, checker in checkers.items()}
        turns = {name: [] for name in fronts}
        for number in range(options.rounds + 1):
            for name, asking in fronts.items():
                seconds = options.seconds if number else 1
                figures = turn(asking, checkers[name], seconds, options.connections, name == "weir")
                if number:
                    turns[name].append(figures)
    print(f"{'checks by':12}{'req/s':>10}{'p50 us':>10}{'p99 us':>10}{'CPU us/check':>15}")
    for name, of_one in turns.items():
        medians = {key: statistics.median(figures[key] for figures in of_one) for key in of_one[0]}
        print("{:12}{rps:10,.0f}{p50_us:10,.0f}{p99_us:10,.0f}{check_cpu_us:15.2f}".format(name, **medians))
    ratio = statistics.median(
        ours["rps"] / other["rps"] for ours, other in zip(turns["weir"], turns["nginx"], strict=True)
    )
    verdict = "HIT" if ratio >= TARGET else "MISSED"
    print(f"requests per second, weir / nginx: {ratio:.2f}, at least {TARGET}: {verdict}")
    return {"turns": turns, "ratio": ratio, "at_least": TARGET}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=4, help="of each turn (default: %(default)s)")
    parser.add_argument("--connections", type=int, default=32, help="kept alive (default: %(default)s)")
    parser.add_argument("--weir", metavar="PATH", help="a weir binary (default: built with cargo build --profile dist)")
    parser.add_argument("--json", metavar="FILE", help="also write every figure of every round there")
    options = parser.parse_args()
    carry_out(run, options)


if __name__ == "__main__":
    main()
