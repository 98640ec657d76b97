#!/usr/bin/env python3
"""Load on Weir while everything about it changes: no request may fail.

Two Weir processes, one with TLS, proxy an nginx. For the whole time they are asked by wrk on connections that are kept
alive, by wrk on a connection for each request, by Python clients that compare each answer with its request, and with
--http2 by clients of HTTP/2 that do so too. Meanwhile the rules are rewritten every second, the certificate is replaced
every second, and each process hands over to a new one (SIGUSR2) as often as --handovers says, evenly over the time.

In the end it fails if a request did, or if a change was not seen: an answer by each version of the rules, a handshake
with each certificate, a new process after each hand-over, and the old one ended. wrk counts a connection that is closed
without an answer as a read error, and one whose last answer said `Connection: close` as none, which is how failures are
counted here. What this needs beside Weir comes with `integration/install.sh`.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import contenders
import loads
from checkers import Checker, Tally
from processes import Failure, free_ports, stat
from stage import ROOT, Certificate, Stage, program, weir_program

GRACE_SECONDS = 5
HANDOVER_SECONDS = 30
RULES = [
    "limits:\n  SoakOne: { by: ip, burst: 1000000000, count: 1000000, period: 60s }\n",
    "limits:\n  SoakTwo: { by: ip, burst: 1000000000, count: 1000000, period: 60s }\n",
]


class Weir:
    """A Weir that is handed over from process to process; its log is one for all of them."""

    def __init__(self, stage, binary, name, upstream, limits, certificate, options):
        self.name, self.port = name, free_ports(1)[0]
        admin = free_ports(1)[0]
        front = contenders.Front(workers=options.workers, certificate=certificate)
        more = ["--log-format", "json", "--grace", f"{GRACE_SECONDS}s"]
        command = contenders.weir_command(binary, upstream.port, (self.port, admin), front, limits, *more)
        self.process = stage.start(name, command, self.port)[0]
        self.pids = [self.process.child.pid]
        # A descriptor of the process itself, since a number may be given to another one after its end.
        self.handles = [os.pidfd_open(self.pids[0])]

    def successors(self):
        found = []
        for line in self.process.log.read_text(errors="replace").splitlines():
            try:
                fields = json.loads(line)["fields"]
            except (ValueError, KeyError):
                continue
            if fields.get("message") == "handed over":
                found.append(int(fields["successor"]))
        return found

    def hand_over(self):
        """Tells the newest process to, and waits until another one has taken over."""
        signal.pidfd_send_signal(self.handles[-1], signal.SIGUSR2)
        deadline = time.monotonic() + HANDOVER_SECONDS
        while len(self.successors()) < len(self.pids):
            if time.monotonic() > deadline or not is_alive(self.pids[-1]):
                raise Failure(
                    f"{self.name} did not hand over within {HANDOVER_SECONDS} s:\n{self.process.last_words()}"
                )
            time.sleep(0.05)
        self.pids.append(self.successors()[-1])
        self.handles.append(os.pidfd_open(self.pids[-1]))

    def outlived(self):
        """Processes that handed over and have not ended."""
        self.process.child.poll()
        return [pid for pid in self.pids[:-1] if is_alive(pid)]

    def stop(self):
        """Ends what is not the stage's child: the stage knows the first process only."""
        for pid, handle in zip(self.pids[1:], self.handles[1:], strict=True):
            for number in (signal.SIGTERM, signal.SIGKILL):
                deadline = time.monotonic() + GRACE_SECONDS + 2
                while is_alive(pid) and time.monotonic() < deadline:
                    try:
                        signal.pidfd_send_signal(handle, number)
                    except ProcessLookupError:
                        break
                    time.sleep(0.2)


def is_alive(pid):
    """Whether it runs; one that has ended and was not waited for does not."""
    fields = stat(pid)
    return fields is not None and fields[0] != "Z"


def replace(path, source):
    """As an editor or a deployment does: the whole new file takes the old one's place at once."""
    shutil.copy(source, f"{path}.new")
    os.replace(f"{path}.new", path)


class Changes(threading.Thread):
    """Rewrites rules and certificate every second, and hands over when it is time."""

    def __init__(self, stage, weirs, limits, certificate, options, tally, ends):
        super().__init__(name="changes", daemon=True)
        self.weirs, self.limits, self.certificate, self.ends, self.tally = weirs, limits, certificate, ends, tally
        self.rules = [stage.write(f"rules-{number}.yaml", text) for number, text in enumerate(RULES)]
        self.certificates = [Certificate(stage.directory, f"certificate-{number}") for number in range(2)]
        self.handovers_at = [
            options.seconds * (number + 1) / (options.handovers + 1) for number in range(options.handovers)
        ]

    def run(self):
        started, turn = time.monotonic(), 0
        while not self.ends.wait(max(0.0, started + turn + 1 - time.monotonic())):
            turn += 1
            replace(self.limits, self.rules[turn % 2])
            if self.certificate:
                replace(self.certificate.certificate, self.certificates[turn % 2].certificate)
                replace(self.certificate.key, self.certificates[turn % 2].key)
            self.tally.count("changes")
            if self.handovers_at and time.monotonic() - started >= self.handovers_at[0]:
                self.handovers_at.pop(0)
                for weir in self.weirs:
                    try:
                        weir.hand_over()
                    except Failure as failure:
                        self.tally.fail(weir.name, str(failure))
                    print(f"{time.monotonic() - started:7.2f} s  {weir.name} handed over: {weir.pids}", file=sys.stderr)


def upstream(stage):
    """An nginx that answers every path with itself."""
    [port] = free_ports(1)
    server = f"server {{ listen 127.0.0.1:{port}; location / {{ return 200 '$request_uri'; }} }}"
    return stage.start("upstream", contenders.nginx_command(stage, "upstream", 1, server), port)[0]


def wrk(name, port, options, tally, header=None, tls=False):
    """A thread that runs wrk for the whole time and counts what it failed."""

    def run():
        url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/{name.replace(' ', '-')}"
        try:
            figures = loads.wrk(
                url, options.seconds, options.connections, lambda: None, headers=[header] if header else []
            )
        except Failure as failure:
            tally.fail(name, str(failure))
            return
        with tally.lock:
            tally.counts["requests"] += figures["requests"]
            tally.counts[name] = figures["requests"]
        kinds = ("connect_errors", "read_errors", "write_errors", "timeouts", "statuses_above_399")
        for kind in kinds:
            for _ in range(figures[kind]):
                tally.fail(name, f"wrk's {kind}, at a time that it does not tell")

    thread = threading.Thread(target=run, name=name)
    thread.start()
    return thread


def http2(name, port, options, tally, tls):
    """A thread that waits for a process which checks answers of HTTP/2."""
    python = ROOT / "target/test-venv/bin/python"
    if not python.is_file():
        raise Failure("Python's h2 is not installed; run `integration/install.sh`")
    command = [python, ROOT / "integration/clients/h2_load.py", f"127.0.0.1:{port}", "--seconds", str(options.seconds)]
    child = subprocess.Popen([*command, *(["--tls"] if tls else [])], stdout=subprocess.PIPE, text=True)

    def run():
        said = child.communicate(timeout=options.seconds + 60)[0]
        try:
            figures = json.loads(said)
        except ValueError:
            tally.fail(name, f"the client broke: {said}")
            return
        with tally.lock:
            tally.counts["requests"] += figures["requests"]
            tally.counts[name] = figures["requests"]
            tally.counts["goaways"] += figures["goaways"]
        for failure in figures["failed"]:
            tally.fail(name, failure)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    return thread


def judge(tally, weirs, options):
    """What must have been seen and was not."""
    if len(tally.seen["rules"]) < len(RULES):
        tally.fail("rules", f"answers were limited by {sorted(tally.seen['rules'])} only")
    if not options.no_tls and len(tally.seen["certificates"]) < 2:
        tally.fail("certificate", f"only {len(tally.seen['certificates'])} was shown")
    for weir in weirs:
        if len(weir.pids) != 1 + options.handovers:
            tally.fail(weir.name, f"handed over {len(weir.pids) - 1} of {options.handovers} times")
        if not is_alive(weir.pids[-1]):
            tally.fail(weir.name, f"the last process ended:\n{weir.process.last_words()}")
        # The last hand-over may have been less than the grace ago.
        deadline = time.monotonic() + GRACE_SECONDS + 5
        while weir.outlived() and time.monotonic() < deadline:
            time.sleep(0.1)
        if outlived := weir.outlived():
            tally.fail(weir.name, f"processes {outlived} handed over and do not end")


def run(options):
    binary = weir_program(options.weir)
    ends = threading.Event()
    with tempfile.TemporaryDirectory(prefix="weir-soak-") as directory, Stage(directory) as stage:
        # nginx' workers are of another user when it is started by root.
        stage.directory.chmod(0o755)
        origin = upstream(stage)
        limits = stage.write("limits.yaml", RULES[0])
        certificate = None if options.no_tls else Certificate(stage.directory)
        weirs = [Weir(stage, binary, "weir", origin, limits, None, options)]
        if certificate:
            weirs.append(Weir(stage, binary, "weir-tls", origin, limits, certificate, options))
        try:
            tally = Tally()
            changes = Changes(stage, weirs, limits, certificate, options, tally, ends)
            checkers, loads_running = [], []
            for weir in weirs:
                tls = weir.name == "weir-tls"
                for number in range(2):
                    for how in ("kept", "each"):
                        checker = Checker(f"{weir.name}-{how}-{number}", weir.port, tally, ends, tls, how == "kept")
                        checkers.append(checker)
                        checker.start()
                loads_running.append(wrk(f"{weir.name} wrk kept", weir.port, options, tally, tls=tls))
                loads_running.append(wrk(f"{weir.name} wrk each", weir.port, options, tally, "Connection: close", tls))
                if options.http2:
                    loads_running.append(http2(f"{weir.name} h2", weir.port, options, tally, tls))
            changes.start()
            for load in loads_running:
                load.join()
            ends.set()
            for thread in [changes, *checkers]:
                thread.join(HANDOVER_SECONDS)
            judge(tally, weirs, options)
        finally:
            ends.set()
            if options.keep_logs:
                pathlib.Path(options.keep_logs).mkdir(parents=True, exist_ok=True)
                for log in stage.directory.glob("*.log"):
                    shutil.copy(log, options.keep_logs)
            for weir in weirs:
                weir.stop()
    return tally


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=300, help="(default: %(default)s)")
    parser.add_argument("--handovers", type=int, default=2, help="of each process (default: %(default)s)")
    parser.add_argument("--connections", type=int, default=4, help="of each wrk (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="of each Weir (default: %(default)s)")
    parser.add_argument("--no-tls", action="store_true", help="leave out the process with TLS, and the certificates")
    parser.add_argument("--http2", action="store_true", help="clients of HTTP/2 too, with Python's h2")
    parser.add_argument("--keep-logs", metavar="DIRECTORY", help="copy the processes' logs there in the end")
    parser.add_argument("--weir", metavar="PATH", help="a weir binary (default: built with cargo build --profile dist)")
    options = parser.parse_args()
    try:
        program("wrk")
        tally = run(options)
    except Failure as failure:
        sys.exit(f"{pathlib.Path(__file__).name}: {failure}")
    for what, count in sorted(tally.counts.items()):
        print(f"{what:24}{count:12,}")
    print("".join(f"{what + ' seen':24}{len(tally.seen[what]):12,}\n" for what in ("rules", "certificates")), end="")
    if tally.failed:
        print("\n".join(tally.failures))
        sys.exit(f"{pathlib.Path(__file__).name}: {tally.failed} failures in {options.seconds} s")
    print(f"no request failed in {options.seconds} s")


if __name__ == "__main__":
    main()
