"""What a benchmark works with: a directory, the processes that it started, the programs that it found, a key."""

import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys

from processes import Failure, Process

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Certificate:
    """A self-signed certificate for localhost and its key: both files, and both in one as HAProxy wants them."""

    def __init__(self, directory, name="certificate"):
        self.certificate, self.key, self.both = (str(directory / f"{name}.{end}") for end in ("crt", "key", "pem"))
        # P-256 is what certificates are made of today; with RSA the handshakes would drown everything else.
        command = [program("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        command += ["-nodes", "-days", "30", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        command += ["-keyout", self.key, "-out", self.certificate]
        made = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
        if made.returncode:
            raise Failure(f"openssl made no certificate:\n{made.stderr}")
        texts = [pathlib.Path(part).read_text(encoding="ascii") for part in (self.certificate, self.key)]
        pathlib.Path(self.both).write_text("".join(texts), encoding="ascii")


class Stage:
    """Everything that a benchmark has started, and the directory it lives in."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.processes = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.stop()

    def start(self, name, command, port):
        """Starts a process and waits for its port; returns it and the seconds that this took."""
        process = Process(name, command, port, self.directory / f"{name}.log")
        self.processes.append(process)
        return process, process.wait_until_listening()

    def write(self, name, text):
        path = self.directory / name
        path.write_text(text)
        return str(path)

    def compile(self, name):
        """The program of a C file beside this one."""
        binary = self.directory / name
        source = pathlib.Path(__file__).with_name(f"{name}.c")
        subprocess.run([program("cc"), "-O2", "-o", str(binary), str(source)], check=True, timeout=60)
        return str(binary)


def program(name, *places):
    """The path of a program, from its environment variable, PATH, or one of `places`."""
    given = os.environ.get(name.upper().replace("-", "_"))
    # Debian has nginx and haproxy in /usr/sbin, which is not on everybody's PATH.
    path = given or shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    for place in places:
        path = path or next((str(found) for found in ROOT.glob(place)), None)
    if path is None:
        raise Failure(f"`{name}` is not installed; run `integration/install.sh`")
    return path


def weir_program(given):
    """The binary under test: the one that was asked for, or one that is built now."""
    if given:
        if not pathlib.Path(given).is_file():
            raise Failure(f"{given}: no such file")
        return given
    subprocess.run(["cargo", "build", "--profile", "dist", "--bin", "weir"], cwd=ROOT, check=True)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return str((ROOT / target) / "dist" / "weir")


def version(command):
    """The first line that a program says of its version."""
    said = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, timeout=10)
    lines = [line for line in (said.stdout + said.stderr).splitlines() if line.strip()]
    return lines[0].strip() if lines else "unknown"


def allow_open_files(count):
    """Lifts the soft limit of open files of this process and of all that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        raise Failure(f"{count} open files are needed and {hard} are allowed; raise `ulimit -Hn`")
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def carry_out(run, options):
    """Runs a benchmark, writes what it returns where `--json` says, and returns it. A failure ends the program with one line."""
    try:
        done = run(options)
    except Failure as failure:
        sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {failure}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(done, indent=2) + "\n", encoding="utf-8")
    return done
