// Runs before the live page's own script: notes which properties of answers it reads, and texts that show that one was not there.
(() => {
  const reads = new Set();
  const wrong = new Set();
  window.answersRead = () => [...reads];
  window.wrongTexts = () => [...wrong];

  // Properties of promises and objects, not of answers.
  const OWN = new Set(["then", "toJSON", ...Object.getOwnPropertyNames(Object.prototype)]);
  const seen = new WeakMap();
  const watched = (value, path) => {
    if (typeof value !== "object" || value === null) return value;
    if (!seen.has(value)) {
      const get = (target, key) => {
        const found = target[key];
        if (typeof key !== "string") return found;
        if (Array.isArray(target)) return /^\d+$/.test(key) ? watched(found, [...path, "*"]) : found;
        if (OWN.has(key) && !Object.hasOwn(target, key)) return found;
        reads.add(JSON.stringify([...path, key]));
        return watched(found, [...path, key]);
      };
      seen.set(value, new Proxy(value, { get }));
    }
    return seen.get(value);
  };

  const names = new WeakMap();
  const texts = new Map();
  const { fetch } = window;
  window.fetch = async (path, options = {}) => {
    const response = await fetch(path, options);
    names.set(response, [options.method ?? "GET", new URL(response.url).pathname, String(response.status)]);
    return response;
  };
  const { json, text } = Response.prototype;
  Response.prototype.json = async function () {
    return watched(await json.call(this), names.get(this));
  };
  Response.prototype.text = async function () {
    const found = await text.call(this);
    texts.set(found, names.get(this));
    return found;
  };
  const { parse } = JSON;
  JSON.parse = (source) => watched(parse(source), texts.get(source));

  const WRONG = /\bundefined\b|\bNaN\b|\[object |\bnull\b/;
  const check = (text, node) => {
    if (WRONG.test(text)) wrong.add(`${text.slice(0, 200)} in ${(node.closest?.("section, header, main, body") ?? node).id || node.nodeName}`);
  };
  const visit = (node) => {
    const element = node.nodeType === Node.ELEMENT_NODE ? node : node.parentElement;
    if (!element || element.closest("script, style, noscript")) return;
    if (node.nodeType === Node.TEXT_NODE) check(node.data, element);
    else for (const { value } of node.attributes ?? []) check(value, element);
    node.childNodes.forEach(visit);
  };
  new MutationObserver((changes) => {
    for (const { target, addedNodes, type } of changes) (type === "childList" ? [...addedNodes] : [target]).forEach(visit);
  }).observe(document, { subtree: true, childList: true, characterData: true, attributes: true });
})();
