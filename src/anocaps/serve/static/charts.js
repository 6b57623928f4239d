// Two small charts as SVG: how well each class is found, and the flagged share day by day.

import { make, percent } from "./dom.js";

function draw(tag, attributes, ...children) {
  const one = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) one.setAttribute(name, value);
  one.append(...children);
  return one;
}

// AUROC from 0.5, which is guessing, to 1.
export function aurocBars(bars) {
  const rows = bars.map(({ name, auroc, kind }) => {
    const bar = make("span", { class: `fill ${kind}` });
    bar.style.width = `${Math.max(0, 200 * (auroc - 0.5))}%`;
    return make("tr", {}, make("th", { scope: "row" }, name),
      make("td", { class: "track-cell" }, make("span", { class: "track" }, bar)),
      make("td", { class: "number-cell" }, auroc.toFixed(2)));
  });
  const made = bars.some(({ kind }) => kind === "synthetic") ? "; orange: normal photos that were changed on purpose" : "";
  return make("table", { class: "bars" },
    make("caption", {}, `How well each is found when it is new to the network: AUROC, from 0.5 (guessing) to 1 (perfect)${made}`),
    make("tbody", {}, rows));
}

// `width` in pixels of the screen: text keeps its size on a phone.
export function dayChart(days, alpha, width) {
  const height = 180, left = 56, bottom = 24, top = 8;
  const shares = days.map((day) => day.flagged / day.photos);
  const most = Math.max(0.02, 2 * alpha, ...shares);
  const pitch = (width - left - 12) / days.length, wide = Math.min(48, 0.8 * pitch);
  const x = (k) => left + pitch * (k + 0.5);
  const y = (share) => top + (height - top - bottom) * (1 - share / most);
  const label = (text, attributes) => draw("text", attributes, text);
  const columns = shares.map((share, k) => draw("rect", {
    x: x(k) - wide / 2, width: wide, y: y(share), height: y(0) - y(share), rx: 2,
    class: share > 2 * alpha ? "column high" : "column",
  }, draw("title", {}, `${days[k].day}: ${days[k].flagged} of ${days[k].photos} flagged`)));
  return draw("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": "Flagged share of photos per day" },
    draw("line", { x1: left, x2: width - 12, y1: y(0), y2: y(0), class: "axis" }),
    // between 0 and the largest share, where there is room
    label(percent(alpha), { x: left - 6, y: Math.min(y(alpha) + 4, y(0) - 12), class: "tick" }),
    label("0", { x: left - 6, y: y(0) + 4, class: "tick" }),
    label(percent(most), { x: left - 6, y: y(most) + 9, class: "tick" }),
    ...(days.length > 1 ? [label(days[0].day, { x: left, y: height - 6 })] : []),
    label(days.at(-1).day, { x: days.length > 1 ? width - 12 : x(0), y: height - 6, class: days.length > 1 ? "tick" : "day" }),
    ...columns,
    draw("line", { x1: left, x2: width - 12, y1: y(alpha), y2: y(alpha), class: "expected" }));
}
