#!/usr/bin/env python3
"""What idle gateways cost Redis: the CPU of a redis-server at which gateways of one worker serve nobody.

    cargo build --release && python3 integration/bench/idle.py
    python3 integration/bench/idle.py --binary target/debug/weir --gateways 20 --seconds 20
"""

import argparse
import pathlib
import subprocess
import tempfile
import time

from processes import Process, free_ports

RULES = "limits: { PerId: { by: { header: x-id }, count: 10, period: 1s } }\n"


def info(port, section):
    """The fields of a section of INFO."""
    command = ["redis-cli", "-p", str(port), "INFO", section]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def cpu(port):
    fields = info(port, "cpu")
    return float(fields["used_cpu_user"]) + float(fields["used_cpu_sys"])


def measure(port, seconds):
    """Percent of a core."""
    before = cpu(port)
    time.sleep(seconds)
    return (cpu(port) - before) / seconds * 100


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default="target/release/weir")
    parser.add_argument("--gateways", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20)
    arguments = parser.parse_args()
    processes = []
    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(directory)
        rules = folder / "limits.yaml"
        rules.write_text(RULES)
        try:
            port, *admins = free_ports(1 + arguments.gateways)
            server = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
            processes.append(Process("redis-server", server, port, folder / "redis.log"))
            processes[0].wait_until_listening()
            alone = measure(port, arguments.seconds)
            for admin in admins:
                command = [arguments.binary, "serve", "--limits", str(rules), "--upstream", "echo", "--workers", "1",
                           "--proxy", "127.0.0.1:0", "--admin", f"127.0.0.1:{admin}",
                           "--store", f"redis://127.0.0.1:{port}"]
                processes.append(Process("weir", command, admin, folder / f"{admin}.log"))
            for process in processes:
                process.wait_until_listening()
            time.sleep(2)
            subprocess.run(["redis-cli", "-p", str(port), "CONFIG", "RESETSTAT"], stdout=subprocess.DEVNULL, check=True)
            busy = measure(port, arguments.seconds)
            calls = {name: fields.split(",")[0].removeprefix("calls=") for name, fields in info(port, "commandstats").items()}
        finally:
            for process in processes:
                process.child.terminate()
            for process in processes:
                process.child.wait()
    share = (busy - alone) / arguments.gateways * 100
    print(f"redis-server alone: {alone:.2f} % of a core, with {arguments.gateways} idle gateways: {busy:.2f} %")
    print(f"100 idle gateways: {share:.2f} % of a core")
    print("calls: " + ", ".join(f"{name.removeprefix('cmdstat_')} {count}" for name, count in sorted(calls.items())))


if __name__ == "__main__":
    main()
