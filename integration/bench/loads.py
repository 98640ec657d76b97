"""The load generators: wrk and open_loop.c for HTTP/1.1, h2load for HTTP/2, curl for one request whose answer is looked at."""

import json
import os
import pathlib
import re
import subprocess
import tempfile

from processes import Failure
from stage import program

HERE = pathlib.Path(__file__).resolve().parent
# wrk waits for answers that are under way; h2load closes and prints.
END_SECONDS = 10
OUTPUT = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}


def wrk(url, seconds, connections, while_it_runs, pause_ms=None, headers=()):
    """wrk's figures: requests, micros, p50, p99 and the counts of errors that wrk.lua prints.

    With `pause_ms` each connection pauses for that long on average between an answer and its next request.
    """
    command = [program("wrk"), "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "5s"]
    command += [part for header in headers for part in ("-H", header)]
    environment = os.environ | ({"WRK_PAUSE_MS": str(pause_ms)} if pause_ms else {})
    return wrk_figures(watch([*command, "-s", str(HERE / "wrk.lua"), url], seconds, while_it_runs, environment))


def wrk_figures(said):
    try:
        return json.loads(said.splitlines()[-1])
    except (IndexError, ValueError):
        raise Failure(f"wrk said no figures:\n{said}") from None


def open_loop(command, port, rate, seconds, connections, ids, while_it_runs, upstream_port=None):
    """The figures of open_loop.c, whose program `command` runs."""
    arguments = [port, rate, seconds, connections, ids] + ([upstream_port] if upstream_port else [])
    said = watch([*command, *map(str, arguments)], seconds, while_it_runs)
    try:
        return json.loads(said)
    except ValueError:
        raise Failure(f"the open-loop client said no figures:\n{said}") from None


def h2load(url, seconds, connections, streams, while_it_runs):
    """The same figures from h2load, which asks on `streams` streams of each connection at once.

    It prints no percentiles, so they come from the log that it writes of every request.
    """
    with tempfile.TemporaryDirectory(prefix="weir-h2load-") as directory:
        log = pathlib.Path(directory) / "requests"
        command = [program("h2load"), "-t1", f"-c{connections}", f"-m{streams}", f"-D{seconds}", f"--log-file={log}"]
        said = watch([*command, url], seconds, while_it_runs)
        figures = h2load_figures(said)
        took = sorted(int(line.split("\t")[2]) for line in log.read_text(encoding="ascii").splitlines())
    if not took:
        raise Failure(f"h2load got no answer:\n{said}")
    figures["micros"] = seconds * 1_000_000
    return figures | {"p50": took[len(took) // 2], "p99": took[len(took) * 99 // 100]}


def h2load_figures(said):
    """Counts of answers and errors."""
    counts = re.search(r"^requests: .* (\d+) done, .* (\d+) errored, (\d+) timeout", said, re.MULTILINE)
    statuses = re.search(r"^status codes: (\d+) 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx", said, re.MULTILINE)
    if not counts or not statuses:
        raise Failure(f"h2load said no figures:\n{said}")
    done, errored, timed_out = map(int, counts.groups())
    _, _, denied, failed = map(int, statuses.groups())
    return {
        # What ended with an error is done as well.
        "requests": done - errored,
        "statuses_above_399": denied + failed,
        "socket_errors": errored + timed_out,
    }


def watch(command, seconds, while_it_runs, environment=None):
    """Runs a load and calls `while_it_runs` four times a second; returns what the load said."""
    waited = 0.0
    with subprocess.Popen(command, env=environment, **OUTPUT) as load:
        while True:
            try:
                return load.communicate(timeout=0.25)[0]
            except subprocess.TimeoutExpired:
                while_it_runs()
                waited += 0.25
                if waited > seconds + END_SECONDS:
                    load.kill()
                    raise Failure(f"{command[0]} did not end {END_SECONDS} s after its time") from None


def answer(url, *flags):
    """The status, HTTP version and body of one request."""
    with tempfile.NamedTemporaryFile(prefix="weir-answer-") as body:
        command = [
            program("curl"),
            "-sSk",
            "-m",
            "5",
            "-o",
            body.name,
            "-w",
            "%{http_code} %{http_version}",
            *flags,
            url,
        ]
        asked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
        if asked.returncode:
            raise Failure(f"curl {url}: {asked.stderr.strip()}")
        status, http_version = asked.stdout.split()
        return int(status), http_version, body.read()


def fields(url):
    """The names and values of the fields of one answer, names in lower case."""
    command = [program("curl"), "-sS", "-m", "5", "-o", os.devnull, "-D", "-", url]
    asked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    if asked.returncode:
        raise Failure(f"curl {url}: {asked.stderr.strip()}")
    lines = [line.partition(":") for line in asked.stdout.splitlines()[1:] if line]
    return {name.lower(): value.strip() for name, _, value in lines}
