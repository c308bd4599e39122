// What an answer claims, in words.

import { certaintyWords, count, element, percent } from "./words.js";

const MOST_LABELS = 6;

export const likeliest = (query) => query.labels[0]?.probability ?? null;

// How certain the model is, in words: of the label, or compared with the collection.
export function certaintySentence(query) {
  const known = likeliest(query) !== null;
  return [known ? "Certainty of the label: " : "Certainty: ", element("strong", {}, certaintyWords(likeliest(query), query.surer_than)), "."];
}

// The labels of hits with their shares, the most frequent first.
export function labelShares(hits) {
  const labelled = hits.filter((hit) => hit.label !== null);
  const counts = new Map();
  for (const { label } of labelled) counts.set(label, (counts.get(label) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]).map(([label, n]) => ({ label, n, share: n / hits.length }));
}

// Probabilities of labels: "coat: 50 %, shirt: 30 %".
export const likely = (labels) => labels.map((one) => `${one.label}: ${percent(one.probability)}`).join(", ");

// The shares as buttons: pressing one shows the items of this label alone.
export function shareButtons(shares, chosen, choose) {
  const buttons = shares.slice(0, MOST_LABELS).map(({ label, n, share }) => {
    const bar = element("i", { "aria-hidden": "true" });
    bar.style.width = `${100 * share}%`;
    const pressed = label === chosen;
    return element(
      "button",
      { class: "share", type: "button", "aria-pressed": String(pressed), title: `${percent(share)} of these items`, onclick: () => choose(pressed ? null : label) },
      bar, element("span", {}, `${label}: ${count(n)}`),
    );
  });
  const more = shares.length - MOST_LABELS;
  return more > 0 ? [...buttons, element("span", { class: "hint" }, `and ${more} more`)] : buttons;
}

// What a calibrated index promises.
export function promiseText(promise) {
  if (!promise) return "Nothing is promised about this set any more: items have changed since the index was calibrated.";
  const one = promise.sets === "labels" ? " It has one item for each label that the query could have." : "";
  const error = promise.error === null ? "" : ` Of the first items that are sure enough, at most ${share(promise.error)} are wrong (assured with ${share(promise.assurance)}).`;
  return `The set holds a right answer for ${share(promise.coverage)} of questions like the ${count(promise.questions)} of the calibration.${one}${error}`;
}

const share = (value) => `${Number((100 * value).toPrecision(4))}\u00a0%`;
