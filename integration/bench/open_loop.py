"""The tail of the latency at fixed rates: requests come by a schedule that waits for no answer.

wrk and h2load ask again when an answer has come: while a proxy stalls they ask for nothing, and the stall counts once for
each connection. The client here, open_loop.c, sends when it is time and counts from that time. Each run first holds it to
stalls that are known: an nginx stands still for 100 ms each second, and the percentiles must show that.

For each scenario the client first finds how many requests per second each contender passes at most, in a closed loop. The rates are
shares of what the slower one of Weir and nginx does, so that all are asked for the same. They take turns, round by round.

    passing   one limit per client address, far above the load
    ids       100,000 ids in turn, from a header, each with a bucket of its own
    reload    as passing, and once a second a number of the limit changes and the contender gets a SIGHUP. Weir keeps its
              connections; nginx starts another worker, and the old one closes its connections when they are idle, so that the
              client opens them again. A request counts from when it was to be sent, as its user sees it. HAProxy would lose
              its counts and takes no part
    flood     as ids, while wrk sends requests of one id, nearly all denied, as fast as 16 connections can
    pipelined the same, but wrk sends 64 requests on each of its connections before it reads their answers

The clients have the first core and a contender the last one, also for its reloads. The client is the upstream too, in one loop on one
thread: processes that share a core wait for each other's slices, and a slice of 4 ms is a p99. For the same reason, client and contender
have real-time priority (SCHED_RR) where that is allowed: what else runs now and then does not make one of them wait. `late p99` is by how much the client missed its schedule:
where it comes near the p99, the client is what is measured. A turn in which other processes, or the host of a virtual machine, took
more than 2 % of the cores is repeated, whatever it showed; after three such turns the least disturbed counts. `others %` is that share.
"""

import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import contenders
import loads
import report
from processes import Failure, free_ports, seconds_of_others
from stage import Stage, program

SHARES = (30, 60, 90)
IDS = 100_000
# The contenders' scenario, the ids, the shares, and who takes part beside Weir.
SCENARIOS = {
    "passing": ("passing", 0, SHARES, ("nginx", "haproxy")),
    "ids": ("by-id", IDS, SHARES, ("nginx", "haproxy")),
    "reload": ("passing", 0, SHARES, ("nginx",)),
    # A higher share and the flood would be more than the whole.
    "flood": ("by-id", IDS, SHARES[:1], ("nginx", "haproxy")),
    "pipelined": ("by-id", IDS, SHARES[:1], ("nginx", "haproxy")),
}
# By scenario, the requests that a connection of the flood sends at once.
FLOODS = {"flood": 1, "pipelined": 64}
STARTERS = {"nginx": contenders.nginx, "haproxy": contenders.haproxy}
FLOOD_CONNECTIONS = 16
CALLS_A_SECOND = 4
SATURATION_SECONDS = 1
COLUMNS = {
    "p50": "p50 us",
    "p99": "p99 us",
    "p999": "p99.9 us",
    "max": "max us",
    "late_p99": "late p99",
    "unanswered": "unanswered",
    "reopened": "reopened",
    "cpu_us": "CPU us/req",
    "others": "others %",
}
DIGIT = ("cpu_us", "others")
JUDGED = {"p99": "p99", "p999": "p99.9"}
AT_MOST = 1.0

OTHERS_AT_MOST = 2.0
TURNS_AT_MOST = 3
RELOADS = 'weir_config_reloads_total{result="success"}'
STALL_SECONDS = 0.1
STALL_RATE = 2000
# The upstream stands still for a tenth of the time or a little less: one in a hundred requests waits for 89 ms.
STALLED_AT_LEAST = {"p95": 25_000, "p99": 75_000}


def pin(process, cores, real_time):
    for pid in process.pids():
        for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores)
            if real_time:
                os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(1))


class Field:
    """A stage with an upstream, its contenders and the client."""

    def __init__(self, stage, options):
        # nginx' workers are of another user when it is started by root.
        stage.directory.chmod(0o755)
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            raise Failure("the open loop needs two cores: one of them is the contender's")
        self.core = {cores[-1]}
        self.stage, self.options = stage, options
        self.prefix = ["taskset", "-c", str(cores[0])]
        real_time = ["chrt", "-r", "1"]
        self.real_time = subprocess.run([*real_time, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
        self.client = [*self.prefix, *(real_time if self.real_time else []), stage.compile("open_loop")]
        [self.upstream_port] = free_ports(1)

    def start(self, starters, scenario):
        running = [start(self.stage, scenario, self.upstream_port, contenders.Front()) for start in starters]
        for contender in running:
            pin(contender.processes[-1], self.core, self.real_time)
        return running

    def check_client(self):
        """That the client shows a stall to the full: one that waits for answers would show it once for each connection."""
        upstream, calls = contenders.upstream(self.stage), 0
        worker = upstream.pids()[-1]

        def stall():
            nonlocal calls
            calls += 1
            if calls % CALLS_A_SECOND == 0:
                os.kill(worker, signal.SIGSTOP)
                time.sleep(STALL_SECONDS)
                os.kill(worker, signal.SIGCONT)

        figures = loads.open_loop(self.client, upstream.port, STALL_RATE, 4, self.options.connections, 0, stall)
        shown = ", ".join(f"{name} {figures[name] / 1000:.1f} ms" for name in ("p50", "p95", "p99"))
        if any(figures[percentile] < least for percentile, least in STALLED_AT_LEAST.items()):
            raise Failure(f"the open-loop client hides stalls of 100 ms: {shown}")
        print(f"\nreal-time priority: {'yes' if self.real_time else 'not allowed, so that other processes make p99s of 1 to 4 ms'}")
        print(f"the client, asking a server that stands still for 100 ms each second: {shown}")

    def ask(self, contender, rate, seconds, ids, while_it_runs=lambda: None):
        connections, port = self.options.connections, self.upstream_port
        return loads.open_loop(self.client, contender.port, rate, seconds, connections, ids, while_it_runs, port)

    def saturation(self, contender, ids):
        """Requests per second in a closed loop."""
        figures = self.ask(contender, 0, SATURATION_SECONDS, ids)
        return figures["requests"] / figures["micros"] * 1e6

    def turn(self, contender, scenario, rate):
        """The figures of the first turn that nobody disturbed, or of the least disturbed one."""
        turns = []
        while len(turns) < TURNS_AT_MOST and (not turns or turns[-1]["others"] > OTHERS_AT_MOST):
            turns.append(self.load(contender, scenario, rate))
        return min(turns, key=lambda turn: max(turn["others"], OTHERS_AT_MOST))

    def load(self, contender, scenario, rate):
        ids, seconds, calls, flood = SCENARIOS[scenario][1], self.options.seconds, 0, None

        def while_it_runs():
            nonlocal calls, flood
            calls += 1
            # Within the time that is not counted. Before and after there is no upstream.
            if scenario in FLOODS and calls == 1:
                flood = self.flood(contender, seconds - 1, FLOODS[scenario])
            if scenario == "reload" and calls % CALLS_A_SECOND == 2:
                contender.reload()

        reloads = contender.counted(RELOADS)
        others, begun = self.seconds_of_others(contender), time.monotonic()
        before = sum(contender.user_and_system_seconds())
        figures = self.ask(contender, rate, seconds, ids, while_it_runs)
        figures["cpu_us"] = (sum(contender.user_and_system_seconds()) - before) / figures["requests"] * 1e6
        # wrk has ended but is not reaped, so its CPU time can still be read.
        others = self.seconds_of_others(contender, {flood.pid} if flood else set()) - others
        figures["others"] = others / (time.monotonic() - begun) / os.cpu_count() * 100
        who = f"{contender.name}, {scenario} at {rate} per second"
        if figures["denied"]:
            raise Failure(f"{who}: {figures['denied']} denied")
        # nginx does not tell, but its old workers close their connections.
        if scenario == "reload" and not (contender.counted(RELOADS) - reloads or figures["reopened"]):
            raise Failure(f"{who}: it has not reloaded")
        if flood:
            said = loads.wrk_figures(flood.communicate(timeout=loads.END_SECONDS)[0])
            if said["statuses_above_399"] < 0.99 * said["requests"]:
                raise Failure(f"{who}: of the flood's {said['requests']} only {said['statuses_above_399']} denied")
            figures["flood_rps"] = said["requests"] / said["micros"] * 1e6
        return figures

    def seconds_of_others(self, contender, own=frozenset()):
        return seconds_of_others({os.getpid()}.union(own, *(process.pids() for process in contender.processes)))

    def flood(self, contender, seconds, at_once):
        # It asks as fast as it can, and the client whose latency counts comes first, by its priority if that is allowed.
        polite = [] if self.real_time else ["nice"]
        command = [*self.prefix, *polite, program("wrk"), "-t1", f"-c{FLOOD_CONNECTIONS}", f"-d{seconds}s"]
        command += ["-H", f"{contenders.ID_HEADER}: flood", "-s", str(loads.HERE / "wrk.lua")]
        environment = os.environ | ({"WRK_AT_ONCE": str(at_once)} if at_once > 1 else {})
        return subprocess.Popen([*command, f"http://127.0.0.1:{contender.port}/"], env=environment, **loads.OUTPUT)


def base_rate(field, running, scenario):
    """The requests per second that the slower one of Weir and nginx passes at most; the first turn warms up."""
    turns = {contender.name: [] for contender in running}
    for _ in range(3):
        for contender in running:
            turns[contender.name].append(field.saturation(contender, SCENARIOS[scenario][1]))
    found = {name: statistics.median(of_one[1:]) for name, of_one in turns.items()}
    said = ", ".join(f"{name} {rps:,.0f}" for name, rps in found.items())
    print(f"{scenario}, closed loop, requests per second: {said}")
    return min(rps for name, rps in found.items() if name != "haproxy")


def run_scenario(scenario, starters, options):
    """Rows of figures: one for each share and contender."""
    of_contenders, _, shares, peers = SCENARIOS[scenario]
    rows = []
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as directory, Stage(directory) as stage:
        field = Field(stage, options)
        chosen = [start for name, start in starters.items() if name in ("weir", "baseline", *peers)]
        running = field.start(chosen, of_contenders)
        base = base_rate(field, running, scenario)
        for share in shares:
            rate, turns = int(base * share / 100), {contender.name: [] for contender in running}
            for number in range(options.rounds):
                for contender in running:
                    turns[contender.name].append(field.turn(contender, scenario, rate))
                print(f"{scenario}, {share} %: round {number + 1} of {options.rounds}", file=sys.stderr)
            rows += [
                {"scenario": scenario, "share": share, "rate": rate, "name": name, "rounds": of_one}
                | {figure: statistics.median(turn[figure] for turn in of_one) for figure in of_one[0]}
                for name, of_one in turns.items()
            ]
    return rows


def ratios(rows):
    """Weir against each contender of the same scenario and share; the goal is against nginx."""
    found = []
    for own in (row for row in rows if row["name"] == "weir"):
        for peer in rows:
            same = (peer["scenario"], peer["share"]) == (own["scenario"], own["share"])
            if not same or peer is own:
                continue
            for figure in JUDGED:
                value = report.ratio(own["rounds"], peer["rounds"], figure)
                at_most = AT_MOST if peer["name"] == "nginx" else None
                row = {key: own[key] for key in ("scenario", "share", "rate")}
                row |= {"figure": figure, "peer": peer["name"], "ratio": value, "at_most": at_most}
                found.append(row | {"hit": None if at_most is None else value <= at_most})
    return found


def print_rows(rows):
    print(f"\n{'open loop':8}{'share':>6}{'rate':>8}  {'':9}" + "".join(f"{title:>12}" for title in COLUMNS.values()))
    for row in rows:
        cells = "".join(f"{row[column]:12,.{int(column in DIGIT)}f}" for column in COLUMNS)
        flood = f"   flood {row['flood_rps']:,.0f}/s" if "flood_rps" in row else ""
        print(f"{row['scenario']:8}{row['share']:5} %{row['rate']:8,}  {row['name']:9}{cells}{flood}")


def print_ratios(found):
    print("\nopen loop: Weir / peer")
    for row in found:
        verdict = "" if row["hit"] is None else f"   at most {row['at_most']}: {'HIT' if row['hit'] else 'MISS'}"
        print(f"{row['scenario']:8} {row['share']} %  {JUDGED[row['figure']]:6} / {row['peer']:9} {row['ratio']:7.3f}{verdict}")


def run(binary, options, baseline=None):
    """Measures the scenarios of `options.open_loop`, prints and returns all figures."""
    starters = {"weir": contenders.weir(binary)}
    if baseline:
        starters["baseline"] = contenders.weir(baseline, "baseline")
    starters |= {name: start for name, start in STARTERS.items() if name in options.only}
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as directory, Stage(directory) as stage:
        Field(stage, options).check_client()
    rows = [row for scenario in options.open_loop for row in run_scenario(scenario, starters, options)]
    print_rows(rows)
    found = ratios(rows)
    print_ratios(found)
    return {"rows": rows, "ratios": found}
