// The page: questions and their answers. One answer holds the hits of the widest credible set, and the cosine at which
// each smaller set ends. So the slider needs no further request.

import { call, post } from "./api.js";
import { column, inBoth } from "./beside.js";
import { watchCollection } from "./changes.js";
import { histogram, rejectCurve, sizeCurve } from "./charts.js";
import { wireDropping } from "./dropping.js";
import { introWasRead, showIntro, wireIntro } from "./intro.js";
import { keepImage, keptImage } from "./keep.js";
import { Marks } from "./marks.js";
import { pictureOf, titleOf } from "./question.js";
import { certaintySentence, labelShares, likely, promiseText, shareButtons } from "./summary.js";
import { makeReachable, showMark, tile, walkable } from "./tiles.js";
import { count, element, kappaText, percent, plural } from "./words.js";

const $ = (id) => document.getElementById(id);
const MOST_HITS = 200;
const PAGE = 48;
const AGAIN = 3000; // milliseconds until a page that could not start tries again
const FINDINGS = {
  "label-errors": ["Likely label errors", "items for which another label is at least 10 times as probable, the most suspicious first. Mark those that are wrong, then download them"],
  "near-duplicates": ["Near duplicates", "items that look almost the same, group by group. Mark those that are one too many"],
  "odd-ones": ["Odd ones out", "items more than twice as far from their neighbours as usual, the oddest first. Mark those that do not belong here"],
};
const WIDEST = { p: 0.99, threshold: 0.05 };

let info; // about the collection
let subject = null; // what is asked about
let answer = null;
let headings = []; // of the groups of hits, each with its tiles
let tab = "least-sure";
let shown = []; // [tile, item] pairs in the grid
let level = 95; // of the credible set, in percent
let threshold = 50; // least match probability, in percent
let droppedImage = null; // the last image of the user that was answered; the address of the page cannot name it
let offeredImage = null; // one that was not yet
let wanted = null; // label of the hits that are shown alone
let kept = null; // the question that others are compared with
let pending = new AbortController();

const marks = new Marks(() => {
  for (const [box, item] of shown) showMark(box, item, marks.has(item.key));
  showQueryMark();
});

// ---- asking

const by = () => document.querySelector('input[name="by"]:checked').value;

// The promise of an index is for new questions. An item of the collection would find itself.
function waysToSearch(kind) {
  const promised = $("by-promised");
  promised.hidden = !info.promise || kind === "item";
  $("promise-void").hidden = !info.promise_is_void || kind === "item";
  if (promised.hidden && by() === "promised") document.querySelector('input[name="by"][value="credible"]').checked = true;
}

// A new question or list takes the place of the one that is on its way.
function begin() {
  pending.abort();
  pending = new AbortController();
  $("grid").removeAttribute("aria-busy");
  return pending.signal;
}

// Whether it was answered.
async function ask(next, { focus = false } = {}) {
  const signal = begin();
  waysToSearch(next.kind);
  const params = { by: by(), limit: MOST_HITS, ...WIDEST };
  $("grid").setAttribute("aria-busy", "true");
  try {
    const received = await {
      item: () => call("/api/query/item", { params: { id: next.key, ...params }, signal }),
      text: () => post("/api/query/text", { text: next.text }, { params, signal }),
      features: () => post("/api/query/features", { features: next.features }, { params, signal }),
      image: () => call("/api/query/image", { params, signal, method: "POST", body: next.file }),
    }[next.kind]();
    [subject, answer, tab, wanted] = [next, received, "answer", null];
    showQuery();
    showAnswer();
    $("alert").hidden = true;
    if (focus) {
      window.scrollTo({ top: 0 });
      ($("grid").querySelector('.open[tabindex="0"]') ?? $("panel")).focus({ preventScroll: true });
    }
    return true;
  } catch (error) {
    if (error.name === "AbortError") return false;
    complain(error.message);
    if (answer === null && shown.length === 0) browse();
    return false;
  } finally {
    if (!signal.aborted) $("grid").removeAttribute("aria-busy");
  }
}

// The address names the question, so that back, forward and bookmarks work.
function go(hash) {
  if (location.hash === hash) follow();
  else location.hash = hash;
}

async function follow({ focus = true } = {}) {
  const [kind, coded] = location.hash.slice(1).split(/=(.*)/s);
  if (kind === "image") return followImage({ focus });
  const value = coded && decoded(coded);
  if (!value) {
    clear();
    if (value === null) complain("The address of this page is cut off or damaged, so its question cannot be read.");
  } else if (kind === "item") ask({ kind, key: value }, { focus });
  else if (kind === "text") ask({ kind, text: value }, { focus });
  else if (kind === "features") ask({ kind, features: value.split(",").map(Number) }, { focus });
  else clear();
}

function decoded(value) {
  try {
    return decodeURIComponent(value);
  } catch {
    return null;
  }
}

// An image takes the place of the one before once it was answered: the file may be no image at all.
async function followImage({ focus }) {
  const file = offeredImage ?? (droppedImage ??= await keptImage(info.key));
  offeredImage = null;
  if (!file) return clear();
  if ((await ask({ kind: "image", file }, { focus })) && file !== droppedImage) {
    droppedImage = file;
    keepImage(info.key, file);
  }
}

const openItem = (item) => go(`#item=${encodeURIComponent(item.key)}`);

function askImage(file) {
  if (!file) return;
  if (file.size > info.upload_bytes) return complain(`The image is larger than ${megabytes(info.upload_bytes)}.`);
  offeredImage = file;
  go("#image");
}

function clear() {
  [subject, answer] = [null, null];
  if (tab === "answer") tab = "least-sure";
  showQuery();
  browse();
}

// ---- the query and its certainty

function showQuery() {
  const answered = answer !== null;
  for (const id of ["query", "level", "tab-answer"]) $(id).hidden = !answered;
  if (answered) showIntro(false);
  document.querySelector("main").classList.toggle("answered", answered);
  drawCertainty();
  if (!answered) return;
  const item = answer.query.item;
  const text = item?.text ?? subject.text ?? null;
  $("query-title").textContent = titleOf(subject, answer);
  $("query-label").textContent = item?.label == null ? "" : `label: ${item.label}`;
  const { labels, unlike } = answer.query;
  $("query-could-be").textContent = labels.length ? `Could be ${likely(labels)} (probability of each label)` : "";
  $("query-unlike").hidden = !unlike;
  $("query").classList.toggle("wordy", text !== null && !item?.image);
  $("query-face").replaceChildren(...pictureOf(subject, answer).childNodes);
  showQueryMark();
}

function showQueryMark() {
  const item = answer?.query.item;
  $("query-mark").hidden = !item;
  if (!item) return;
  const marked = marks.has(item.key);
  $("query-mark").setAttribute("aria-pressed", String(marked));
  $("query-mark").textContent = marked ? "★ Marked" : "☆ Mark";
}

function drawCertainty() {
  const query = answer?.query;
  const { quantiles } = info.certainty;
  const range = info.items ? `The model is less certain about some items than about others. For half of them κ is between ${kappaText(quantiles["0.25"])} and ${kappaText(quantiles["0.75"])}.` : "";
  $("certainty-sentence").replaceChildren(...(query ? certaintySentence(query) : [range]));
  $("histogram").replaceChildren(histogram(info.certainty, query?.kappa));
}

// ---- the answer and its slider

function showAnswer() {
  drawGrid(answer.hits);
  showModes();
  const slider = $("slider");
  const match = answer.by === "match";
  $("slider-box").hidden = ["nearest", "promised"].includes(answer.by);
  $("sizes").hidden = answer.by !== "credible";
  [slider.min, slider.max] = match ? [100 * WIDEST.threshold, 99] : [1, 99];
  slider.value = match ? threshold : level;
  selectTab("answer");
  applySlider();
}

// The modes of a query as groups of hits: either this, or that.
function showModes() {
  headings = [];
  const { modes } = answer.query;
  if (modes.length === 0) return;
  const groups = new Map();
  for (const [box, hit] of shown) groups.set(hit.mode, [...(groups.get(hit.mode) ?? []), box]);
  const grid = $("grid");
  for (const [mode, boxes] of groups) {
    const heading = element("li", { class: "either" }, `${headings.length ? "or" : "Either"} this: ${percent(modes[mode])}`);
    headings.push([heading, boxes]);
    grid.append(heading, ...boxes);
  }
}

// How many hits belong to the answer where its slider stands, and how many items in all; null if that is unknown.
function extent({ hits, levels, by: way, size }) {
  if (way === "credible") {
    const set = levels[level - 1];
    const several = set.cosine === null;
    return [several ? Math.min(hits.length, set.size) : hits.filter((hit) => hit.cosine >= set.cosine).length, set.size];
  }
  if (way === "match") {
    const likely = hits.filter((hit) => hit.match_probability >= threshold / 100).length;
    return [likely, likely < hits.length || size !== null ? likely : null];
  }
  return [hits.length, way === "promised" ? size : null];
}

// Hits are in order, so the answer for any position of the slider is the beginning of the list.
function applySlider() {
  const value = Number($("slider").value);
  const { hits } = answer;
  if (answer.by === "credible") level = value;
  if (answer.by === "match") threshold = value;
  const [visible, size] = extent(answer);
  let [rule, set] = ["The items nearest in direction, whether or not they could be a match.", "nearest"];
  // The filters of label and id come after the set: they do not change what the answer is.
  if (answer.by === "credible") {
    const { cosine } = answer.levels[level - 1];
    const degrees = (Math.acos(cosine) * 180) / Math.PI;
    rule = cosine === null
      ? `The query could be one thing or another. The answer is so large that the model is ${level} % sure that it reaches the right things.`
      : `The answer is so large that the model is ${level} % sure that it reaches the right things: all items within ${degrees.toFixed(1)}° of the query’s direction.`;
    set = `that it could be, at a credible level of ${level} %`;
    $("slider-label").textContent = `Credible level ${level} %`;
    $("sizes").replaceChildren(sizeCurve(answer.levels, level - 1));
  } else if (answer.by === "match") {
    rule = `The answer is all items that show the same as the query with a probability of at least ${threshold} %, given how certain the model is about both.`;
    set = `with a match probability of ${threshold} % or more`;
    $("slider-label").textContent = `Match probability of ${threshold} % or more`;
  } else if (answer.by === "promised") {
    [rule, set] = [promiseText(info.promise), "in the promised set"];
  }
  $("unsure").hidden = answer.sure !== false;
  $("unsure").textContent = "Not sure enough to answer with one item. The set keeps its promise.";
  const answered = hits.slice(0, visible);
  const passing = filtered(answered);
  shown.forEach(([box, hit]) => (box.hidden = !passing.has(hit)));
  showShares(answered);
  for (const [heading, boxes] of headings) heading.hidden = boxes.every((box) => box.hidden);
  const total = size === null ? `${count(visible)}${answer.by === "match" ? "+" : ""}` : count(size);
  $("size").textContent = size === null ? `${total} items` : plural(size, "item");
  $("tab-size").textContent = total;
  $("rule").textContent = rule;
  $("status").textContent =
    size !== null && size > visible
      ? `${plural(size, "item")} ${set}; the nearest ${count(visible)} are shown`
      : answer.by === "nearest" ? `The ${plural(visible, "nearest item")}` : `${total} ${visible === 1 ? "item" : "items"} ${set}`;
  if (passing.size < visible) $("status").textContent += `; ${count(passing.size)} of them pass the filter`;
  $("empty").hidden = passing.size > 0;
  $("empty").textContent = visible
    ? "No item of the answer passes the filter."
    : "No item belongs to the answer: nothing in the collection looks like this. Move the slider to see what comes close.";
  makeReachable($("grid"));
}

// The hits with the label and the part of an id that the user asks for.
function filtered(hits) {
  const part = $("find").value.trim().toLowerCase();
  return new Set(hits.filter((hit) => (wanted === null || hit.label === wanted) && String(hit.id).toLowerCase().includes(part)));
}

function showShares(hits) {
  const shares = labelShares(hits);
  const choose = (label) => {
    wanted = label;
    applySlider();
    $("shares").querySelector(label === null ? ".share" : '.share[aria-pressed="true"]')?.focus();
  };
  const title = element("span", { class: "hint" }, "Labels of these items:");
  $("shares").replaceChildren(...(shares.length ? [title, ...shareButtons(shares, wanted, choose)] : []));
}

// ---- two questions side by side

function presentQuestion() {
  const [visible, size] = extent(answer);
  const [asked, received] = [subject, answer];
  const title = titleOf(subject, answer);
  return { title, picture: () => pictureOf(asked, received), query: answer.query, hits: answer.hits.slice(0, visible), size, answer };
}

function showBeside() {
  $("beside").hidden = kept === null;
  $("query-compare").hidden = kept !== null;
  if (kept === null) return;
  const second = answer === null || answer === kept.answer ? null : presentQuestion();
  $("beside").hidden = second !== null && tab !== "answer"; // it waits for a second question in every tab
  $("beside-columns").replaceChildren(column(kept), column(second));
  $("beside-both").textContent = inBoth(kept, second);
}

// ---- browsing

async function browse(more = false) {
  const signal = begin();
  selectTab(tab);
  try {
    await (tab === "curve" ? showCurve(signal) : showList(more, signal));
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!more) drawGrid([]); // what was there belongs to another list
    $("status").textContent = "";
    complain(error.message);
  } finally {
    if (!signal.aborted) $("grid").removeAttribute("aria-busy");
  }
}

async function showList(more, signal) {
  const params = { order: tab, offset: more ? shown.length : 0, limit: PAGE, label: $("label").value, find: $("find").value.trim() };
  $("grid").setAttribute("aria-busy", "true");
  const audit = tab === "findings";
  const kind = $("finding").value;
  const page = audit ? await call("/api/findings", { params: { ...params, order: "", label: "", find: "", kind }, signal }) : await call("/api/items", { params, signal });
  drawGrid(page.items, more);
  $("status").textContent = audit
    ? `${count(shown.length)} of ${count(page.total)}: ${FINDINGS[kind][1]}.`
    : `${plural(shown.length, "item")} of ${count(page.total)}, the ${tab === "surest" ? "most" : "least"} certain first`;
  if (page.left_out) $("status").textContent += ` Left out: ${plural(page.left_out, "finding")} about items or labels that this collection does not have.`;
  $("more").hidden = shown.length >= page.total;
  $("empty").hidden = shown.length > 0;
  $("mark-all").hidden = !audit || shown.length === 0;
  const searched = params.find !== "" || params.label !== "";
  const nothing = page.left_out ? "No finding of this kind fits the collection. Was the audit made of other items?" : "The audit found nothing of this kind.";
  $("empty").textContent = audit ? nothing : searched ? "No item passes the filter." : "The collection is empty.";
}

async function showCurve(signal) {
  $("curve").replaceChildren();
  $("status").textContent = "Comparing nearest neighbours …";
  const curve = await call("/api/reject-curve", { signal });
  const width = Math.min(680, Math.max(260, $("curve").clientWidth - 40)); // as wide as it is shown: text keeps its size
  $("curve").replaceChildren(...rejectCurve(curve, width));
  $("status").textContent = "How often the nearest neighbour has the same label, when the least certain items are left out";
}

// What a person does hides the message about what failed before.
function browseAnew(more = false) {
  $("alert").hidden = true;
  browse(more);
}

function drawGrid(items, more = false) {
  const boxes = items.map((item) => [tile(item, marks, openItem), item]);
  shown = more ? [...shown, ...boxes] : boxes;
  const grid = $("grid");
  if (!more) grid.replaceChildren();
  grid.append(...boxes.map(([box]) => box));
  const [images, texts] = [items.some((item) => item.image), items.some((item) => item.text !== null)];
  grid.classList.toggle("wordy", texts && !images);
  grid.classList.toggle("bare", !texts && !images);
  makeReachable(grid);
}

// ---- tabs

function selectTab(name) {
  tab = name;
  for (const button of $("tabs").children) {
    const selected = button.id === `tab-${name}`;
    button.setAttribute("aria-selected", String(selected));
    button.tabIndex = selected ? 0 : -1;
  }
  $("panel").setAttribute("aria-labelledby", `tab-${name}`);
  $("grid").hidden = name === "curve";
  $("curve").hidden = name !== "curve";
  $("more").hidden = true;
  $("empty").hidden = true;
  $("claim").hidden = name !== "answer";
  showBeside();
  $("mark-all").hidden = true;
  $("label-box").hidden = info.labels.length === 0 || ["answer", "curve", "findings"].includes(name);
  $("finding-box").hidden = name !== "findings";
  $("find-box").hidden = ["curve", "findings"].includes(name);
  $("numbers-box").hidden = name === "curve";
}

function chooseTab(button) {
  tab = button.id.slice("tab-".length);
  if (tab !== "answer") return browseAnew();
  begin(); // a list that is still on its way would take the place of the answer
  $("alert").hidden = true;
  showAnswer();
}

// On a phone the controls come after the answer, which may be long.
function jump(card, control) {
  $(card).scrollIntoView();
  control.focus({ preventScroll: true });
}

// ---- errors

function complain(message) {
  $("alert-text").textContent = message[0].toUpperCase() + message.slice(1);
  $("alert").hidden = false;
}

const megabytes = (bytes) => `${Math.round(bytes / 2 ** 20)} MB`;

// ---- events

function wire() {
  $("tabs").addEventListener("click", (event) => {
    const button = event.target.closest("[role=tab]");
    if (button) chooseTab(button);
  });
  $("tabs").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const all = [...$("tabs").children].filter((one) => !one.hidden);
    const next = all[(all.indexOf(document.activeElement) + step + all.length) % all.length];
    next.focus();
    chooseTab(next);
  });
  for (const id of ["label", "finding"]) $(id).addEventListener("change", () => browseAnew());
  $("find").addEventListener("input", () => (tab === "answer" ? applySlider() : browseAnew()));
  $("numbers").addEventListener("change", () => $("grid").classList.toggle("numbers", $("numbers").checked));
  $("mark-all").addEventListener("click", () => marks.add(shown.map(([, item]) => item)));
  wireIntro();
  $("changed").addEventListener("click", showChanged);
  $("query-compare").addEventListener("click", () => ((kept = presentQuestion()), showBeside(), $("beside-close").focus()));
  $("to-level").addEventListener("click", () => jump("level", $("slider-box").hidden ? document.querySelector('input[name="by"]:checked') : $("slider")));
  $("to-ask").addEventListener("click", () => jump("ask", $("id")));
  $("beside-close").addEventListener("click", () => ((kept = null), showBeside(), $("query-compare").focus()));
  $("more").addEventListener("click", () => browseAnew(true));
  $("slider").addEventListener("input", applySlider);
  $("slider").addEventListener("change", showBeside);
  for (const choice of document.getElementsByName("by")) choice.addEventListener("change", () => subject && ask(subject));
  $("query-mark").addEventListener("click", () => marks.toggle(answer.query.item));
  $("query-clear").addEventListener("click", () => go("#"));
  $("alert-close").addEventListener("click", () => ($("alert").hidden = true));
  $("id-form").addEventListener("submit", (event) => {
    event.preventDefault();
    go(`#item=${encodeURIComponent($("id").value)}`);
  });
  $("text-form").addEventListener("submit", (event) => {
    event.preventDefault();
    go(`#text=${encodeURIComponent($("text").value)}`);
  });
  $("features-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const numbers = $("features").value.split(/[\s,;[\]]+/).filter(Boolean);
    if (numbers.some((number) => !Number.isFinite(Number(number)))) return complain("Features are numbers, separated by commas or spaces.");
    go(`#features=${encodeURIComponent(numbers.join(","))}`);
  });
  $("file").addEventListener("change", (event) => {
    askImage(event.target.files[0]);
    event.target.value = ""; // otherwise the same file could not be chosen again
  });
  walkable($("grid"), (key) => marks.toggle(shown.find(([, item]) => item.key === key)[1]));
  window.addEventListener("hashchange", () => follow());
}

function introduce() {
  document.title = `What could it be? · ${info.name}`;
  $("facts").textContent = `${plural(info.items, "item")} · ${info.name}`;
  $("certainty-of-labels").hidden = !info.by_labels;
  $("drop").hidden = info.model !== "images";
  $("drop-limit").textContent = `up to ${megabytes(info.upload_bytes)}`;
  $("text-form").hidden = info.model !== "text";
  $("features-form").hidden = info.model !== "features";
  $("features-label").textContent = `${count(info.model_features ?? 0)} features of your own, as numbers`;
  $("id").placeholder = info.model ? "or an item’s id" : "an item’s id";
  $("ask-hint").textContent = info.model ? "Or click any item." : "Click any item. Start the server with --model to ask about your own data.";
  $("tab-curve").hidden = info.labels.every((one) => one.count < 2);
  const kinds = Object.entries(info.findings);
  $("tab-findings").hidden = kinds.length === 0;
  $("finding").replaceChildren(...kinds.map(([kind, n]) => element("option", { value: kind }, `${FINDINGS[kind][0]} (${count(n)})`)));
  const all = element("option", { value: "" }, "any");
  $("label").replaceChildren(all, ...info.labels.map(({ label, count: n }) => element("option", { value: label }, `${label} (${count(n)})`)));
}

// What is on the screen stays until the user asks: tiles must not move under the pointer.
function collectionChanged(now) {
  info = now;
  $("facts").textContent = `${plural(info.items, "item")} · ${info.name}`;
  $("changed").hidden = false;
}

function showChanged() {
  $("changed").hidden = true;
  const label = $("label").value;
  introduce();
  if ([...$("label").options].some((option) => option.value === label)) $("label").value = label;
  drawCertainty();
  if (tab === "answer") follow({ focus: false });
  else browse();
  $("panel").focus({ preventScroll: true });
}

// A server that restarts or is busy answers later.
async function describedCollection() {
  for (;;) {
    try {
      return await call("/api/collection");
    } catch (error) {
      if (error.status < 500) return complain(error.message);
      complain(`${error.message} The page tries again until it gets an answer.`);
      await new Promise((done) => setTimeout(done, AGAIN));
    }
  }
}

async function start() {
  info = await describedCollection();
  document.querySelector("main").removeAttribute("aria-busy");
  if (!info) return;
  $("alert").hidden = true;
  introduce();
  marks.open(info.key);
  wire();
  if (info.model === "images") wireDropping($("drop"), askImage);
  showIntro(!introWasRead() && !/^#(item|text|features|image)/.test(location.hash));
  drawCertainty();
  selectTab(tab);
  follow({ focus: false });
  watchCollection(info, collectionChanged);
}

start();
