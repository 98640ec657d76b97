"""That limits and overrides which cannot apply cost a request nothing: Weir with few rules against Weir with many.

The same request meets exactly one limit in both. In the large file that limit is one of 10,000 on as many paths, and
has 1,000,000 overrides for other addresses than the client's.
"""

import ipaddress
import statistics
import tempfile

import contenders
import report
from processes import free_ports
from stage import Stage

LIMITS = 10_000
OVERRIDES = 1_000_000
CHOSEN = LIMITS // 2
PATH = f"/api/{CHOSEN}/orders"
NUMBERS = f"burst: {contenders.AMPLE}, count: 1000000, period: 60s"


def limit(number):
    return f"  Limit{number}: {{ match: {{ path: /api/{number}/orders }}, by: ip, {NUMBERS} }}\n"


def write_files(stage):
    """The two rules files and the overrides."""
    few = stage.write("few.yaml", "limits:\n" + limit(CHOSEN))
    many = stage.write("many.yaml", "limits:\n" + "".join(limit(number) for number in range(LIMITS)))
    first = int(ipaddress.IPv4Address("10.0.0.0"))
    lines = (
        f"Limit{CHOSEN}:{ipaddress.IPv4Address(first + number)}: {{ burst: 20, count: 40, period: 1s }}\n"
        for number in range(OVERRIDES)
    )
    return few, many, stage.write("overrides.yaml", "".join(lines))


def run(binary, options, rounds):
    """Starts both, loads both in turn, prints and returns the figures."""
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as directory, Stage(directory) as stage:
        few, many, overrides = write_files(stage)
        upstream = contenders.upstream(stage)
        front = contenders.Front(workers=options.workers)
        running, figures = [], {}
        for name, limits, more in [("few", few, []), ("many", many, ["--overrides", overrides])]:
            ports = free_ports(2)
            command = contenders.weir_command(binary, upstream.port, ports, front, limits, *more)
            process, seconds = stage.start(name, command, ports[0])
            running.append(contenders.Contender(name, [process]))
            figures[name] = {"load_seconds": seconds, "pss_mib": process.pss_mib()}
        turns = rounds(running, front, "passing", PATH, options)
    for name, of_one in turns.items():
        figures[name] |= {"cpu_us": statistics.median(turn["cpu_us"] for turn in of_one), "rounds": of_one}
    figures["cpu_ratio"] = report.ratio(turns["many"], turns["few"])
    print(f"\n{'rules':42}{'CPU us/req':>12}{'load s':>10}{'PSS MiB':>10}")
    for name, title in [("few", "1 limit"), ("many", f"{LIMITS:,} limits, {OVERRIDES:,} overrides")]:
        row = figures[name]
        print(f"{title:42}{row['cpu_us']:12.2f}{row['load_seconds']:10.2f}{row['pss_mib']:10.1f}")
    print(f"\nCPU per request, many / few: {figures['cpu_ratio']:.3f}")
    return figures
