/** The operator's token. It is kept here only, until the page is closed or loaded again. */
let token = null;

/** Sends a request to this listener, with the token if there is one. */
function send(method, path, body) {
  const headers = {};
  if (token) headers.authorization = `Bearer ${token}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  return fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store", signal: AbortSignal.timeout(TIMEOUT) });
}

async function ask(method, path, body) {
  return parsed(await send(method, path, body));
}

async function parsed(response) {
  const text = await response.text();
  let body = {};
  try {
    body = JSON.parse(text);
  } catch {
    // A reply that is not JSON has nothing to show but its status.
  }
  return { status: response.status, ok: response.ok, body };
}

/** Says why a request failed. */
function reasonOf({ status, body }) {
  if (status === 401 && token) return `Wrong token: ${body.detail ?? "it is not known"}.`;
  if (status === 401) return "This needs the operator’s token. Type it in under “Operator’s token”.";
  return body.detail ?? `Status ${status}`;
}

function say(id, text, isError = false) {
  const message = get(id);
  message.classList.toggle("error", isError);
  message.textContent = isError ? `Error: ${text}` : text;
}

/** Runs an action; says so if the listener cannot be reached. */
async function attempt(message, act) {
  say(message, "");
  try {
    await act();
  } catch (error) {
    say(message, `no answer: ${error.message}`, true);
  }
}

function onSubmit(id, message, act) {
  get(id).addEventListener("submit", (event) => {
    event.preventDefault();
    attempt(message, act);
  });
}

// Buckets

/** The name of the bucket on show, as the listener writes it. */
let bucket = "";

/** How often a bucket was shown. */
let bucketShown = 0;

function showBucketLimits() {
  const list = get("bucket-limit");
  const names = page.live.limits.map((limit) => limit.name);
  if (list.dataset.names === names.join("\n")) return;
  list.dataset.names = names.join("\n");
  const chosen = list.value;
  list.replaceChildren(...names.map((name) => el("option", { value: name }, name)));
  if (names.includes(chosen)) list.value = chosen;
}

const bucketPath = (name) => `/buckets/${encodeURIComponent(name)}`;

async function look(name) {
  const reply = await ask("GET", bucketPath(name));
  if (!reply.ok) {
    get("bucket").hidden = true;
    return say("bucket-message", reasonOf(reply), true);
  }
  showBucket(reply.body);
}

/** Creates a button that looks a bucket up. */
function lookButton(name, text, className = "link") {
  const button = el("button", { type: "button", className }, text);
  button.addEventListener("click", () => look(name).then(() => get("bucket-name").focus(), () => {}));
  return button;
}

/** Writes a definition list. */
function facts(list, pairs) {
  list.replaceChildren(...pairs.filter(([, text]) => text !== null && text !== undefined && text !== "")
    .flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, String(text))]));
}

/** Reads the bucket on show again. */
async function readBucket() {
  const name = bucket;
  if (!name || get("bucket").hidden) return;
  const at = bucketShown;
  try {
    const reply = await ask("GET", bucketPath(name));
    // What was shown in between is newer.
    if (reply.ok && bucketShown === at) showBucket(reply.body);
  } catch {
    // The next reading of the numbers tells that the connection is lost.
  }
}

function showBucket(state) {
  bucket = state.bucket;
  bucketShown += 1;
  get("bucket").hidden = false;
  setText(get("bucket-name"), bucket);
  const given = state.given_by && `${state.given_by.place}${state.given_by.comment ? `, ${state.given_by.comment}` : ""}`;
  const blocked = state.blocked && `for ${span(Math.ceil(state.blocked.left_ms / 1000))}, by ${state.blocked.by}${state.blocked.reason ? `: ${state.blocked.reason}` : ""}`;
  facts(get("bucket-facts"), [
    ["Mode", `${state.mode}${state.mode === "enforce" && !state.enforced ? ", not for this id" : ""}`],
    ["Override", given],
    ["Blocked", blocked],
    ["Allows", state.allows === "windows" ? null : state.allows],
  ]);
  const time = (ms) => (ms === null ? "never" : span(Math.ceil(ms / 1000)));
  get("windows").hidden = !state.windows.length;
  get("windows").tBodies[0].replaceChildren(...state.windows.map((window) => el("tr", {},
    el("th", { scope: "row" }, window.allows),
    ...[whole.format(window.remaining), whole.format(window.used), time(window.reset_after_ms)].map((text) => el("td", { className: "number" }, text)))));
}

/** Adds a form for a change: its button, and inputs as [key, label, value, class]. */
function change(title, method, below, inputs, done, read = (values) => values) {
  const fields = inputs.map(([key, label, value, className]) => ({ key, label, input: el("input", { value, className: className ?? "", required: key !== "reason", autocomplete: "off" }) }));
  const form = el("form", {}, ...fields.map(({ label, input }) => el("label", {}, label, input)), el("button", { type: "submit" }, title));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (page.live.changes && !hasToken("bucket-message")) return;
    say("bucket-message", "");
    const body = read(Object.fromEntries(fields.map(({ key, input }) => [key, input.value])));
    try {
      const reply = await ask(method, bucketPath(bucket) + below, body);
      if (!reply.ok) return say("bucket-message", reasonOf(reply), true);
      say("bucket-message", done);
      if (reply.body.windows) showBucket(reply.body);
      else await look(bucket);
      await readBlocks();
    } catch (error) {
      say("bucket-message", `no answer: ${error.message}`, true);
    }
  });
  get("changes").append(form);
}

const tokens = (key) => (values) => ({ [key]: Number(values[key]) });
const nothing = () => undefined;
change("Reset", "POST", "/reset", [], "Reset: the bucket is full.", nothing);
change("Refund", "POST", "/refund", [["cost", "Tokens to give back", "1"]], "Refunded.", tokens("cost"));
change("Set", "PUT", "", [["remaining", "Tokens that remain", "0"]], "Set.", tokens("remaining"));
change("Block", "PUT", "/block", [["for", "Block for", "1h"], ["reason", "Reason", "", "long"]], "Blocked.", (values) => ({ for: values.for, ...(values.reason && { reason: values.reason }) }));
change("Unblock", "DELETE", "/block", [], "Unblocked.", nothing);

onSubmit("bucket-form", "bucket-message", () => {
  // A limit by `global` has one bucket, and no ids.
  const [limit, id] = [get("bucket-limit").value, get("bucket-id").value.trim()];
  return look(id ? `${limit}:${id}` : limit);
});

// Lists of what operators have set, by all of them

const MOST_ITEMS = 100;

const TO_SEE_THEM = "To see them, give the operator’s token.";

/** What each list shows, and the number of its last reading. */
const lists = { blocks: { shown: "", reading: 0 }, overrides: { shown: "", reading: 0 } };

/** Reads a list, and shows it if it has changed. */
async function readList(id, path, itemsOf) {
  const list = lists[id];
  const reading = (list.reading += 1);
  try {
    const reply = await ask("GET", path);
    // A later reading is newer.
    if (reading !== list.reading) return;
    const items = reply.ok ? itemsOf(reply.body) : [el("li", { className: "muted" }, TO_SEE_THEM)];
    if (!items.length) items.push(el("li", { className: "muted" }, "There are none."));
    const shown = items.map((one) => one.textContent).join("\n");
    if (shown === list.shown) return;
    list.shown = shown;
    replaceItems(get(id), items);
  } catch {
    // The next reading of the numbers tells that the connection is lost.
  }
}

/** Replaces items. What had the focus keeps it. */
function replaceItems(list, items) {
  const name = (button) => button.getAttribute("aria-label") ?? button.textContent;
  const focused = list.contains(document.activeElement) ? name(document.activeElement) : null;
  list.replaceChildren(...items);
  [...list.querySelectorAll("button")].find((button) => name(button) === focused)?.focus();
}

/** An item of a list: the bucket, what is said of it, and the button that ends it. */
function item(bucket, facts, title, label, end) {
  const button = el("button", { type: "button" }, title);
  button.setAttribute("aria-label", label);
  button.addEventListener("click", end);
  return el("li", {}, lookButton(bucket, bucket), ` ${facts.filter(Boolean).join(", ")} `, button);
}

function more(count, command) {
  return count > 0 ? [el("li", { className: "muted" }, `More are not shown; \`${command}\` has them.`)] : [];
}

/** Whether there is a token; says that it is missing and goes to its field. */
function hasToken(message) {
  if (token) return true;
  say(message, "give the operator’s token first.", true);
  get("token").focus();
  return false;
}

// The ids that a limit would have denied

/** Milliseconds that the browser may take to save a file. */
const SAVING = 60_000;

/** Saves the list of a limit, or of all. A link could not send the token. */
function saveImpact(name) {
  attempt("limits-message", async () => {
    const response = await send("GET", `/impact.csv${name ? `?limit=${encodeURIComponent(name)}` : ""}`);
    if (!response.ok) return say("limits-message", reasonOf(await parsed(response)), true);
    const href = URL.createObjectURL(await response.blob());
    el("a", { href, download: `impact${name && `-${name}`}.csv` }).click();
    setTimeout(() => URL.revokeObjectURL(href), SAVING);
  });
}

// Blocked ids

function blockItems({ blocks }) {
  const items = blocks.slice(0, MOST_ITEMS).map(({ bucket, until, by, reason }) =>
    item(bucket, [until && `until ${utc(until)}`, `by ${by}${reason ? `: ${reason}` : ""}`], "Unblock", `Unblock ${bucket}`, () => unblock(bucket)));
  return [...items, ...more(blocks.length - items.length, "weir bucket blocks")];
}

const readBlocks = () => readList("blocks", "/blocks", blockItems);

async function unblock(name) {
  if (!hasToken("blocks-message")) return;
  try {
    const reply = await ask("DELETE", `${bucketPath(name)}/block`);
    if (!reply.ok) return say("blocks-message", reasonOf(reply), true);
    say("blocks-message", "Unblocked.");
    await readBlocks();
    await readBucket();
  } catch (error) {
    say("blocks-message", `no answer: ${error.message}`, true);
  }
}

// Live overrides

/** Reads `count=40 period=1s`, `unlimited` and `deny`. */
function numbersOf(text) {
  return Object.fromEntries(text.trim().split(/\s+/).map((word) => {
    const equals = word.indexOf("=");
    if (equals < 0) return [word, true];
    const value = word.slice(equals + 1);
    return [word.slice(0, equals), /^\d+$/.test(value) ? Number(value) : value];
  }));
}

function overrideItems({ overrides, next }) {
  const items = overrides.map((given) => {
    const facts = [given.inert ? `not in use: ${given.inert}` : allowed(given), given.until && `until ${utc(given.until)}`, `by ${given.by}`, given.comment];
    return item(given.override, facts, "Delete", `Delete the override of ${given.override}`, () => changeOverride("DELETE", given.override, undefined, "Deleted."));
  });
  return [...items, ...more(next, "weir override list")];
}

const readOverrides = () => readList("overrides", `/overrides?source=live&n=${MOST_ITEMS}`, overrideItems);

async function changeOverride(method, name, body, done) {
  if (!hasToken("override-message")) return;
  try {
    const reply = await ask(method, `/overrides/${encodeURIComponent(name)}`, body);
    if (!reply.ok) return say("override-message", reasonOf(reply), true);
    const lost = method === "PUT" && reply.body.kept === "process" ? " It ends when this Weir stops." : "";
    say("override-message", [done + lost, ...(reply.body.warnings ?? [])].join(" "));
    await readOverrides();
    if (bucket === reply.body.override) await look(bucket);
  } catch (error) {
    say("override-message", `no answer: ${error.message}`, true);
  }
}

onSubmit("override-form", "override-message", () => {
  const [span, comment] = [get("override-for").value.trim(), get("override-comment").value.trim()];
  const body = { ...numbersOf(get("override-numbers").value), ...(span && { for: span }), ...(comment && { comment }) };
  return changeOverride("PUT", get("override-id").value.trim(), body, "Set.");
});

// The token

function showToken(name) {
  get("forget").hidden = !token;
  say("token-message", name ? `The token of ${name} is in use. This page forgets it when it is closed or loaded again.` : "");
  page.hasTop = true;
  readIds();
}

onSubmit("token-form", "token-message", async () => {
  token = get("token").value.trim() || null;
  get("token").value = "";
  if (!token) return say("token-message", "type the token first.", true);
  const reply = await ask("GET", "/live");
  if (reply.ok) return showToken(reply.body.operator);
  const reason = reasonOf(reply);
  token = null;
  say("token-message", reason, true);
});

get("forget").addEventListener("click", () => {
  token = null;
  showToken(null);
  say("token-message", "The token is forgotten.");
  get("token").focus();
});

// Explaining a request

onSubmit("explain-form", "explain-message", async () => {
  const result = get("explanation");
  result.replaceChildren();
  const headers = {};
  for (const line of get("explain-headers").value.split("\n").map((line) => line.trim()).filter(Boolean)) {
    const colon = line.indexOf(":");
    if (colon < 1) return say("explain-message", "a header is written `name: value`.", true);
    const name = line.slice(0, colon).trim().toLowerCase();
    headers[name] = [...(Object.hasOwn(headers, name) ? headers[name] : []), line.slice(colon + 1).trim()];
  }
  const ip = get("explain-ip").value.trim() || get("explain-ip").placeholder;
  const body = { method: get("explain-method").value, url: get("explain-url").value.trim(), headers, ip };
  const reply = await ask("POST", "/explain", body);
  if (!reply.ok) return say("explain-message", reasonOf(reply), true);
  showExplanation(reply.body);
});

function showExplanation({ limits = [] }) {
  const applying = limits.filter((limit) => limit.applies).length;
  say("explain-message", `${count(applying, "limit applies", "limits apply")} to this request.`);
  const ordered = [...limits.filter((limit) => limit.applies), ...limits.filter((limit) => !limit.applies)];
  get("explanation").replaceChildren(...ordered.slice(0, MOST_ROWS).flatMap(explained));
}

/** Says what numbers allow. */
function allowed({ allows, windows }) {
  return allows === "windows" ? windows.map((window) => window.allows).join("; ") : allows;
}

function candidatesOf({ candidate, candidates }) {
  const all = [...(candidate ? [["", candidate]] : []), ...Object.entries(candidates ?? {})];
  const text = ([name, one]) => `${name && `${name}: `}${one.enforced ? "these are its numbers" : `${allowed(one)}, counted and not enforced`}`;
  return all.map(text).join("; ") || null;
}

function explained(limit) {
  const list = el("dl", {});
  const given = limit.given_by && `${limit.given_by.place}${limit.given_by.comment ? `, ${limit.given_by.comment}` : ""}`;
  facts(list, [
    ["Why", limit.because],
    ["Bucket", limit.bucket],
    ["Allows", limit.applies ? allowed(limit) : null],
    ["Elevated", limit.elevated],
    ["Candidate", candidatesOf(limit)],
    ["Cost", limit.cost],
    ["Override", given],
    ["Enforced", limit.enforced === undefined ? null : limit.enforced ? "yes" : "no"],
    ["Fits", limit.fits === false ? "no: the cost is above the burst" : null],
  ]);
  const parts = [el("h3", {}, `${limit.applies ? "✓" : "–"} ${limit.name} ${limit.applies ? "applies" : "does not apply"}`), list];
  if (limit.applies && limit.bucket) parts.push(lookButton(limit.bucket, "Look up this bucket", ""));
  return parts;
}

const isEncrypted = location.protocol === "https:" || /^(localhost|127\.|\[::1\]|.*\.localhost$)/.test(location.hostname);
if (!isEncrypted) say("token-message", "This connection is not encrypted: who can read it can read the token.");
read();
