#!/usr/bin/env python3
"""Draws docs/images/session.svg: a terminal session with a limit, from yesterday's log to an override; and a short one for phones.

    integration/documentation/session.py target/release/weir           runs the session and draws both
    integration/documentation/session.py target/release/weir --check   runs it and compares it with the pictures

The commands run in a temporary directory, with free ports instead of those that the pictures show. The pictures do not move,
load nothing and have no scripts.
"""

import argparse
import difflib
import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import xml.etree.ElementTree
from xml.sax.saxutils import escape

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "bench"))

from processes import free_ports  # noqa: E402

IMAGES = HERE.parents[1] / "docs/images"
RENEW = "cargo build && integration/documentation/session.py target/debug/weir"

LIMITS = """limits:
  LoginsPerAddress:
    match: { methods: [POST], path: /login }
    by: ip/64
    count: 5
    period: 1h
"""
LOGIN = (
    "curl -s -d user=alice -H 'x-forwarded-for: 198.51.100.7' \\\n"
    "    -o /dev/null -w '%{http_code} ' 'http://127.0.0.1:8080/login?[1-7]'"
)
# What is typed. A line that starts with `#` is a comment. `&` at the end is left to the prelude.
SESSION = [
    "cat limits.yaml",
    "# Which clients would it have denied yesterday?",
    "weir simulate yesterday.log.gz --show-ids",
    "# One client guesses passwords. The other is an office. Enforce the limit:",
    "weir serve --upstream echo --trusted-proxies 127.0.0.1 --overrides overrides.yaml &",
    LOGIN,
    "weir explain POST /login --ip 198.51.100.7",
    "weir bucket get LoginsPerAddress:198.51.100.7",
    "# More for the office, without a restart:",
    "echo 'LoginsPerAddress:198.51.100.7: { count: 50, period: 1h }' > overrides.yaml",
    LOGIN,
]
# Waits until the running Weir has read the override.
IN_FORCE = (
    "until weir bucket get LoginsPerAddress:198.51.100.7 | grep -q 'burst 50'; do sleep 0.05; done >/dev/null 2>&1"
)
MARK = "\x1e"
# Durations that depend on the moment.
VARYING = [(r"(?<= in )\d[\dhms. ]*", "T")]

TIMEOUT = 100
PROXY, ADMIN = 8080, 9090

FONT, LINE, GAP, MARGIN, BAR = 12.6, 18, 6, 20, 36
WIDE, NARROW = 800, 400
# The columns of the narrow picture, and the outputs that it shows.
COLUMNS = 46
SHORT = ["cat limits.yaml", "weir simulate", "echo 'LoginsPerAddress", "curl"]
TELLING = re.compile("limits:|  +(Logins|match|by|count|period)|LoginsPerAddress:.*denied|  denied|  most denied|   +39 |200 ")
STYLE = """
    .ground { fill: #f6f8fa; stroke: #d0d7de }
    .bar { fill: #eaeef2 }
    .dot { fill: #afb8c1 }
    text { fill: #1f2328; white-space: pre }
    .command { font-weight: 600 }
    .prompt { fill: #1a7f37 }
    .comment { fill: #57606a; font-style: italic }
    .denied { fill: #cf222e; font-weight: 600 }
    .allowed { fill: #1a7f37; font-weight: 600 }
    @media (prefers-color-scheme: dark) {
      .ground { fill: #0d1117; stroke: #30363d }
      .bar { fill: #161b22 }
      .dot { fill: #484f58 }
      text { fill: #e6edf3 }
      .prompt, .allowed { fill: #3fb950 }
      .comment { fill: #9198a1 }
      .denied { fill: #ff7b72 }
    }
"""


def yesterday():
    """An access log: 211 clients, one that guesses passwords, and an office behind one address."""
    entries = []

    def add(second, address, request, status=200):
        time = f"22/Nov/2026:{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02} +0000"
        entries.append((second, f'{address} - - [{time}] "{request} HTTP/1.1" {status} 612 "-" "Mozilla/5.0"\n'))

    for number in range(9000):
        request = "GET / " if number % 11 else "POST /login"
        add(number * 9593 // 1000 % 86400, f"192.0.2.{number * 37 % 211 + 1}", request.strip())
    for number in range(1400):
        add(7200 + number * 9, "203.0.113.9", "POST /login", 401)
    for number in range(46):
        add(32400 + number * 40, "198.51.100.7", "POST /login")
    return "".join(line for _, line in sorted(entries))


def run(weir):
    """The lines of the session: pairs of a kind (`comment`, `command`, `output`) and a text."""
    with tempfile.TemporaryDirectory(prefix="weir-session-") as name:
        directory = pathlib.Path(name)
        (directory / "bin").mkdir()
        (directory / "bin/weir").symlink_to(weir)
        (directory / "limits.yaml").write_text(LIMITS, encoding="utf-8")
        (directory / "overrides.yaml").write_text("{}\n", encoding="utf-8")
        with gzip.open(directory / "yesterday.log.gz", "wt", encoding="utf-8") as log:
            log.write(yesterday())
        proxy, admin = free_ports(2)
        script = [f"source {HERE / 'prelude.sh'}"]
        for typed in SESSION:
            command = "true" if typed.startswith("#") else typed.removesuffix(" &")
            command = command.replace(str(PROXY), str(proxy))
            # A command must succeed; the prelude's `weir serve` waits until it is ready.
            script += [f"printf '{MARK}'", command + f" || {{ echo 'failed: {MARK}'; exit 1; }}"]
            if "> overrides.yaml" in typed:
                script.append(IN_FORCE)
        (directory / "session").write_text("\n".join(script) + "\n", encoding="utf-8")
        environment = {
            "PATH": f"{directory / 'bin'}:{os.environ['PATH']}",
            "LC_ALL": "C.UTF-8",
            "TERM": "dumb",
            "WEIR_WORKERS": "1",
            "WEIR_PROXY": f"127.0.0.1:{proxy}",
            "WEIR_ADMIN": f"127.0.0.1:{admin}",
        }
        # Into a file: a process that is left over would keep a pipe open.
        printed = directory / "printed"
        with printed.open("wb") as file:
            bash = ["timeout", "--kill-after=5", str(TIMEOUT), "bash", "session"]
            ended = subprocess.run(bash, cwd=directory, env=environment, stdout=file, stderr=file, check=False)
        text = printed.read_text(encoding="utf-8", errors="replace")
    text = text.replace(str(proxy), str(PROXY)).replace(str(admin), str(ADMIN))
    parts = text.split(MARK)[1:]
    if ended.returncode or len(parts) != len(SESSION):
        sys.exit(f"session.py: the session failed with {ended.returncode}:\n{text}")
    lines = []
    for typed, output in zip(SESSION, parts, strict=True):
        kind = "comment" if typed.startswith("#") else "command"
        first, *more = typed.splitlines()
        lines.append((kind, first if kind == "comment" else f"$ {first}"))
        lines += [("command", line) for line in more]
        lines += [("output", line.rstrip()) for line in output.rstrip().splitlines()]
    return lines


def spans(kind, text):
    """The text of a line in SVG, with its colours."""
    marked = escape(text)
    if kind == "command":
        return re.sub(r"^\$", '<tspan class="prompt">$</tspan>', marked)
    if kind == "output":
        marked = re.sub(r"\b429\b|(?<= )[\d,]+ of .* would be denied|^[\d,]+ of .* would be denied", denied, marked)
        marked = re.sub(r"\b200\b", '<tspan class="allowed">200</tspan>', marked)
    return marked


def denied(found):
    return f'<tspan class="denied">{found[0]}</tspan>'


def shortened(lines):
    """What a phone can show: some of the session, in lines that continue below."""
    kept, shown = [], False
    for kind, text in lines:
        if kind == "command" and text.startswith("$ "):
            shown = any(command in text for command in SHORT)
        if kind == "comment" or (shown and (kind == "command" or TELLING.match(text))):
            indent = "" if kind == "comment" else "    "
            rows = textwrap.wrap(text, COLUMNS, subsequent_indent=indent, drop_whitespace=len(text) > COLUMNS) or [text]
            kept += [(kind, row) for row in rows]
    return kept


PICTURES = {"session.svg": (WIDE, lambda lines: lines), "session-narrow.svg": (NARROW, shortened)}


def draw(lines, width):
    rows, y, before = [], BAR + MARGIN - LINE + 4, "command"
    for kind, text in lines:
        y += LINE + (GAP if before == "output" != kind else 0)
        before = kind
        if not text:
            continue
        rows.append(f'  <text class="{kind}" x="{MARGIN}" y="{y}">{spans(kind, text)}</text>')
    height = y + MARGIN
    dots = "".join(f'<circle class="dot" cx="{22 + 18 * dot}" cy="18" r="5.5"/>' for dot in range(3))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-labelledby="title" font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, 'Liberation Mono', monospace" font-size="{FONT}">
  <title id="title">A terminal: a limit on logins, the clients it would have denied yesterday, a 429, the reason, and a higher limit for one address without a restart</title>
  <!-- Made by integration/documentation/session.py -->
  <style>{STYLE}  </style>
  <rect class="ground" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="10"/>
  <path class="bar" d="M1 {BAR}V11a10 10 0 0 1 10-10H{width - 11}a10 10 0 0 1 10 10V{BAR}z"/>
  {dots}
{chr(10).join(rows)}
</svg>
"""


def steady(lines):
    """Lines with the same text for all moments."""
    shown = []
    for line in lines:
        for varying, word in VARYING:
            line = re.sub(varying, word, line)
        if line.strip():
            shown.append(line)
    return shown


def lines_of(picture):
    root = xml.etree.ElementTree.fromstring(picture)
    return ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weir", help="the binary to run")
    parser.add_argument("--check", action="store_true", help="fail if the picture shows anything else")
    options = parser.parse_args()
    weir = shutil.which(options.weir)
    if weir is None:
        sys.exit(f"session.py: {options.weir} is not a program")
    lines = run(pathlib.Path(weir).resolve())
    for name, (width, chosen) in PICTURES.items():
        picture, lines_of_it = IMAGES / name, chosen(lines)
        if not options.check:
            picture.write_text(draw(lines_of_it, width), encoding="utf-8")
            continue
        shown = steady(lines_of(picture.read_text(encoding="utf-8")))
        printed = steady(text for _, text in lines_of_it)
        if shown != printed:
            difference = "\n".join(difflib.unified_diff(shown, printed, "the picture", "the session", lineterm=""))
            sys.exit(f"{name} is out of date; renew it with `{RENEW}`:\n{difference}")


if __name__ == "__main__":
    main()
