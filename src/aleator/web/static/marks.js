// Items that the user marked. They are stored in the browser, and can be downloaded as a file for labelling.

import { face } from "./tiles.js";
import { certaintyWords, element, plural } from "./words.js";

const $ = (id) => document.getElementById(id);
const COLUMNS = ["id", "kappa", "label", "path", "why", "new_label"];

export class Marks {
  #items = new Map();
  #place = "";
  #storable = true;
  #changed;

  constructor(changed) {
    this.#changed = changed;
    $("show-marked").addEventListener("click", () => (this.#list(), $("marked").showModal()));
    $("marked-close").addEventListener("click", () => $("marked").close());
    $("marked").addEventListener("click", (event) => event.target === $("marked") && $("marked").close());
    $("marked-clear").addEventListener("click", () => (this.#items.clear(), this.#keep(), this.#list()));
    window.addEventListener("storage", ({ key }) => key === this.#place && this.#follow());
    $("download-csv").addEventListener("click", () => this.#download("csv", "text/csv", csv(this.rows())));
    $("download-json").addEventListener("click", () =>
      this.#download("json", "application/json", JSON.stringify(this.rows(), null, 2) + "\n"),
    );
  }

  // Each collection has its own marks.
  open(key) {
    this.#place = `aleator marks ${key}`;
    this.#read();
    this.#show();
  }

  // Take the marks that are stored: another tab may have changed them.
  #read() {
    if (!this.#storable) return;
    try {
      const stored = JSON.parse(localStorage.getItem(this.#place) ?? "[]");
      this.#items = new Map(stored.map((item) => [item.key, item]));
    } catch {
      this.#items.clear(); // this page did not write it
    }
  }

  // Another tab has changed the marks.
  #follow() {
    this.#read();
    this.#show();
    this.#changed();
    if ($("marked").open) this.#list();
  }

  has(key) {
    return this.#items.has(key);
  }

  toggle(item) {
    this.#read();
    if (!this.#items.delete(item.key)) this.#items.set(item.key, entry(item));
    this.#keep();
  }

  // Mark the items. Those that are marked already get the reason and the new label of the audit, too.
  add(items) {
    this.#read();
    for (const item of items) {
      const found = entry(item);
      const known = this.#items.get(item.key) ?? found;
      const why = known.why.includes(found.why) ? known.why : [known.why, found.why].filter(Boolean).join("; ");
      this.#items.set(item.key, { ...known, why, new_label: known.new_label || found.new_label });
    }
    this.#keep();
  }

  // A new label that the user typed.
  #relabel(key, label) {
    this.#read();
    if (this.#items.has(key)) this.#items.get(key).new_label = label;
    this.#keep();
  }

  rows() {
    return [...this.#items.values()].map((item) => Object.fromEntries(COLUMNS.map((name) => [name, item[name] ?? null])));
  }

  #keep() {
    try {
      localStorage.setItem(this.#place, JSON.stringify([...this.#items.values()]));
    } catch {
      this.#storable = false; // it is full or not allowed: the marks are lost with the page
    }
    this.#show();
    this.#changed();
  }

  #show() {
    $("marked-count").textContent = this.#items.size;
    $("marked-count").classList.toggle("some", this.#items.size > 0);
  }

  #list() {
    const items = [...this.#items.values()];
    $("marked-hint").textContent = items.length
      ? `${plural(items.length, "item")}. A new label that you type here goes into the downloaded file.`
      : "No items yet. Mark an item with the star on its tile, or with the key m.";
    for (const id of ["download-csv", "download-json", "marked-clear"]) $(id).disabled = items.length === 0;
    $("marked-list").replaceChildren(...items.map((item) => this.#line(item)));
  }

  #line(item) {
    const words = `${item.id} · ${item.why || `certainty ${certaintyWords(item.likeliest ?? null, item.surer_than)}`}`;
    const label = element("input", {
      value: item.new_label, placeholder: item.label ?? "label", "aria-label": `New label of ${item.id}`,
      oninput: (event) => this.#relabel(item.key, event.target.value),
    });
    const remove = element(
      "button",
      { class: "quiet", type: "button", "aria-label": `Unmark ${item.id}`, onclick: () => (this.toggle(item), this.#list()) },
      "✕",
    );
    return element("li", {}, face(item, 96), element("span", { title: words }, words), label, remove);
  }

  #download(ending, type, content) {
    const address = URL.createObjectURL(new Blob([content], { type }));
    element("a", { href: address, download: `marked.${ending}` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
  }
}

// What is kept of an item.
function entry(item) {
  const { key, id, kappa, label, image, text, surer_than, likeliest, metadata } = item;
  const short = text === null ? null : text.slice(0, 600);
  const facts = { key, id, kappa, label, image, text: short, surer_than, likeliest, path: metadata.path };
  return { ...facts, why: reason(item), new_label: item.likelier ?? "" };
}

// Why an audit found an item; empty for items that were marked elsewhere.
function reason(item) {
  if (!("labels_differ" in item)) return "";
  if (item.likelier !== null) return `label error: ${item.given} or ${item.likelier}`;
  return item.group === null ? "odd one out" : `near duplicate, group ${item.group}`;
}

// A spreadsheet would run a cell that begins like a formula: it gets an apostrophe, as in `foundation/spreadsheets.py`.
function csv(rows) {
  const formula = (value) => typeof value === "string" && /^'*[=+\-@\t\r\n＝＋－＠]/.test(value) && Number.isNaN(Number(value));
  const text = (value) => (formula(value) ? `'${value}` : String(value));
  const cell = (value) => (value === null ? "" : `"${text(value).replaceAll('"', '""')}"`);
  return [COLUMNS.join(","), ...rows.map((row) => COLUMNS.map((name) => cell(row[name])).join(","))].join("\r\n") + "\r\n";
}
