// What the words of the page mean: shown on arrival, until the user has read it, and on request.

import { certaintyPicture } from "./charts.js";

const $ = (id) => document.getElementById(id);
const PLACE = "aleator intro";

export function showIntro(open, { focus = false } = {}) {
  $("intro").hidden = !open;
  $("show-intro").setAttribute("aria-expanded", String(open));
  if (open && $("intro-picture").childElementCount === 0) $("intro-picture").append(certaintyPicture());
  if (open && focus) $("intro-close").focus();
}

export function wireIntro() {
  $("show-intro").addEventListener("click", () => showIntro($("intro").hidden, { focus: true }));
  $("intro-close").addEventListener("click", () => {
    showIntro(false);
    try {
      localStorage.setItem(PLACE, "read");
    } catch {
      // The storage is full or not allowed. The words are then explained again next time.
    }
    $("show-intro").focus();
  });
}

export function introWasRead() {
  try {
    return localStorage.getItem(PLACE) !== null;
  } catch {
    return false;
  }
}
