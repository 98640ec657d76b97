"use strict";

/** Seconds that charts show. */
const SHOWN_SECONDS = 120;

/** Milliseconds without a sample that break a line. */
const GAP = 4000;

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Returns the runs of points without a gap between them. */
function runsOf(points) {
  const runs = [];
  let last = null;
  for (const point of points) {
    if (!last || point.at - last.at > GAP) runs.push([]);
    runs.at(-1).push(point);
    last = point;
  }
  return runs;
}

/** Returns the parts of a run in which something was denied, each with its neighbours. */
function denyingParts(run) {
  const parts = [];
  let isOpen = false;
  run.forEach((point, index) => {
    const isPart = [index - 1, index, index + 1].some((near) => run[near]?.denied > 0);
    if (isPart && !isOpen) parts.push([]);
    if (isPart) parts.at(-1).push(point);
    isOpen = isPart;
  });
  return parts;
}

function line(run, x, y) {
  return run.map((point, index) => `${index ? "L" : "M"}${x(point).toFixed(1)} ${y(point).toFixed(1)}`).join("");
}

/** Returns the path of the area between two heights. */
function area(run, x, low, high) {
  return `${line(run, x, high)}${line([...run].reverse(), x, low).replace("M", "L")}Z`;
}

/** Returns a round number that is at least `value`. */
function roundUp(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 10].map((step) => step * unit).find((step) => step >= value);
}

/** Creates the paths of a chart once; drawing only sets their data. */
function makeSeries() {
  const names = ["passed-area", "denied-area", "passed-line", "denied-line", "would-line"];
  return Object.fromEntries(names.map((name) => [name, svg("path", { class: name })]));
}

function setSeries(series, points, x, y) {
  const data = { "passed-area": "", "denied-area": "", "passed-line": "", "denied-line": "", "would-line": "" };
  const floor = () => y(0);
  const passed = (point) => y(point.passed);
  const all = (point) => y(point.passed + point.denied);
  for (const run of runsOf(points)) {
    data["passed-area"] += area(run, x, floor, passed);
    data["passed-line"] += line(run, x, passed);
    for (const part of denyingParts(run)) {
      data["denied-area"] += area(part, x, passed, all);
      data["denied-line"] += line(part, x, all);
    }
    if (run.some((point) => point.would > 0)) data["would-line"] += line(run, x, (point) => y(point.would));
  }
  for (const [name, path] of Object.entries(series)) path.setAttribute("d", data[name]);
}

function highest(points) {
  return Math.max(1, ...points.map((point) => Math.max(point.passed + point.denied, point.would)));
}

/** The large chart: points of the last two minutes, with axes. */
class Chart {
  constructor(element) {
    this.element = element;
    this.axes = svg("g", {});
    this.series = makeSeries();
    this.svg = svg("svg", { width: "100%", height: "100%", "aria-hidden": "true" }, this.axes, ...Object.values(this.series));
    element.append(this.svg);
  }

  draw(points, now) {
    const { clientWidth: width, clientHeight: height } = this.element;
    const left = 44, bottom = 18, top = 8;
    const most = roundUp(highest(points));
    const x = (point) => left + (width - left) * (1 - (now - point.at) / 1000 / SHOWN_SECONDS);
    const y = (value) => height - bottom - (height - bottom - top) * (value / most);
    setSeries(this.series, points, x, y);
    const key = `${width} ${height} ${most}`;
    if (key === this.drawn) return;
    this.drawn = key;
    const axes = [];
    for (const share of [0, 0.5, 1]) {
      const at = y(most * share);
      axes.push(svg("path", { d: `M${left} ${at.toFixed(1)}H${width}`, class: "grid" }));
      axes.push(svg("text", { x: left - 8, y: at + 4, "text-anchor": "end" }, rate(most * share)));
    }
    for (const [share, text, anchor] of [[0, "2 min ago", "start"], [0.5, "1 min", "middle"], [1, "now", "end"]]) {
      axes.push(svg("text", { x: left + (width - left) * share, y: height - 2, "text-anchor": anchor }, text));
    }
    this.axes.replaceChildren(...axes);
  }
}

/** The small chart of a limit's row. */
class Spark {
  constructor() {
    this.series = makeSeries();
    this.svg = svg("svg", { viewBox: "0 0 140 24", "aria-hidden": "true" }, ...Object.values(this.series));
  }

  draw(points, now) {
    const most = highest(points);
    setSeries(this.series, points, (point) => 140 * (1 - (now - point.at) / 1000 / SHOWN_SECONDS), (value) => 23 - 22 * (value / most));
  }
}

/** The key to the chart. */
function swatch(kind) {
  const frame = svg("svg", { viewBox: "0 0 18 12", "aria-hidden": "true" });
  if (kind !== "would") frame.append(svg("rect", { width: 18, height: 12, y: 1, class: `${kind}-area` }));
  frame.append(svg("path", { d: kind === "would" ? "M0 6H18" : "M0 1H18", class: `${kind}-line` }));
  return frame;
}
