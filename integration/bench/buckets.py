#!/usr/bin/env python3
"""The bytes of a bucket in Redis, by algorithm: the growth of used_memory over many buckets, keys and expiry included.

    python3 integration/bench/buckets.py [SERVER ...]

SERVER is a program: redis-server unless given. `integration/install.sh` unpacks others into target/test-servers.
"""

import argparse
import subprocess
import tempfile

from processes import Failure, free_ports
from stage import ROOT, Stage, program

KEYS = 100_000
HOUR = 3_600_000_000

# The words of a charge, and how often each bucket is charged; `{}` is the number of the charge.
CHARGES = {
    "gcra": (f"1000 {HOUR // 1000} 1 1 spend", 1),
    "fixed_window": (f"1000 1 clock:{HOUR} 1 spend", 1),
    "sliding_window": (f"1000 1000 sliding_window:{HOUR}:1 1 spend", 1),
    "sliding_log, 1 entry": (f"1000 1000 sliding_log:{HOUR} 1 spend", 1),
    "sliding_log, 10 entries": (f"1000 1000 sliding_log:{HOUR} 1 spend", 10),
    "concurrency, 1 slot": (f"1000 1000 concurrency:{HOUR}:{{:032x}} 1 spend", 1),
    "concurrency, 10 slots": (f"1000 1000 concurrency:{HOUR}:{{:032x}} 1 spend", 10),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="*", metavar="SERVER")
    servers = parser.parse_args().servers or [program("redis-server")]
    script = subprocess.run([ROOT / "lua/assemble", "decide.lua"], capture_output=True, text=True, check=True).stdout
    rows = {name: [] for name in CHARGES}
    for server in servers:
        for name, (words, times) in CHARGES.items():
            rows[name].append(bytes_of_bucket(server, script, words, times))
    names = [version(server) for server in servers]
    print("| bytes of a bucket |", " | ".join(names), "|")
    print("|---|" + "---:|" * len(names))
    for name, sizes in rows.items():
        print(f"| {name} |", " | ".join(f"{size:.0f}" for size in sizes), "|")


def version(server):
    """`Redis server v=7.0.15 ...` or `Valkey server v=...`."""
    words = subprocess.run([server, "--version"], capture_output=True, text=True, check=True).stdout.split()
    return f"{words[0]} {words[2].removeprefix('v=')}"


def bytes_of_bucket(server, script, words, times):
    with tempfile.TemporaryDirectory(prefix="weir-buckets-") as directory, Stage(directory) as stage:
        [port] = free_ports(1)
        command = [server, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", directory]
        stage.start("redis", command, port)
        loaded = cli(port, ["-x", "SCRIPT", "LOAD"], script)
        before = used_memory(port)
        calls = []
        for first in range(0, KEYS, 50):
            keys = " ".join(f"weir:{{0}}:PerAddress:192.0.{n // 250}.{n % 250 + 1}" for n in range(first, first + 50))
            for charge in range(times):
                own = f' "{words.format(charge)}"' * 50
                calls.append(f'EVALSHA {loaded} 50 {keys} "" 0{own}')
        replies = cli(port, [], "\n".join(calls)).splitlines()
        outcomes = [reply for reply in replies if reply.startswith("ERR") or "error" in reply]
        if outcomes:
            raise Failure(outcomes[0])
        return (used_memory(port) - before) / KEYS


def cli(port, arguments, text):
    command = [program("redis-cli"), "-p", str(port), *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout.strip()


def used_memory(port):
    lines = cli(port, ["INFO", "memory"], "").splitlines()
    return int(next(line for line in lines if line.startswith("used_memory:")).partition(":")[2])


if __name__ == "__main__":
    main()
