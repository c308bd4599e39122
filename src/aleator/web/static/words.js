// Numbers as text, and small elements.

export const count = (n) => n.toLocaleString("en");
// Only 0 and 1 are shown as 0 % and 100 %.
export function percent(share) {
  if (share > 0 && share <= 0.005) return "<1\u00a0%";
  if (share < 1 && share >= 0.995) return ">99\u00a0%";
  return `${Math.round(100 * share)}\u00a0%`;
}
export const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

export function kappaText(kappa) {
  const value = Number(kappa); // "Infinity" too
  if (!Number.isFinite(value)) return "∞";
  if (value === 0 || (value >= 0.01 && value < 1e6)) {
    return value >= 100 ? count(Math.round(value)) : String(Number(value.toPrecision(3)));
  }
  return value.toExponential(1).replace("e+", "e");
}

// A certainty in words, by the probability of the likeliest label if it is known; as in retrieval/certainty_words.py.
export function certaintyWords(likeliest, surerThan) {
  if (likeliest === null) return `above ${percent(surerThan)} of the items`;
  const limits = [[0.25, "very low"], [0.5, "low"], [0.75, "medium"], [0.95, "high"]];
  return limits.find(([limit]) => likeliest < limit)?.[1] ?? "very high";
}

// element("li", { class: "tile", onclick: f }, child, "text", ...)
export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
