// The page of a study: sort and filter the table, filter claims, draw dots and two ROC curves.
"use strict";
const byId = (id) => document.getElementById(id);
const isNarrow = () => matchMedia("(max-width: 760px)").matches;

// Every method
const table = byId("field-table");
const titles = [...table.tHead.rows[0].cells];
titles.forEach((title, column) => {
  title.firstElementChild.addEventListener("click", () => {
    const value = (row) => (row.cells[column].dataset.value || NaN) * 1;
    const falling = column > 0 && title.getAttribute("aria-sort") !== "descending";
    titles.forEach((other) => other.setAttribute("aria-sort", "none"));
    title.setAttribute("aria-sort", falling ? "descending" : "ascending");
    const rows = [...table.tBodies[0].rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
      return falling ? y - x : x - y;
    });
    table.tBodies[0].append(...rows);
  });
});
byId("field-filter").addEventListener("input", (event) => {
  const wanted = event.target.value.toLowerCase();
  for (const row of table.tBodies[0].rows) {
    row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted);
  }
});
const details = byId("field-details");
const showDetails = () => table.classList.toggle("brief", !details.checked);
details.checked = !isNarrow();
details.addEventListener("change", showDetails);
showDetails();

// Claims
byId("claim-filter")?.addEventListener("click", (event) => {
  const wanted = event.target.dataset.show;
  if (wanted === undefined) return;
  for (const button of event.currentTarget.querySelectorAll("button")) {
    button.setAttribute("aria-pressed", button === event.target);
  }
  document.querySelectorAll("tr[data-verdict]").forEach((row) => {
    row.hidden = wanted !== "" && row.dataset.verdict !== wanted;
  });
});

// Charts
const { series, dots, cells } = JSON.parse(byId("charts").textContent);
const shape = (tag, attributes, ...inside) => {
  const made = document.createElementNS(byId("roc-chart").namespaceURI, tag);
  Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, value));
  made.append(...inside);
  return made;
};
const text = (x, y, words, kind) => shape("text", { x, y, class: kind }, words);
const line = (x1, y1, x2, y2, more) => shape("path", { d: `M${x1} ${y1}L${x2} ${y2}`, stroke: "var(--rule)", fill: "none", ...more });
const html = (tag, ...inside) => {
  const made = document.createElement(tag);
  made.append(...inside);
  return made;
};

// Dots: AUROC by class. One choice of methods serves all datasets.
const PATHS = {
  circle: "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0", square: "M-3.5-3.5h7v7h-7z",
  diamond: "M0-5L5 0L0 5L-5 0z", triangle: "M0-5L4.8 3.5h-9.6z",
  cross: "M-1.5-5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z", wedge: "M0 5L4.8-3.5h-9.6z",
};
const chosen = new Set([...series.keys()].filter((k) => series[k].first));
const mark = (k, x, y, ...inside) => shape("path", {
  d: PATHS[series[k].shape], fill: series[k].colour, transform: `translate(${x} ${y})`,
}, ...inside);
const sample = (k) => shape("svg", { viewBox: "-6 -6 12 12" }, mark(k, 0, 0));
const short = (name, letters) => {
  const half = Math.floor((letters - 1) / 2);
  return name.length > letters ? `${name.slice(0, half)}…${name.slice(-half)}` : name;
};
const drawDots = (figure) => {
  const { classes, values } = dots[figure.dataset.place];
  const shown = [...chosen].filter((k) => values[k]).sort((a, b) => a - b);
  figure.querySelector(".key").replaceChildren(
    ...shown.map((k) => html("span", sample(k), series[k].name)),
  );
  const chart = figure.querySelector("svg.drawing");
  const measured = shown.flatMap((k) => values[k]).filter(Boolean);
  const low = Math.max(0, Math.floor(10 * Math.min(0.9, ...measured.map(([mean, sd]) => mean - sd)) + 1e-9) / 10);
  const letters = isNarrow() ? 12 : 18;
  const names = [...classes, ...(classes.length > 1 ? ["mean"] : [])];
  const left = 12 + 8 * Math.max(...names.map((name) => Math.min(letters, name.length)));
  const [width, top, each] = [figure.clientWidth, 6, Math.max(24, 10 + 8 * shown.length)];
  const bottom = top + each * names.length;
  const x = (value) => left + (width - left - 14) * (value - low) / (1 - low);
  chart.setAttribute("viewBox", `0 0 ${width} ${bottom + 36}`);
  chart.replaceChildren();
  const step = low >= 0.8 ? 0.05 : 0.1;
  for (let tick = low; tick < 1.001; tick += step) {
    chart.append(line(x(tick), top, x(tick), bottom), text(x(tick), bottom + 16, tick.toFixed(step < 0.1 ? 2 : 1), "tick"));
  }
  if (low < 0.5) chart.append(line(x(0.5), top, x(0.5), bottom, { stroke: "var(--ink)" }));
  chart.append(text((left + width) / 2, bottom + 33, "AUROC", "tick"));
  names.forEach((name, place) => {
    const [above, isMean] = [top + place * each, place === classes.length];
    chart.append(line(0, above, width - 14, above, isMean ? { stroke: "var(--ink)" } : {}));
    chart.append(text(left - 8, above + each / 2 + 4, short(name, letters), "class"));
    shown.forEach((k, at) => {
      if (!values[k][place]) return;
      const [mean, sd] = values[k][place];
      const y = above + each / 2 + 8 * (at - (shown.length - 1) / 2);
      if (sd) chart.append(line(x(Math.max(low, mean - sd)), y, x(Math.min(1, mean + sd)), y, { stroke: series[k].colour, "stroke-width": 2, opacity: 0.5 }));
      const where = isMean ? "mean of the classes" : `held out: ${name}`;
      const numbers = mean.toFixed(3) + (sd === null ? "" : ` ± ${sd.toFixed(3)}`);
      chart.append(mark(k, x(mean), y, shape("title", {}, `${where}\n${series[k].name}: ${numbers}`)));
    });
  });
};
const figures = [...document.querySelectorAll("figure.dots")];
const drawAllDots = () => {
  figures.forEach(drawDots);
  document.querySelectorAll(".picks input").forEach((box) => { box.checked = chosen.has(Number(box.value)); });
};
for (const figure of figures) {
  const { values } = dots[figure.dataset.place];
  const boxes = Object.keys(values).map((k) => {
    const box = html("input");
    Object.assign(box, { type: "checkbox", value: k });
    return html("label", box, " ", sample(k), series[k].name);
  });
  const picks = figure.querySelector(".picks");
  picks.append(...boxes);
  picks.addEventListener("change", ({ target }) => {
    chosen[target.checked ? "add" : "delete"](Number(target.value));
    drawAllDots();
  });
}
drawAllDots();
let drawnWidth = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== drawnWidth) drawAllDots();
  drawnWidth = innerWidth;
});

// ROC curves of two methods
const pickers = [byId("roc-0"), byId("roc-1")];
const STROKES = [
  { stroke: "var(--normal)", "stroke-width": 2 },
  { stroke: "var(--anomalous)", "stroke-width": 2, "stroke-dasharray": "6 4" },
];
const at = (x, y) => [58 + 284 * x, 295 - 285 * y];
const drawCurves = () => {
  const { curves } = cells[byId("roc-cell").selectedIndex];
  const chart = byId("roc-chart");
  chart.replaceChildren();
  for (let tick = 0; tick < 1.01; tick += 0.2) {
    const percent = `${Math.round(100 * tick)} %`;
    chart.append(line(...at(tick, 0), ...at(tick, 1)), line(...at(0, tick), ...at(1, tick)));
    chart.append(text(at(tick, 0)[0], 311, percent, "tick"), text(52, at(0, tick)[1] + 4, percent, "tick side"));
  }
  chart.append(line(...at(0, 0), ...at(1, 1), { class: "chance" }));
  chart.append(text(200, 330, "normal images flagged", "label"));
  chart.append(shape("text", { class: "label", transform: "translate(10 152) rotate(-90)" }, "anomalies flagged"));
  const key = pickers.map((picker, place) => {
    const curve = curves[picker.value];
    if (curve) {
      const pairs = curve.points.flatMap((x, k, all) => (k % 2 ? [] : [at(x, all[k + 1]).join()]));
      chart.append(shape("polyline", { points: pairs.join(" "), fill: "none", ...STROKES[place] }));
    }
    const number = curve ? `AUROC ${curve.auroc.toFixed(3)}` : "not measured";
    const drawn = shape("svg", { viewBox: "0 0 26 12", class: "line" }, line(0, 6, 26, 6, STROKES[place]));
    return html("span", drawn, `${series[picker.value].name}: ${number}`);
  });
  byId("roc-key").replaceChildren(...key);
};
for (const { title } of cells) byId("roc-cell").add(new Option(title));
pickers.forEach((picker, place) => {
  series.forEach(({ name }, k) => picker.add(new Option(name, k)));
  picker.selectedIndex = Math.min(place, series.length - 1);
  picker.addEventListener("change", drawCurves);
});
byId("roc-cell").addEventListener("change", drawCurves);
drawCurves();
