// The collection may change while the page is open. The page looks every few seconds, and says so.

import { call } from "./api.js";

const EVERY = 4000; // milliseconds

// Calls `changed` with the new description whenever it differs from the one before.
export function watchCollection(first, changed) {
  let seen = JSON.stringify(first);
  setInterval(async () => {
    if (document.hidden) return;
    const now = await call("/api/collection").catch(() => null); // the next question says what is wrong
    if (now === null || JSON.stringify(now) === seen) return;
    seen = JSON.stringify(now);
    changed(now);
  }, EVERY);
}
