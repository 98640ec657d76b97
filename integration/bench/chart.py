#!/usr/bin/env python3
"""Draws docs/images/benchmark.svg: the CPU of a request, as multiples of nginx in the same round.

    integration/bench/proxies.py --json run.json
    integration/bench/chart.py --from run.json     keeps the run's figures in benchmark.json and draws them
    integration/bench/chart.py                     draws benchmark.json again
    integration/bench/chart.py --check             fails if the chart shows anything else

A bar ends at the median of the rounds' ratios, and its whisker goes from the smallest to the largest. `--note` adds a sentence on
the machine's state to the chart.
"""

import argparse
import json
import re
import statistics
import sys
from xml.sax.saxutils import escape

from stage import ROOT

FIGURES, CHART = ROOT / "docs/images/benchmark.json", ROOT / "docs/images/benchmark.svg"
BASE = "nginx"
NAMES = {
    "weir": "Weir",
    "weir+redis": "Weir and its Redis",
    "nginx": "nginx limit_req",
    "haproxy": "HAProxy stick table",
    "envoy": "Envoy local_ratelimit",
}
PROGRAMS = {"nginx": "nginx", "haproxy": "HAProxy", "envoy": "Envoy"}
TITLES = {"passing": "Allowed requests, forwarded", "denied": "Denied requests, answered with 429"}

WIDTH, LEFT, RIGHT, ROW, BAR = 800, 190, 70, 26, 14
STYLE = """
    .ground { fill: #ffffff; stroke: #d0d7de }
    text { fill: #1f2328 }
    .head { font-weight: 600; font-size: 15px }
    .name { text-anchor: end }
    .note { fill: #57606a; font-size: 12px }
    .tick { fill: #57606a; font-size: 12px; text-anchor: middle }
    .grid { stroke: #d8dee4 }
    .one { stroke: #57606a; stroke-dasharray: 4 3 }
    .peer { fill: #afb8c1 }
    .weir { fill: #0969da }
    .whisker { stroke: #1f2328; stroke-width: 1.4; fill: none }
    @media (prefers-color-scheme: dark) {
      .ground { fill: #0d1117; stroke: #30363d }
      text { fill: #e6edf3 }
      .note, .tick { fill: #9198a1 }
      .grid { stroke: #21262d }
      .one { stroke: #9198a1 }
      .peer { fill: #6e7681 }
      .weir { fill: #4493f8 }
      .whisker { stroke: #e6edf3 }
    }
"""


def kept(run, note):
    """What the chart needs of the result of proxies.py: microseconds of CPU of a request, in each round."""
    plain = next(variant for variant in run["variants"] if variant["variant"] == "plain")
    options = {name: run["options"][name] for name in ["rounds", "seconds", "connections"]}
    scenarios = {
        scenario: {
            name: [round(turn["cpu_us"], 3) for turn in plain[scenario][name]["rounds"]]
            for name in NAMES
            if name in plain[scenario]
        }
        for scenario in TITLES
    }
    # Envoy says the path of its program, too.
    machine = {name: str(said).rpartition("version: ")[2] for name, said in run["machine"].items()}
    return {"machine": machine, "options": options, "note": note, "cpu_us": scenarios}


def ratios(figures):
    """The rounds' ratios to nginx, by scenario and contender."""
    return {
        scenario: {
            name: [cpu / base for cpu, base in zip(rounds, contenders[BASE], strict=True)]
            for name, rounds in contenders.items()
        }
        for scenario, contenders in figures["cpu_us"].items()
    }


def draw(figures):
    by_scenario = ratios(figures)
    most = max(max(rounds) for of_scenario in by_scenario.values() for rounds in of_scenario.values())
    scale = (WIDTH - LEFT - RIGHT) / most
    parts, y = [], 62
    for scenario, of_scenario in by_scenario.items():
        parts.append(f'<text class="head" x="20" y="{y}">{TITLES[scenario]}</text>')
        top, bottom = y + 10, y + 14 + ROW * len(of_scenario)
        for tick in range(int(most) + 1):
            x = LEFT + tick * scale
            parts.append(f'<path class="{"one" if tick == 1 else "grid"}" d="M{x:.1f} {top}V{bottom}"/>')
            parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 14}">{tick}×</text>')
        for number, (name, rounds) in enumerate(of_scenario.items()):
            parts += row(name, rounds, y + 16 + ROW * number, scale)
        y = bottom + 46
    machine, options = figures["machine"], figures["options"]
    programs = ", ".join(program(machine[name], name) for name in PROGRAMS if name in machine)
    notes = [
        f"Medians of {options['rounds']} rounds of {options['seconds']} s, {options['connections']} connections, one worker each; "
        "whiskers: smallest and largest round.",
        f"{programs}; {machine['cores']} virtual cores. {figures['note']}".strip(),
    ]
    parts += [
        f'<text class="note" x="20" y="{y - 14 + 18 * number}">{escape(note)}</text>' for number, note in enumerate(notes)
    ]
    height = y + 18 * len(notes) - 14
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title" font-family="system-ui, 'Segoe UI', Helvetica, Arial, sans-serif" font-size="14">
  <title id="title">{escape(summary(by_scenario))}</title>
  <!-- Made by integration/bench/chart.py from benchmark.json -->
  <style>{STYLE}  </style>
  <rect class="ground" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="10"/>
  <text class="head" x="20" y="32">CPU of a request, as multiples of nginx (less is better)</text>
  {(chr(10) + "  ").join(parts)}
</svg>
"""


def row(name, rounds, y, scale):
    middle = statistics.median(rounds)
    low, high, end = (LEFT + value * scale for value in (min(rounds), max(rounds), middle))
    line = y + BAR / 2
    parts = [f'<text class="name" x="{LEFT - 10}" y="{y + 12}">{escape(NAMES[name])}</text>']
    style = "weir" if name.startswith("weir") else "peer"
    parts.append(f'<rect class="{style}" x="{LEFT}" y="{y}" width="{end - LEFT:.1f}" height="{BAR}" rx="2"/>')
    if high - low > 0.5:
        caps = f"M{low:.1f} {line - 4}v8M{low:.1f} {line}H{high:.1f}M{high:.1f} {line - 4}v8"
        parts.append(f'<path class="whisker" d="{caps}"/>')
    parts.append(f'<text x="{max(end, high) + 8:.1f}" y="{y + 12}">{middle:.2f}×</text>')
    return parts


def program(said, name):
    """`nginx 1.22.1` of what a program says of its version."""
    number = re.search(r"(?<!\w)\d+\.\d+\.\d+", said)
    return f"{PROGRAMS[name]} {number[0] if number else ''}".strip()


def summary(by_scenario):
    """The chart in words, for those who do not see it."""
    words = []
    for scenario, of_scenario in by_scenario.items():
        shown = [f"{NAMES[name]} {statistics.median(rounds):.2f}" for name, rounds in of_scenario.items() if name != BASE]
        words.append(f"{TITLES[scenario].lower()}: {', '.join(shown)}")
    return f"CPU of a request as multiples of nginx; {'; '.join(words)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="run", metavar="FILE", help="the result of `proxies.py --json FILE`")
    parser.add_argument("--note", default="", help="a sentence on the machine's state during the run")
    parser.add_argument("--check", action="store_true", help="fail if the chart is not the one of benchmark.json")
    options = parser.parse_args()
    if options.run:
        with open(options.run, encoding="utf-8") as file:
            figures = kept(json.load(file), options.note)
        FIGURES.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    chart = draw(json.loads(FIGURES.read_text(encoding="utf-8")))
    if not options.check:
        CHART.write_text(chart, encoding="utf-8")
    elif CHART.read_text(encoding="utf-8") != chart:
        sys.exit(f"{CHART.name} is not the chart of {FIGURES.name}; renew it with `python3 integration/bench/chart.py`")


if __name__ == "__main__":
    main()
