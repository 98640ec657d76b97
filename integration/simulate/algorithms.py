#!/usr/bin/env python3
"""Draws docs/images/algorithms.svg: the same five minutes of requests under each algorithm, decided by `weir simulate`.

    integration/simulate/algorithms.py WEIR [--output FILE]
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# Nothing is enforced, so each limit decides all requests.
LIMITS = """\
limits:
  gcra: { by: ip, count: 60, period: 1m, mode: shadow }
  gcra_burst_10: { by: ip, burst: 10, count: 60, period: 1m, mode: shadow }
  fixed_window: { by: ip, algorithm: fixed_window, count: 60, period: 1m, mode: shadow }
  fixed_window_by_clock: { by: ip, algorithm: fixed_window, aligned: clock, count: 60, period: 1m, mode: shadow }
  sliding_window: { by: ip, algorithm: sliding_window, count: 60, period: 1m, mode: shadow }
  sliding_log: { by: ip, algorithm: sliding_log, count: 60, period: 1m, mode: shadow }
"""


def load():
    """Requests per second: 20 in the first minute, 80 around its end, a pause, and then twice what the limits allow."""
    return [1] * 20 + [0] * 30 + [4] * 20 + [0] * 50 + [2] * 120 + [1] * 60


def log():
    """Begins half a minute after the clock's, so that windows by the clock have other edges."""
    line = '192.0.2.1 - - [22/Nov/2026:10:{:02}:{:02} +0000] "GET / HTTP/1.1" 200 5 "-" "curl/8.5.0"\n'
    return "".join(line.format(second // 60, second % 60) * count for second, count in enumerate(load(), 30))


def report(weir):
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        (directory / "limits.yaml").write_text(LIMITS)
        (directory / "access.log").write_text(log())
        run = [weir, "simulate", "access.log", "--format", "html"]
        return subprocess.run(run, cwd=directory, check=True, stdout=subprocess.PIPE, text=True).stdout


STYLE = """
  svg { background: #fff; font: 11px system-ui, sans-serif; font-variant-numeric: tabular-nums; color: #1b1f24; }
  text { fill: #57606a; } .name { fill: #1b1f24; font-size: 14px; font-weight: 600; } .end { text-anchor: end; }
  .grid { stroke: #dce1e6; fill: none; }
  .admitted { fill: #2f72b8; fill-opacity: .55; } .denied { fill: #b42318; }
  @media (prefers-color-scheme: dark) {
    svg { background: #171d24; } text { fill: #9ba6b2; } .name { fill: #e6e9ed; } .grid { stroke: #2a333d; }
    .admitted { fill: #5aa2ea; } .denied { fill: #ff8f80; }
  }
"""

CHART = re.compile(
    r'<h4>(.*?) <span class="muted">.*?</span></h4><figure[^>]*><svg viewBox="0 0 (\d+) (\d+)"[^>]*>(.*?)</svg>'
    r".*?<figcaption>.*?</span>(\d+) admitted .*?</span>(\d+) denied"
)


def picture(page):
    charts = CHART.findall(page)
    if len(charts) != LIMITS.count("shadow"):
        sys.exit(f"the report has {len(charts)} charts")
    width, height = int(charts[0][1]), int(charts[0][2]) + 44
    rows = (len(charts) + 1) // 2
    total = (2 * width + 60, rows * height + 20)
    label = "The same requests under each algorithm: what is admitted and what is denied, over five minutes"
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total[0]} {total[1]}" role="img" aria-label="{label}">']
    parts.append(f"<style>{STYLE}</style>")
    for number, (name, _, _, drawing, admitted, denied) in enumerate(charts):
        x, y = 20 + number % 2 * (width + 20), 20 + number // 2 * height
        parts.append(f'<g transform="translate({x} {y})"><text class="name" x="0" y="10">{name}</text>')
        parts.append(f'<text class="end" x="{width}" y="10">{admitted} admitted, {denied} denied</text>')
        parts.append(f'<g transform="translate(0 20)">{drawing}</g></g>')
    return "\n".join([*parts, "</svg>", ""])


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("weir")
    arguments.add_argument("--output", type=pathlib.Path, default=ROOT / "docs/images/algorithms.svg")
    given = arguments.parse_args()
    given.output.write_text(picture(report(pathlib.Path(given.weir).resolve())))


if __name__ == "__main__":
    main()
