/** Milliseconds from one reading to the next, and the longest wait after failures. */
const INTERVAL = 1000;
const LONGEST_WAIT = 5000;

/** Milliseconds until a reading has failed. */
const TIMEOUT = 5000;

/** Rows of the table; a filter finds the others. */
const MOST_ROWS = 200;

/** Readings between two of what has ids: the ids most denied, blocks, overrides, and the bucket on show. */
const IDS_EVERY = 5;

/** The ids most denied. */
const TOP_COUNT = 7;

/** Milliseconds that the rates in the table are of. */
const RATE_SPAN = 5000;

/** The results of decisions that each number adds up. A limit in shadow mode lets the request pass. */
const PASSED = new Set(["allowed", "delayed", "unlimited", "exempt", "error_allowed", "shadow_denied"]);
const DENIED = new Set(["denied", "error_denied", "rejected"]);
const WOULD = new Set(["shadow_denied", "candidate_denied"]);

const get = (id) => document.getElementById(id);

/** Creates an element. Text from outside becomes text nodes only. */
function el(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1, minimumFractionDigits: 1 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

function rate(value) {
  if (value === 0) return "0";
  return value < 10 ? tenths.format(value) : value < 100_000 ? whole.format(value) : compact.format(value);
}

function percent(part, sum) {
  if (!part) return "0 %";
  const share = (100 * part) / sum;
  return share < 0.1 ? "< 0.1 %" : `${share < 10 ? tenths.format(share) : whole.format(share)} %`;
}

function count(number, one, many) {
  return `${whole.format(number)} ${number === 1 ? one : many}`;
}

/** Formats seconds with their two largest units. */
function span(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const at = units.findIndex(([, size]) => seconds >= size);
  if (at < 0) return "0 s";
  const [[name, size], next] = [units[at], units[at + 1]];
  const rest = next ? Math.floor((seconds % size) / next[1]) : 0;
  return `${Math.floor(seconds / size)} ${name}${rest ? ` ${rest} ${next[0]}` : ""}`;
}

/** Writes a name that may break where its words end, and else after 14 letters. */
function breakable(name) {
  const words = name.split(/(?<=[a-z\d])(?=[A-Z])|(?<=[-_.:/])/).flatMap((word) => word.match(/.{1,14}/gsu) ?? []);
  return words.flatMap((word, place) => (place ? [el("wbr", {}), word] : [word]));
}

/** Writes a time as `2026-11-27 03:14:00 UTC`. */
function utc(time) {
  return time.replace("T", " ").replace("Z", " UTC");
}

/** Tells assistive technology about a change that matters. */
function announce(text) {
  setText(get("announcement"), text);
}

/** A limit's counters and their rates over the last two minutes. */
class Track {
  constructor(name) {
    this.name = name;
    this.last = null;
    this.points = [];
  }

  /** Adds a reading: the sums of the counters by what they mean. */
  add(at, sums) {
    const before = this.last;
    this.last = { at, ...sums };
    // Counters begin again with the process.
    if (!before || at <= before.at || sums.passed < before.passed || sums.denied < before.denied) return;
    const per = (name) => (Math.max(0, sums[name] - before[name]) * 1000) / (at - before.at);
    this.points.push({ at, span: at - before.at, passed: per("passed"), denied: per("denied"), would: per("would") });
    const first = this.points.findIndex((point) => at - point.at <= SHOWN_SECONDS * 1000);
    this.points.splice(0, first);
  }

  /** Returns the mean rates of the last milliseconds. */
  mean(milliseconds) {
    const mean = { passed: 0, denied: 0, would: 0 };
    const now = this.points.at(-1)?.at;
    const recent = this.points.filter((point) => now - point.at < milliseconds);
    const span = recent.reduce((sum, point) => sum + point.span, 0);
    for (const name in mean) {
      mean[name] = span && recent.reduce((sum, point) => sum + point[name] * point.span, 0) / span;
    }
    return mean;
  }
}

const page = {
  paused: false,
  /** The name of the limit that the chart shows; empty for all. */
  chosen: "",
  /** The last reading, and when it came, in milliseconds of this page. */
  live: null,
  readAt: 0,
  started: null,
  state: "connecting",
  total: new Track(""),
  tracks: new Map(),
  rows: new Map(),
  chart: new Chart(get("chart")),
  failures: 0,
  readings: 0,
  /** False once ids were withheld, until there is another token. */
  mayReadIds: true,
  /** False if this Weir keeps no ids of denied requests. */
  hasTop: true,
  timer: 0,
  reading: false,
};

const STATES = {
  connecting: ["…", "Connecting"],
  live: ["●", "Live"],
  paused: ["❚❚", "Paused"],
  lost: ["▲", "Connection lost, trying again"],
};

function setState(state) {
  if (state === page.state) return;
  if (page.state !== "connecting") announce(state === "live" ? "Live again" : STATES[state][1]);
  page.state = state;
  get("state").dataset.state = state;
  get("state-icon").textContent = STATES[state][0];
  get("state-text").textContent = STATES[state][1];
  document.querySelector("main").toggleAttribute("data-stale", state === "lost");
}

/** Reads once, unless the page is paused or hidden, and sets the timer for the next time. */
async function read() {
  clearTimeout(page.timer);
  if (page.paused || page.reading || document.hidden) return;
  page.reading = true;
  try {
    if (!page.live || performance.now() - page.readAt > GAP) await readHistory();
    const response = await fetch("/live", { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT) });
    if (!response.ok) throw new Error(`status ${response.status}`);
    take(await response.json());
    page.readAt = performance.now();
    page.failures = 0;
    if (!page.paused) setState("live");
    if (page.readings++ % IDS_EVERY === 0 && page.mayReadIds) readIds();
  } catch {
    page.failures += 1;
    if (!page.paused) setState("lost");
  }
  page.reading = false;
  page.timer = setTimeout(read, Math.min(INTERVAL * Math.max(1, page.failures), LONGEST_WAIT));
}

/** Forgets the rates of another process. */
function begin(started) {
  if (page.started === started) return;
  page.total = new Track("");
  page.tracks.clear();
  page.started = started;
}

function trackOf(name) {
  return page.tracks.get(name) ?? new Track(name);
}

/** Reads what this page has missed: before it was opened, and while it was hidden, paused or cut off. */
async function readHistory() {
  const { ok, status, body } = await ask("GET", "/history");
  if (!ok) throw new Error(`status ${status}`);
  begin(body.started);
  const last = page.total.last?.at ?? 0;
  for (const { now_ms, total, limits } of body.readings) {
    if (now_ms <= last) continue;
    page.total.add(now_ms, sumsOf(body.results, total));
    for (const [name, counts] of Object.entries(limits)) {
      const track = trackOf(name);
      track.add(now_ms, sumsOf(body.results, counts));
      page.tracks.set(name, track);
    }
  }
}

function take(live) {
  const before = page.live;
  begin(live.started);
  page.live = live;
  const total = { passed: 0, denied: 0, would: 0 };
  const tracks = new Map();
  for (const limit of live.limits) {
    const sums = sumsOf(live.results, limit.counts);
    for (const name in total) total[name] += sums[name];
    const track = trackOf(limit.name);
    track.add(live.now_ms, sums);
    tracks.set(limit.name, track);
  }
  // A reload may remove limits.
  page.tracks = tracks;
  page.total.add(live.now_ms, total);
  if (!tracks.has(page.chosen)) page.chosen = "";
  show(total);
  announceChanges(before, live);
  if (before && before.blocks !== live.blocks && page.mayReadIds) readBlocks();
}

/** Reads what has ids, so that changes by other operators and gateways appear. */
function readIds() {
  if (page.hasTop) readTop();
  readOverrides();
  readBlocks();
  readBucket();
}

function sumsOf(results, counts) {
  const sums = { passed: 0, denied: 0, would: 0 };
  results.forEach((result, index) => {
    if (PASSED.has(result)) sums.passed += counts[index];
    if (DENIED.has(result)) sums.denied += counts[index];
    if (WOULD.has(result)) sums.would += counts[index];
  });
  return sums;
}

function announceChanges(before, live) {
  if (!before) return;
  const [was, is] = [before, live].map((reading) => ({ store: storeCard(reading), rules: rulesCard(reading) }));
  if (was.store.bad !== is.store.bad) announce(is.store.bad ? `Store: ${is.store.word}` : "The store is up again");
  if (was.rules.bad !== is.rules.bad) announce(is.rules.bad ? "The rules on disk have an error" : "The rules are loaded");
}

function show(total) {
  showHealth(page.live);
  showBroken(page.live.rules.error);
  showEmpty(total);
  showChart();
  showLimits();
  showBucketLimits();
  setText(get("version"), page.live.version);
}

function showEmpty(total) {
  const { limits, listeners } = page.live;
  const isEmpty = total.passed + total.denied + total.would === 0;
  get("empty").hidden = !isEmpty;
  get("chart").hidden = isEmpty;
  if (!isEmpty) return;
  const proxy = listeners.find((listener) => listener.name === "proxy");
  // A listener on all addresses is reached at the one that this page is.
  const address = proxy?.address.replace(/^(0\.0\.0\.0|\[::\])/, location.hostname);
  const text = limits.length ? "No requests yet. " : "The rules have no limits, so nothing is counted. ";
  setText(get("empty-text"), text + (address && limits.length ? "Send one:" : limits.length ? "Send one through your gateway." : ""));
  get("empty-command").hidden = !address || !limits.length;
  setText(get("empty-command"), `curl -i http://${address}/`);
}

function showChart() {
  const track = page.tracks.get(page.chosen) ?? page.total;
  setText(get("chart-title"), `Decisions per second, ${page.chosen || "all limits"}`);
  page.chart.draw(track.points, page.live.now_ms);
  const mean = track.mean(RATE_SPAN);
  const entries = [["passed", "passed"], ["denied", "denied"], ["would", "would deny"]];
  const legend = get("legend");
  if (!legend.children.length) {
    legend.append(...entries.map(([kind]) => el("li", {}, swatch(kind), el("span", {}))));
  }
  entries.forEach(([kind, word], index) => setText(legend.children[index].lastChild, `${rate(mean[kind])} ${word}`));
  get("chart").setAttribute("aria-label", `Chart of the last 2 minutes. Now per second: ${legend.textContent.replace(/([a-z])(\d)/g, "$1, $2")}`);
}

function rowOf(name) {
  const button = el("button", { type: "button", className: "link" }, ...breakable(name || "All limits"));
  button.addEventListener("click", () => choose(name));
  const modes = [el("span", { className: "mode" }), el("span", { className: "narrow" })];
  const [passed, denied, share, would] = [0, 1, 2, 3].map((place) => el("td", { className: place < 3 ? "number" : "number wide" }));
  const [rateOf, csv] = [el("span", {}), el("button", { type: "button", className: "link" }, "CSV")];
  const what = `The ids that ${name || "limits in shadow and candidates"} would have denied, as CSV`;
  csv.title = what;
  csv.setAttribute("aria-label", what);
  csv.addEventListener("click", () => saveImpact(name));
  would.append(csv, " ", rateOf);
  const spark = new Spark();
  const row = el("tr", {}, el("th", { scope: "row" }, button, modes[1]), el("td", { className: "wide" }, modes[0]),
    passed, denied, share, would, el("td", { className: "wide" }, spark.svg));
  return { row, button, modes, passed, denied, share, would: rateOf, csv, spark };
}

/** Whether a list has the ids that a limit would have denied. */
function hasImpact(limit) {
  return limit.candidates.length > 0 || limit.mode === "shadow" || (limit.mode === "enforce" && limit.enforced_percent < 100);
}

function modeOf(limit) {
  const isPart = limit.mode === "enforce" && limit.enforced_percent < 100;
  const mode = isPart ? `enforce for ${limit.enforced_percent}\u00a0%` : limit.mode;
  const shares = limit.candidates.map(({ name, allowed, denied }) => ["candidate", name, allowed + denied && percent(denied, allowed + denied)].filter(Boolean).join(" "));
  return [mode, ...shares, limit.review_due && "review due"].filter(Boolean).join(", ");
}

function fill(row, track, limit) {
  const mean = track.mean(RATE_SPAN);
  const all = track.mean(SHOWN_SECONDS * 1000);
  setText(row.passed, rate(mean.passed));
  setText(row.denied, rate(mean.denied));
  row.denied.classList.toggle("denying", mean.denied > 0);
  setText(row.share, percent(all.denied, all.denied + all.passed));
  setText(row.would, rate(mean.would));
  row.csv.hidden = !(limit ? [limit] : page.live.limits).some(hasImpact);
  row.spark.draw(track.points, page.live.now_ms);
  row.row.classList.toggle("chosen", track.name === page.chosen);
  row.button.setAttribute("aria-pressed", track.name === page.chosen);
  for (const mode of row.modes) {
    setText(mode, limit ? modeOf(limit) : "");
    mode.hidden = !limit;
    mode.title = limit?.review_by ? `To be reviewed by ${limit.review_by}` : "";
  }
  row.modes[0].classList.toggle("shadow", limit?.mode !== "enforce");
}

const ORDERS = {
  file: () => 0,
  name: (a, b) => a.limit.name.localeCompare(b.limit.name),
  denied: (a, b) => b.mean.denied - a.mean.denied || b.track.last.denied - a.track.last.denied,
  passed: (a, b) => b.sum - a.sum,
};

function showLimits() {
  const wanted = get("filter").value.trim().toLowerCase();
  const found = page.live.limits.filter((limit) => limit.name.toLowerCase().includes(wanted)).map((limit) => {
    const track = page.tracks.get(limit.name);
    const mean = track.mean(SHOWN_SECONDS * 1000);
    return { limit, track, mean, sum: mean.passed + mean.denied };
  });
  const order = get("sort").value;
  if (order !== "file") found.sort(ORDERS[order]);
  const shown = found.slice(0, MOST_ROWS);
  const rows = wanted ? [] : [{ track: page.total, limit: null }];
  rows.push(...shown);
  const body = get("limits").tBodies[0];
  const elements = rows.map(({ track, limit }) => {
    if (!page.rows.has(track.name)) page.rows.set(track.name, rowOf(track.name));
    const row = page.rows.get(track.name);
    fill(row, track, limit);
    return row.row;
  });
  const isSame = elements.length === body.rows.length && elements.every((row, index) => row === body.rows[index]);
  // Rows stay where they are while one of them is in use.
  const isInUse = body.contains(document.activeElement) || body.matches(":hover");
  const isSameSet = elements.length === body.rows.length && elements.every((row) => row.parentNode === body);
  if (!isSame && !(isInUse && isSameSet)) body.replaceChildren(...elements);
  for (const name of page.rows.keys()) if (name && !page.tracks.has(name)) page.rows.delete(name);
  const hidden = found.length - shown.length;
  const note = "Rates are of the last 5 seconds, shares of the last 2 minutes. “Would deny” counts limits in shadow mode and candidate numbers.";
  const more = hidden ? ` ${count(hidden, "more limit is", "more limits are")} not shown; the filter finds them.` : "";
  setText(get("limits-note"), (found.length ? note : "No limit has this in its name.") + more);
}

function choose(name) {
  page.chosen = name;
  showChart();
  showLimits();
  readTop();
}

// The ids most denied

function showTop(ids, note) {
  const table = get("top");
  // A list in use stays.
  if (ids.length && table.contains(document.activeElement)) return;
  table.hidden = !ids.length;
  setText(get("top-note"), note);
  table.tBodies[0].replaceChildren(...ids.map(({ limit, id, hash, denied, error, kind }) => {
    const cell = el("td", { title: `In the log: ${hash}` }, lookButton(`${limit}:${id}`, id));
    const small = [page.chosen ? "" : limit, kind].filter(Boolean).join(", ");
    if (small) cell.append(" ", el("small", {}, ...breakable(small)));
    return el("tr", {}, cell, el("td", { className: "number" }, whole.format(denied), error ? el("small", {}, `at least ${whole.format(denied - error)}`) : ""));
  }));
}

/** A candidate's entry has the name of its limit, and its own after a colon. */
function ofCandidate(entry) {
  const [limit, name] = entry.limit.split(":");
  return name ? { ...entry, limit, kind: `${entry.kind} ${name}` } : entry;
}

async function readTop() {
  const chosen = page.chosen;
  const limit = chosen ? `limit=${encodeURIComponent(chosen)}&` : "";
  setText(get("top-title"), `Ids most denied${chosen ? `, ${chosen}` : ""}`);
  try {
    const { status, body } = await ask("GET", `/top?${limit}n=${TOP_COUNT}`);
    if (chosen !== page.chosen) return;
    page.mayReadIds = status !== 401 && status !== 403;
    page.hasTop = status !== 409;
    if (status === 401 || status === 403) return showTop([], "To see ids here, give the operator’s token.");
    if (status !== 200) return showTop([], body.detail ?? "Not available.");
    const of = (lists, kind) => Object.entries(lists ?? {}).flatMap(([limit, ids]) => ids.map((entry) => ({ limit, kind, ...entry })));
    const ids = [...of(body.limits, ""), ...of(body.shadow, "in shadow"), ...of(body.candidates, "by the candidate").map(ofCandidate)];
    ids.sort((a, b) => b.denied - a.denied);
    showTop(ids.slice(0, TOP_COUNT), ids.length ? "In the last 5 to 10 minutes." : "No id was denied in the last minutes.");
  } catch {
    // The next reading tells that the connection is lost.
  }
}

get("pause").addEventListener("click", () => {
  page.paused = !page.paused;
  setText(get("pause"), page.paused ? "Resume" : "Pause");
  if (page.paused) setState("paused");
  else read();
});
document.addEventListener("visibilitychange", read);
get("filter").addEventListener("input", () => page.live && showLimits());
get("sort").addEventListener("change", () => page.live && showLimits());
new ResizeObserver(() => page.live && showChart()).observe(get("chart"));
