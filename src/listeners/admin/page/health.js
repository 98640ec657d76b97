function card(title, word, bad, ...lines) {
  return { title, word, bad, lines: lines.filter(Boolean) };
}

function storeCard({ store }) {
  const problem = store.connected < store.workers || store.failing > 0 || store.breakers_open > 0;
  const word = store.connected === 0 ? "down" : problem ? "partly down" : "up";
  if (store.kind === "memory") {
    const most = store.buckets_max ? ` of ${compact.format(store.buckets_max)}` : "";
    return card("Store: memory", word, problem, `${whole.format(store.buckets ?? 0)}${most} buckets`);
  }
  const breakers = store.breakers_open ? `${count(store.breakers_open, "circuit breaker", "circuit breakers")} open` : "";
  return card("Store: Redis", word, problem, `${store.connected} of ${count(store.workers, "worker", "workers")} connected`, breakers, problem && store.error);
}

function rulesCard({ rules, limits, now_ms }) {
  const age = rules.loaded ? `, loaded ${span(Math.max(0, now_ms / 1000 - rules.loaded))} ago` : "";
  const text = count(limits.length, "limit", "limits") + age;
  return rules.error ? card("Rules", "rules on disk are broken; running the previous ones", true, text) : card("Rules", "loaded", false, text);
}

function processCard({ phase, started, now_ms, workers, connections }) {
  const word = { serving: "serving", starting: "starting", draining: "draining" }[phase];
  const isFull = connections.max > 0 && connections.open >= connections.max;
  return card("Process", isFull ? "too many connections" : word, phase !== "serving" || isFull,
    `up ${span(Math.max(0, now_ms / 1000 - started))}`, `${count(workers, "worker", "workers")}, ${count(connections.open, "connection", "connections")}`);
}

function upstreamsCard({ upstreams, workers, listeners }) {
  const all = Object.values(upstreams).reduce((sum, number) => sum + number, 0);
  if (!all) return listeners.some((listener) => listener.name === "proxy") ? card("Upstreams", "built in", false, "no addresses to check") : null;
  // Each worker has its own view of each address.
  const up = upstreams.healthy;
  const lines = ["ejected", "unhealthy"].map((state) => upstreams[state] && `${Math.ceil(upstreams[state] / workers)} ${state}`);
  const word = up === all ? "up" : up === 0 ? "down" : "partly down";
  return card("Upstreams", word, up < all, `${Math.floor(up / workers)} of ${count(Math.ceil(all / workers), "address", "addresses")} up`, ...lines);
}

function listenersCard({ listeners, blocks }) {
  const lines = listeners.map(({ name, address }) => `${name} ${address}`);
  return card("Listeners", listeners.length ? "open" : "none", false, ...lines, blocks ? `${count(blocks, "id", "ids")} blocked` : "");
}

function showHealth(live) {
  const cards = [processCard, rulesCard, storeCard, upstreamsCard, listenersCard].map((make) => make(live)).filter(Boolean);
  const list = get("health");
  while (list.children.length > cards.length) list.lastChild.remove();
  cards.forEach(({ title, word, bad, lines }, index) => {
    const item = list.children[index] ?? list.appendChild(el("li", {}, el("strong", {}), el("span", {})));
    item.classList.toggle("bad", bad);
    setText(item.firstChild, `${bad ? "▲" : "✓"} ${title}: ${word}`.replace(/: (memory|Redis): /, ", $1: "));
    const text = lines.join("\n");
    if (item.lastChild.dataset.text !== text) {
      item.lastChild.dataset.text = text;
      item.lastChild.replaceChildren(...lines.flatMap((line, place) => (place ? [el("br", {}), line] : [line])));
    }
  });
}

/** Shows the mistakes in the rules: sentences wrap, and a line of the file stays above the caret that points at it. */
function showBroken(error) {
  const section = get("broken");
  section.hidden = !error;
  if (!error || section.dataset.error === error) return;
  section.dataset.error = error;
  const isSource = (line) => /^ *\d* *\|/.test(line);
  const blocks = [];
  for (const line of error.trimEnd().split("\n")) {
    if (!blocks.length || isSource(line) !== isSource(blocks.at(-1)[0])) blocks.push([]);
    blocks.at(-1).push(line);
  }
  get("broken-text").replaceChildren(...blocks.map((lines) => el(isSource(lines[0]) ? "pre" : "div", {}, lines.join("\n"))));
  for (const source of section.querySelectorAll("pre")) {
    const lines = source.textContent.split("\n");
    const [longest, caret] = [Math.max(...lines.map((line) => line.length)), Math.max(...lines.map((line) => line.lastIndexOf("^")))];
    source.scrollLeft = (source.scrollWidth * caret) / longest - source.clientWidth / 2;
  }
}
