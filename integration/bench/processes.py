"""Processes of a benchmark: started, awaited, measured through /proc, and ended by their pids."""

import os
import pathlib
import signal
import socket
import subprocess
import time

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

# Loading a million overrides takes seconds; everything else listens within one.
START_SECONDS = 60
STOP_SECONDS = 5

# The sockets of `free_ports`.
HELD = []


class Failure(Exception):
    """The benchmark cannot go on; the text says why."""


def free_ports(count):
    """Ports that the system assigns to nobody else until this process ends, as they stay bound to sockets that do not listen.

    A server with `SO_REUSEADDR` can bind and leave them, again and again.
    """
    sockets = [socket.socket() for _ in range(count)]
    for held in sockets:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
    HELD.extend(sockets)
    return [held.getsockname()[1] for held in sockets]


class Process:
    """A server under test, with its children."""

    def __init__(self, name, command, port, log):
        self.name, self.port, self.log = name, port, pathlib.Path(log)
        self.started = time.monotonic()
        with open(log, "wb") as output:
            self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)

    def wait_until_listening(self):
        """Returns the seconds from the start until the port accepted a connection."""
        while time.monotonic() - self.started < START_SECONDS:
            if self.child.poll() is not None:
                raise Failure(f"{self.name} ended with {self.child.returncode} at its start:\n{self.last_words()}")
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return time.monotonic() - self.started
            time.sleep(0.01)
        raise Failure(f"{self.name} does not listen after {START_SECONDS} s:\n{self.last_words()}")

    def last_words(self):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-10:])

    def pids(self):
        """The process and all its descendants."""
        children = {}
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit() and (fields := stat(int(entry.name))):
                children.setdefault(int(fields[1]), []).append(int(entry.name))
        found = [self.child.pid]
        for pid in found:
            found.extend(children.get(pid, []))
        return found

    def user_and_system_seconds(self):
        """User and system time of all threads of all its processes, and of children that have ended."""
        fields = [line for line in map(stat, self.pids()) if line]
        user = sum(int(line[11]) + int(line[13]) for line in fields)
        system = sum(int(line[12]) + int(line[14]) for line in fields)
        return user / TICKS_PER_SECOND, system / TICKS_PER_SECOND

    def cpu_seconds(self):
        return sum(self.user_and_system_seconds())

    def pss_mib(self):
        """Proportional set size: memory shared between a server's processes counts once."""
        total = 0
        for pid in self.pids():
            try:
                rollup = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
            except OSError:
                continue
            total += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
        return total / 1024

    def stop(self):
        """Ends it and whatever it started. A worker may outlive its master, so each pid is looked at by itself."""
        pids = {pid: fields[19] for pid in self.pids() if (fields := stat(pid))}
        self.child.terminate()
        try:
            self.child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        for pid, start_time in pids.items():
            # The start time tells a process from a later one with the same number.
            fields = stat(pid)
            if pid != self.child.pid and fields and fields[19] == start_time:
                os.kill(pid, signal.SIGKILL)


def seconds_of_others(own):
    """CPU seconds, since the start of the machine, that processes other than `own` took, and those that the host of a virtual one took."""
    total = int(pathlib.Path("/proc/stat").read_text().split(maxsplit=9)[8])
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in own and (fields := stat(int(entry.name))):
            total += sum(map(int, fields[11:15]))
    return total / TICKS_PER_SECOND


def stat(pid):
    """The fields of /proc/PID/stat after the name, which may itself contain blanks; None if it has ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
