// Two questions side by side: one is kept, the other is the present one.

import { face } from "./tiles.js";
import { labelShares, likeliest, likely } from "./summary.js";
import { certaintyWords, count, element, percent, plural } from "./words.js";

const MOST_HITS = 12;

// A question as the comparison needs it; `picture` makes its face, because the image of a user has no address.
export function column(question) {
  if (question === null) {
    return element("article", { class: "card waiting" }, element("p", {}, "Now ask a second question: click any item, or ask about something of your own."));
  }
  const { title, picture, query, hits, size } = question;
  const shares = labelShares(hits).slice(0, 3).map(({ label, share }) => `${label} ${percent(share)}`).join(", ");
  const facts = [
    ["certainty", certaintyWords(likeliest(query), query.surer_than)],
    ["could be", likely(query.labels) || shares || "–"],
    ["answer", size === null ? `${count(hits.length)} or more items` : plural(size, "item")],
  ];
  return element(
    "article",
    { class: "card" },
    element("div", { class: "subject" }, picture(), element("div", {}, element("h2", {}, title), ...(query.unlike ? [element("p", { class: "warning" }, "Unlike anything seen in training.")] : []))),
    element("dl", {}, ...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)))),
    element("ul", { class: "few", "aria-label": `First items for ${title}` }, ...hits.slice(0, MOST_HITS).map(small)),
  );
}

function small(hit) {
  const words = `${hit.id}${hit.label === null ? "" : `, ${hit.label}`}, match ${percent(hit.match_probability)}`;
  return element("li", { title: words }, face(hit, 96), element("span", { class: "hidden" }, words), element("small", { "aria-hidden": "true" }, percent(hit.match_probability)));
}

// How many items belong to both answers.
export function inBoth(first, second) {
  if (first === null || second === null) return "";
  const keys = new Set(first.hits.map((hit) => hit.key));
  const both = second.hits.filter((hit) => keys.has(hit.key)).length;
  return `${plural(both, "item")} ${both === 1 ? "belongs" : "belong"} to both answers.`;
}
