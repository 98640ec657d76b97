#!/usr/bin/env python3
"""Draws helm/weir/dashboards/weir.json from the data of a real Prometheus, which watches two Weirs (scenario.py): all panels
while everything works, and some of them around an outage of Redis. The pictures go to docs/images.

    python3 -m venv venv && venv/bin/pip install -r integration/monitoring/requirements.txt
    venv/bin/python integration/monitoring/picture.py --weir target/release/weir

Redis and Prometheus come with `integration/install.sh`. Without --weir a release is built first. Panels are where they are
in the dashboard and show what their queries give; Grafana draws them better.
"""

import argparse
import io
import json
import math
import pathlib
import re
import tempfile
import urllib.parse
import urllib.request

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MultipleLocator
from PIL import Image

from scenario import ROOT, Scene, Stage, weir_program

DASHBOARD = ROOT / "helm/weir/dashboards/weir.json"
PICTURES = ROOT / "docs/images"

# What Grafana would fill in, for a scrape each second.
VARIABLES = {"$__rate_interval": "5s", "$job": ".*", "$instance": ".*", "$limit": ".*"}

BACKGROUND, PANEL, TEXT, LINE = "#111217", "#181b1f", "#ccccdc", "#2c3235"
COLOURS = "#73bf69 #f2cc0c #5794f2 #ff9830 #b877d9 #f2495c #8ab8ff #ffa6b0 #96d98d #fade2a".split()
NAMED = {"green": "#73bf69", "orange": "#ff9830", "red": "#f2495c", "transparent": None}

# Of 24 columns, as in Grafana, and of rows of 30 pixels.
WIDTH, COLUMNS, ROW = 1500, 24, 27
DPI = 100


class Prometheus:
    def __init__(self, port, begin, end, outage=None):
        self.port, self.begin, self.end = port, begin, end
        # When Redis was down, in seconds since the beginning.
        self.outage = outage and [at - begin for at in outage]

    def series(self, expression):
        """The labels and the points of each series over the whole time."""
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        asked = {"query": expression, "start": self.begin, "end": self.end, "step": 1}
        url = f"http://127.0.0.1:{self.port}/api/v1/query_range?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            found = json.load(answer)["data"]["result"]
        for series in found:
            points = {round(at - self.begin): float(value) for at, value in series["values"]}
            seconds = range(round(self.end - self.begin) + 1)
            # What is missing is a gap, not a line across it.
            yield series["metric"], list(seconds), [points.get(second, math.nan) for second in seconds]


def shown(unit, decimals=None):
    """How a number of a unit is written."""

    def short(value, suffix=""):
        for size, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= size:
                return f"{value / size:.3g}{name}{suffix}"
        return f"{value:.3g}{suffix}"

    def seconds(value):
        for size, name in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs")):
            if abs(value) >= size:
                return f"{value / size:.3g} {name}"
        return "0"

    ways = {
        "percentunit": lambda value: f"{value * 100:.{decimals}f}%" if decimals is not None else f"{value * 100:.3g}%",
        "s": seconds,
        "reqps": lambda value: short(value, "/s"),
        "ops": lambda value: short(value, "/s"),
    }
    return ways.get(unit, short)


def legend(target, labels):
    return re.sub(r"\{\{ *(\w+) *\}\}", lambda found: labels.get(found[1], ""), target["legendFormat"]).strip()


def draw_lines(axes, panel, prometheus):
    settings = panel["fieldConfig"]["defaults"]
    custom, unit = settings["custom"], settings["unit"]
    drawn = [
        (legend(target, labels), seconds, values)
        for target in panel["targets"]
        for labels, seconds, values in prometheus.series(target["expr"])
    ]
    # Series that never were anything else than 0 would only fill the legend.
    moving = [one for one in drawn if any(value > 0 for value in one[2])]
    drawn = sorted(moving or drawn[:3], key=lambda one: -sum(value for value in one[2] if value > 0))[:10]
    colours = [COLOURS[place % len(COLOURS)] for place in range(len(drawn))]
    if custom["stacking"]["mode"] == "normal":
        stacked = [[0 if math.isnan(value) else value for value in values] for _, _, values in drawn]
        axes.stackplot(drawn[0][1], *stacked, colors=colours, alpha=0.45, linewidth=0, labels=[one[0] for one in drawn])
    else:
        for (name, seconds, values), colour in zip(drawn, colours):
            axes.plot(seconds, values, color=colour, linewidth=1.1, label=name)
    if custom.get("scaleDistribution", {}).get("type") == "log":
        axes.set_yscale("log")
        axes.minorticks_off()
    elif "min" in settings:
        axes.set_ylim(bottom=settings["min"])
        if axes.get_ylim()[1] <= 0.06 and not moving:
            axes.set_ylim(0, 1)
    if custom["thresholdsStyle"]["mode"] == "line":
        low, high = axes.get_ylim()
        for step in settings["thresholds"]["steps"]:
            colour = NAMED[step["color"]]
            if colour and step["value"] is not None and low < step["value"] < high:
                axes.axhline(step["value"], color=colour, linewidth=0.9, linestyle="--")
    if prometheus.outage:
        axes.axvspan(*prometheus.outage, color=NAMED["red"], alpha=0.16, linewidth=0)
        middle = sum(prometheus.outage) / 2
        axes.text(
            middle, 0.97, "Redis is down", color=TEXT, fontsize=7, ha="center", va="top",
            transform=axes.get_xaxis_transform(),
        )  # fmt: skip
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(unit)(value)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{int(value) // 60}:{int(value) % 60:02d}"))
    axes.set_xlim(0, prometheus.end - prometheus.begin)
    axes.xaxis.set_major_locator(MultipleLocator(30))
    axes.grid(color=LINE, linewidth=0.6)
    axes.tick_params(colors=TEXT, labelsize=7, length=0)
    axes.legend(
        loc="upper left", bbox_to_anchor=(-0.06, -0.13), ncols=4, fontsize=6.5, frameon=False, labelcolor=TEXT,
        handlelength=1, columnspacing=1, handletextpad=0.4, borderpad=0, labelspacing=0.3,
    )  # fmt: skip


def draw_number(axes, panel, prometheus):
    settings = panel["fieldConfig"]["defaults"]
    _, seconds, values = next(iter(prometheus.series(panel["targets"][0]["expr"])))
    last = next(value for value in reversed(values) if not math.isnan(value))
    colour = NAMED["green"]
    for step in settings["thresholds"]["steps"]:
        if step["value"] is None or last >= step["value"]:
            colour = NAMED[step["color"]]
    text = shown(settings["unit"], settings.get("decimals"))(last)
    for mapping in settings["mappings"]:
        text = mapping["options"].get(f"{last:g}", {}).get("text", text)
    axes.plot(seconds, values, color=colour, linewidth=0.8)
    axes.fill_between(seconds, values, color=colour, alpha=0.12)
    axes.set_ylim(min(0, *(value for value in values if value == value)), max(1e-9, *values) * 2.4)
    axes.text(0.5, 0.6, text, color=colour, fontsize=17, ha="center", va="center", transform=axes.transAxes)
    axes.set_xticks([])
    axes.set_yticks([])


def draw(panels, prometheus, path):
    """Draws panels where the dashboard has them, and nothing above the first."""
    top = min(panel["gridPos"]["y"] for panel in panels)
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) - top
    height = rows * ROW
    figure = Figure(figsize=(WIDTH / DPI, height / DPI), dpi=DPI, facecolor=BACKGROUND)
    column, gap = WIDTH / COLUMNS, 4

    def box(left, bottom, width, tall, colour=None):
        place = [left / WIDTH, 1 - (bottom + tall) / height, width / WIDTH, tall / height]
        axes = figure.add_axes(place, facecolor=colour or PANEL)
        for side in axes.spines.values():
            side.set_visible(False)
        return axes

    for panel in panels:
        place = panel["gridPos"]
        left, above = place["x"] * column + gap, (place["y"] - top) * ROW + gap
        width, tall = place["w"] * column - 2 * gap, place["h"] * ROW - 2 * gap
        frame = box(left, above, width, tall, BACKGROUND if panel["type"] == "row" else PANEL)
        frame.set_xticks([])
        frame.set_yticks([])
        title = dict(color=TEXT, fontsize=9, transform=frame.transAxes, va="center")
        if panel["type"] == "row":
            frame.text(0.003, 0.5, "▾ " + panel["title"], **{**title, "fontsize": 10})
            continue
        frame.text(8 / width, 1 - 13 / tall, panel["title"], **title)
        if panel["type"] == "stat":
            draw_number(box(left + 6, above + 24, width - 12, tall - 28), panel, prometheus)
        else:
            draw_lines(box(left + 48, above + 30, width - 60, tall - 88), panel, prometheus)
    memory = io.BytesIO()
    figure.savefig(memory, dpi=DPI, facecolor=BACKGROUND)
    # As many colours as the lines and the edges of letters need: a third of the bytes.
    drawn = Image.open(memory).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    drawn.save(path, optimize=True)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1024} KiB")


def section(panels, titles):
    """The rows of these titles, one below the other, with what is under them."""
    chosen, taken, offset, is_in = [], False, 0, False
    for panel in panels:
        if panel["type"] == "row":
            is_in = panel["title"] in titles
            if is_in:
                below = max((one["gridPos"]["y"] + one["gridPos"]["h"] for one in chosen), default=0)
                offset, taken = panel["gridPos"]["y"] - below, True
        if is_in:
            chosen.append({**panel, "gridPos": {**panel["gridPos"], "y": panel["gridPos"]["y"] - offset}})
    assert taken, f"the dashboard has no row of {titles}"
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", help="the binary; a release is built otherwise")
    options = parser.parse_args()
    weir = weir_program(options.weir)
    panels = json.loads(DASHBOARD.read_text())["panels"]
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory, Stage(directory) as stage:
        scene = Scene(stage, str(pathlib.Path(weir).resolve()))
        at = scene.play()
        # The first scrapes have no rates.
        healthy = Prometheus(scene.prometheus_port, at["quiet"] + 8, at["before"])
        draw(panels, healthy, PICTURES / "dashboard.png")
        outage = Prometheus(scene.prometheus_port, at["before"], at["end"], [at["outage"], at["recovery"]])
        draw(section(panels, {"At a glance", "Store and failure policy"}), outage, PICTURES / "outage.png")


if __name__ == "__main__":
    main()
