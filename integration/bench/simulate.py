"""Measures `weir simulate` on a gzip log: lines per second and core, and peak memory, beside `zcat | wc -l`.

    python3 integration/bench/simulate.py [--lines 10000000] [--binary target/dist/weir] [--log access.log.gz]

The log is the same for the same number of lines: combined lines of a day, whose addresses follow Zipf's law. It takes minutes to
write, so `--log` keeps it for the next run. Several binaries (`--binary` may be repeated) read it in turns, and the least time of
each counts, because other processes on the machine can only make a run slower.
"""

import argparse
import bisect
import gzip
import os
import random
import resource
import subprocess
import sys
import tempfile
import time

LIMITS = "limits:\n  PerIp: { by: ip/64, burst: 40, count: 20, period: 1s }\n"
ADDRESSES = 200_000
PATHS = ["/", "/v1/orders", "/v1/orders/17", "/search?q=shoes", "/static/app.js", "/login", "/v1/accounts/7/items?page=2"]
AGENTS = ["curl/8.5.0", "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0", "python-requests/2.32"]
BATCH = 50_000


def write_log(path, lines):
    chance = random.Random(15)
    total, cumulative = 0.0, []
    for rank in range(1, ADDRESSES + 1):
        total += 1 / rank
        cumulative.append(total)
    with gzip.open(path, "wb", compresslevel=6) as log:
        for start in range(0, lines, BATCH):
            batch = []
            for number in range(start, min(start + BATCH, lines)):
                rank = bisect.bisect(cumulative, chance.random() * total)
                address = f"{11 + rank % 80}.{rank // 80 % 256}.{rank // 20480}.{rank % 251}"
                second = number * 86_400 // lines
                stamp = f"22/Nov/2026:{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02} +0000"
                path_, agent = chance.choice(PATHS), chance.choice(AGENTS)
                size = chance.randrange(100, 20_000)
                batch.append(f'{address} - - [{stamp}] "GET {path_} HTTP/1.1" 200 {size} "-" "{agent}"\n')
            log.write("".join(batch).encode())


def measure(command, **options):
    """Runs a command; returns its wall time, CPU time and peak memory in MiB."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, **options)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - start
    if status:
        sys.exit(f"{command} failed: {status}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, usage.ru_maxrss / 1024


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--lines", type=int, default=10_000_000)
    arguments.add_argument("--binary", action="append", help="defaults to target/dist/weir")
    arguments.add_argument("--log", help="the log to read; it is written if it does not exist")
    arguments.add_argument("--runs", type=int, default=3)
    arguments.add_argument("--flags", default="", help="more flags of `weir simulate`")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log, limits = given.log or os.path.join(folder, "access.log.gz"), os.path.join(folder, "limits.yaml")
        if not os.path.exists(log):
            write_log(log, given.lines)
        with open(limits, "w", encoding="utf-8") as file:
            file.write(LIMITS)
        print(f"{given.lines} lines, {os.path.getsize(log) / 1e6:.0f} MB")
        flags = [log, "--limits", limits, "--format", "json", *given.flags.split()]
        commands = {"zcat | wc -l": ["sh", "-c", f"zcat {log} | wc -l"]}
        for binary in given.binary or ["target/dist/weir"]:
            commands[f"{binary} simulate"] = [binary, "simulate", *flags]
        runs = {name: [] for name in commands}
        for _ in range(given.runs):
            for name, command in commands.items():
                runs[name].append(measure(command))
        for name, measured in runs.items():
            (wall, cpu, _), memory = min(measured, key=lambda run: run[1]), max(run[2] for run in measured)
            rate, per_core = given.lines / wall / 1e6, given.lines / cpu / 1e6
            print(f"{name}: {wall:.1f} s, {cpu:.1f} s of CPU, {rate:.2f} million lines/s, "
                  f"{per_core:.2f} million lines/s per core, {memory:.0f} MiB")


if __name__ == "__main__":
    main()
