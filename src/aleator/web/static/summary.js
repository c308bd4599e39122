// What an answer claims, in words.

import { certaintyWords, count, element, percent } from "./words.js";

const MOST_LABELS = 6;

// "The model is unsure about this", for example, and how it compares with the collection.
export function certaintySentence(query) {
  const word = certaintyWords(query.surer_than);
  return ["Certainty: ", element("strong", {}, word), ". The model is more certain about this than about ", element("strong", {}, percent(query.surer_than)), " of the collection."];
}

// The labels of hits with their shares, the most frequent first.
export function labelShares(hits) {
  const labelled = hits.filter((hit) => hit.label !== null);
  const counts = new Map();
  for (const { label } of labelled) counts.set(label, (counts.get(label) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]).map(([label, n]) => ({ label, n, share: n / hits.length }));
}

// Probabilities of labels: "coat 50 %, shirt 30 %".
export const likely = (labels) => labels.map((one) => `${one.label} ${percent(one.probability)}`).join(", ");

// The shares as buttons: pressing one shows the items of this label alone.
export function shareButtons(shares, chosen, choose) {
  const buttons = shares.slice(0, MOST_LABELS).map(({ label, n, share }) => {
    const bar = element("i", { "aria-hidden": "true" });
    bar.style.width = `${100 * share}%`;
    const pressed = label === chosen;
    return element(
      "button",
      { class: "share", type: "button", "aria-pressed": String(pressed), title: `${count(n)} items`, onclick: () => choose(pressed ? null : label) },
      bar, element("span", {}, `${label}: ${percent(share)}`),
    );
  });
  const more = shares.length - MOST_LABELS;
  return more > 0 ? [...buttons, element("span", { class: "hint" }, `and ${more} more`)] : buttons;
}

// What a calibrated index promises.
export function promiseText(promise) {
  const one = promise.sets === "labels" ? " It has one item for each label that the query could have." : "";
  const error = promise.error === null ? "" : ` Of the first items that are sure enough, at most ${share(promise.error)} are wrong (assured with ${share(promise.assurance)}).`;
  const stale = promise.current ? "" : " Items were added or removed since then: calibrate the index again.";
  return `The set holds a right answer for ${share(promise.coverage)} of questions like the ${count(promise.questions)} of the calibration.${one}${error}${stale}`;
}

const share = (value) => `${Number((100 * value).toPrecision(4))}\u00a0%`;
