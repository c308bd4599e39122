// Items as tiles, and a grid of them that the arrow keys walk.

import { imageAddress } from "./api.js";
import { certaintyWords, element, kappaText, percent, svg } from "./words.js";

// A picture of an item: its image, its text or, without both, its certainty as a wedge on a circle.
export function face(item, size) {
  const box = element("div", { class: "face" });
  if (item.image) {
    const image = element("img", { alt: "", loading: "lazy", decoding: "async", src: imageAddress(item.key, size) });
    image.addEventListener("load", () => image.classList.toggle("small", image.naturalWidth <= 96));
    image.addEventListener("error", () => box.replaceChildren(item.text ? words(item.text) : glyph(item.surer_than)));
    box.append(image);
  } else {
    box.append(item.text ? words(item.text) : glyph(item.surer_than));
  }
  return box;
}

const words = (text) => element("p", { class: "words" }, text.slice(0, 600));

export function glyph(sureness) {
  const half = 0.06 + 1.4 * (1 - sureness); // the wider, the less certain
  const at = (angle) => `${(32 + 24 * Math.cos(angle)).toFixed(2)} ${(32 - 24 * Math.sin(angle)).toFixed(2)}`;
  const [from, to] = [Math.PI / 2 - half, Math.PI / 2 + half];
  return svg(
    "svg",
    { viewBox: "0 0 64 64", class: "glyph", "aria-hidden": "true" },
    svg("circle", { cx: 32, cy: 32, r: 24, class: "line" }),
    svg("path", { d: `M32 32L${at(from)}A24 24 0 ${half > Math.PI / 2 ? 1 : 0} 0 ${at(to)}Z`, class: "area wedge" }),
  );
}

export function tile(item, marks, open) {
  const sure = item.likeliest ?? item.surer_than;
  const rank = item.likeliest === null ? `more certain than ${percent(sure)} of the items` : `its likeliest label has a probability of ${percent(sure)}`;
  let scores = [["certainty", certaintyWords(item.likeliest, item.surer_than), rank]];
  const numbers = [["κ", kappaText(item.kappa), "kappa: how much the item shows"]];
  if (item.cosine !== undefined) {
    scores.unshift(["match", percent(item.match_probability), "how likely it is that item and query show the same"]);
    numbers.unshift(["cos", item.cosine.toFixed(3), "how close the directions of item and query are"]);
  }
  if ("labels_differ" in item) scores = findingScores(item);
  const line = ([name, value, title], kind) => element("div", { title, class: kind }, element("dt", {}, name), element("dd", {}, value));
  const why = [...scores.map((score) => line(score)), ...numbers.map((score) => line(score, "number"))];
  const sureness = element("i");
  sureness.style.width = `${Math.max(2, 100 * sure)}%`;
  sureness.style.setProperty("--whole", `${100 / Math.max(0.02, sure)}%`);
  const picture = face(item, 320);
  const button = element(
    "button",
    { class: "open", type: "button", tabindex: -1, "aria-keyshortcuts": "m", onclick: () => open(item) },
    picture,
    element("div", { class: "sureness", title: rank }, sureness),
    element("div", { class: "who" }, name(item.id), item.label === null ? null : element("span", {}, item.label)),
    element("dl", { class: "why" }, ...why),
  );
  const mark = element("button", { class: "mark", type: "button", tabindex: -1, onclick: () => marks.toggle(item) });
  const box = element("li", { class: "tile", "data-key": item.key }, button, mark);
  showMark(box, item, marks.has(item.key));
  return box;
}

// An id in one line. A long one is cut in the middle: ids differ at their ends.
function name(id) {
  const [text, tail] = [String(id), 10];
  const cut = text.length > 2 * tail ? text.length - tail : text.length;
  return element("b", { title: text }, element("span", {}, text.slice(0, cut)), text.slice(cut));
}

// Why an audit found an item.
function findingScores(item) {
  if (item.likelier !== null) {
    return [
      [`is it ${item.likelier}?`, percent(item.p_likelier), "probability of the likelier label"],
      [`given: ${item.given}`, percent(item.p_given), "probability of the given label"],
    ];
  }
  if (item.group !== null) {
    const labels = item.labels_differ ? "labels differ" : "";
    return [[`group ${item.group}`, labels, "items of a group are near duplicates"]];
  }
  return [["distance", `× ${item.distance.toFixed(2)}`, "mean distance to its neighbours, in units of the usual one"]];
}

export function showMark(box, item, marked) {
  const mark = box.querySelector(".mark");
  mark.setAttribute("aria-pressed", String(marked));
  mark.setAttribute("aria-label", `Mark ${item.id}`);
  mark.textContent = marked ? "★" : "☆";
}

// One tile of the grid takes part in tabbing. Arrow keys move to other tiles, Enter opens a tile, m marks it.
export function walkable(grid, mark) {
  const tiles = () => [...grid.querySelectorAll(".tile:not([hidden]) .open")];
  grid.addEventListener("focusin", (event) => {
    const button = event.target.closest(".open");
    if (!button) return;
    for (const other of grid.querySelectorAll('.open[tabindex="0"]')) other.tabIndex = -1;
    button.tabIndex = 0;
  });
  grid.addEventListener("keydown", (event) => {
    const all = tiles();
    const here = all.indexOf(event.target.closest(".tile")?.querySelector(".open"));
    if (here < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key.toLowerCase() === "m") return mark(all[here].closest(".tile").dataset.key);
    const columns = Math.max(1, all.findIndex((one) => one.offsetParent.offsetTop > all[0].offsetParent.offsetTop));
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    const target = event.key === "Home" ? 0 : event.key === "End" ? all.length - 1 : here + step;
    if (Number.isNaN(target) || !all[target]) return;
    event.preventDefault();
    all[target].focus();
  });
}

export function makeReachable(grid) {
  const first = grid.querySelector(".tile:not([hidden]) .open");
  if (first && !grid.querySelector('.tile:not([hidden]) .open[tabindex="0"]')) first.tabIndex = 0;
}
