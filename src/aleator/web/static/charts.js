// Figures as SVG. Each has a label that describes it in words.

import { count, element, kappaText, percent, svg } from "./words.js";

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
const text = (x, y, content, anchor = "middle", kind = undefined) =>
  svg("text", { x, y, "text-anchor": anchor, class: kind }, content);

// Histogram of the collection's kappas on a logarithmic axis, with the kappa of the query.
export function histogram({ edges, counts }, kappa) {
  const [width, height, top, bottom] = [320, 132, 24, 34];
  const [low, high] = [Math.log(edges[0]), Math.log(edges.at(-1))];
  const x = (value) => 6 + (width - 12) * Math.min(1, Math.max(0, (Math.log(value) - low) / (high - low)));
  const most = Math.max(1, ...counts);
  const floor = height - bottom;
  const bars = counts.map((n, i) => {
    const tall = (floor - top) * (n / most);
    return svg("rect", {
      class: "bar", x: x(edges[i]) + 0.5, y: floor - tall, width: Math.max(0.5, x(edges[i + 1]) - x(edges[i]) - 1), height: tall, rx: 1.5,
    });
  });
  const ticks = niceTicks(edges[0], edges.at(-1)).map((tick) => text(x(tick), height - 20, kappaText(tick)));
  const ends = [text(0, height - 4, "← shows little", "start"), text(width, height - 4, "shows much →", "end")];
  const parts = [...bars, svg("line", { class: "axis", x1: 0, x2: width, y1: floor, y2: floor }), ...ticks, ...ends];
  let words = `Histogram of kappa from ${kappaText(edges[0])} to ${kappaText(edges.at(-1))}`;
  if (kappa !== undefined) {
    const at = x(Math.max(Number(kappa), 1e-30));
    const anchor = at < 40 ? "start" : at > width - 40 ? "end" : "middle";
    parts.push(
      svg("line", { class: "marker", x1: at, x2: at, y1: 18, y2: floor }),
      svg("circle", { class: "dot", cx: at, cy: floor, r: 4 }),
      text(at, 12, `κ ${kappaText(kappa)}`, anchor, "marker-text"),
    );
    words += `; the query has ${kappaText(kappa)}`;
  }
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": words }, ...parts);
}

// Size of the credible set at each level. The slider below it moves the marker.
export function sizeCurve(levels, chosen) {
  const [width, height] = [320, 62];
  const most = Math.max(1, levels.at(-1).size);
  const x = (i) => (width * i) / (levels.length - 1);
  const y = (size) => height - 4 - (height - 12) * (size / most);
  const points = levels.map((level, i) => [x(i), y(level.size)]);
  const at = points[chosen];
  return svg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Size of the credible set by level; ${count(most)} items at level 99 %` },
    svg("path", { class: "area", d: `${path(points)}L${width} ${height}L0 ${height}Z` }),
    svg("path", { class: "line", d: path(points) }),
    svg("line", { class: "marker", x1: at[0], x2: at[0], y1: at[1], y2: height }),
    svg("circle", { class: "dot", cx: at[0], cy: at[1], r: 4.5 }),
  );
}

// Where a share may really lie, of which `hits` of n items were seen: 90 % interval of Wilson.
function interval(hit, n) {
  const z2 = 1.645 ** 2;
  const middle = (hit + z2 / (2 * n)) / (1 + z2 / n);
  const half = (Math.sqrt(z2) * Math.sqrt((hit * (1 - hit)) / n + z2 / (4 * n * n))) / (1 + z2 / n);
  return [Math.max(0, middle - half), Math.min(1, middle + half)];
}

// Share of items whose nearest neighbour has the same label, against the share of least certain items left out.
export function rejectCurve({ kept, hits, items, labelled }, width) {
  const [height, left, right, top, bottom] = [Math.min(300, 160 + width / 4), 48, 14, 14, 42];
  const aside = kept.map((share) => 1 - share);
  const bands = hits.map((hit, i) => interval(hit, Math.max(1, kept[i] * items)));
  const [lowest, highest] = [Math.min(...bands.map(([low]) => low)), Math.max(...bands.map(([, high]) => high))];
  const step = [0.02, 0.05, 0.1, 0.2].find((size) => highest - lowest < 4 * size) ?? 0.25;
  const [first, last] = [Math.floor(lowest / step + 1e-9), Math.min(Math.round(1 / step), Math.floor(highest / step + 1e-9) + 1)];
  const [from, to] = [Math.min(first, last - 1) * step, last * step];
  const x = (share) => left + (width - left - right) * share;
  const y = (share) => top + (height - top - bottom) * (1 - (share - from) / (to - from));
  const points = hits.map((hit, i) => [x(aside[i]), y(hit)]);
  const grid = [];
  for (let share = from; share < to + step / 2; share += step) {
    grid.push(
      svg("line", { class: "axis", x1: left, x2: width - right, y1: y(share), y2: y(share) }),
      text(left - 8, y(share) + 4, percent(share), "end"),
    );
  }
  for (const share of [0, 0.25, 0.5, 0.75]) grid.push(text(x(share), height - bottom + 18, percent(share)));
  const dots = points.map(([cx, cy], i) =>
    svg("circle", { class: "point", cx, cy, r: 4 }, svg("title", {}, `${percent(aside[i])} left out: ${percent(hits[i])} have the same label`)),
  );
  const words = `The nearest neighbour has the same label for ${percent(hits.at(-1))} of all items, and for ${percent(hits[kept.indexOf(0.5)])} of the more certain half`;
  const band = [...bands.map(([, high], i) => [x(aside[i]), y(high)]), ...bands.map(([low], i) => [x(aside[i]), y(low)]).reverse()];
  const figure = svg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": words },
    ...grid, svg("path", { class: "area", d: `${path(band)}Z` }), svg("path", { class: "line", d: path(points) }), ...dots,
    text((left + width - right) / 2, height - 4, "share of least certain items left out"),
  );
  const rows = kept.map((share, i) => element("tr", {}, element("td", {}, percent(share)), element("td", {}, `${(100 * hits[i]).toFixed(1)} %`)));
  const head = element("tr", {}, element("th", { scope: "col" }, "most certain"), element("th", { scope: "col" }, "same label"));
  const sample = items < labelled ? `${count(items)} of ${count(labelled)} labelled items` : `${count(items)} labelled items`;
  return [
    element("p", {}, `${words}.`),
    figure,
    element("p", { class: "hint" }, `Measured on ${sample}. The band is a 90 % confidence interval.`),
    element("details", {}, element("summary", {}, "The numbers"), element("table", {}, head, ...rows)),
  ];
}

// At most five round numbers between two kappas: powers of ten, or also 2 and 5 times these.
function niceTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    for (const digit of [1, 2, 5]) {
      const tick = digit * 10 ** power;
      if (tick >= low && tick <= high) found.push([tick, digit]);
    }
  }
  let chosen = found;
  if (chosen.length > 6 && found.some(([, digit]) => digit === 1)) chosen = found.filter(([, digit]) => digit === 1);
  while (chosen.length > 6) chosen = chosen.filter((_, i) => i % 2 === 0);
  return chosen.length ? chosen.map(([tick]) => tick) : [low, high];
}

// What certainty means: a clear question reaches few items, an unsure one many of different kinds.
export function certaintyPicture() {
  const kinds = ["kind-a", "kind-b", "kind-c"];
  const ring = [100, 118, 82, 30, 48, 66, 132, 150, 164]; // degrees of the items on a half circle
  const half = (cx, spread, title) => {
    const at = (degrees, r) => [cx + r * Math.cos((degrees * Math.PI) / 180), 108 - r * Math.sin((degrees * Math.PI) / 180)];
    const [from, to] = [100 - spread, 100 + spread].map((degrees) => at(degrees, 84));
    const items = ring.map((degrees) => {
      const inside = Math.abs(degrees - 100) <= spread;
      const kind = kinds[degrees < 70 ? 0 : degrees < 125 ? 1 : 2];
      const [x, y] = at(degrees, 84);
      const shapes = {
        "kind-a": () => svg("rect", { x: x - 6, y: y - 6, width: 12, height: 12 }),
        "kind-b": () => svg("circle", { cx: x, cy: y, r: 6.5 }),
        "kind-c": () => svg("path", { d: `M${x} ${y - 7.5}L${x + 7} ${y + 5.5}L${x - 7} ${y + 5.5}Z` }),
      };
      const shape = shapes[kind]();
      shape.setAttribute("class", `${kind}${inside ? " inside" : ""}`);
      return shape;
    });
    return [
      svg("path", { class: "beam", d: `M${cx} 108L${from.map((v) => v.toFixed(1)).join(" ")}A84 84 0 0 0 ${to.map((v) => v.toFixed(1)).join(" ")}Z` }),
      ...items, svg("circle", { class: "asker", cx, cy: 108, r: 5 }),
      text(cx, 134, title, "middle", "caption"),
    ];
  };
  const words = "Two queries. One is clear: its narrow beam reaches three items of one kind. The other is unsure: its wide beam reaches items of three kinds.";
  return svg(
    "svg",
    { viewBox: "0 0 400 142", role: "img", "aria-label": words },
    ...half(100, 22, "high certainty: few items"), ...half(300, 58, "low certainty: many items"),
  );
}
