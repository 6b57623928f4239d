// The page of a study: sort and filter the table, filter claims, draw two ROC curves.
"use strict";
const byId = (id) => document.getElementById(id);

const table = byId("field-table");
table.querySelectorAll("thead th").forEach((title, column) => {
  title.tabIndex = 0;
  const sort = () => {
    const rows = [...table.tBodies[0].rows];
    const value = (row) => {
      const cell = row.cells[column];
      const number = cell.dataset.value;
      return number === undefined ? cell.textContent : number === "" ? NaN : Number(number);
    };
    const falling = title.dataset.order !== "falling" && column > 0;
    table.querySelectorAll("thead th").forEach((other) => delete other.dataset.order);
    title.dataset.order = falling ? "falling" : "rising";
    rows.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (typeof x === "string") return falling ? y.localeCompare(x) : x.localeCompare(y);
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
      return falling ? y - x : x - y;
    });
    table.tBodies[0].append(...rows);
  };
  title.addEventListener("click", sort);
  title.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
});
byId("field-filter").addEventListener("input", (event) => {
  const wanted = event.target.value.toLowerCase();
  for (const row of table.tBodies[0].rows) {
    row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted);
  }
});

byId("claim-filter")?.addEventListener("click", (event) => {
  const wanted = event.target.dataset.show;
  if (wanted === undefined) return;
  document.querySelectorAll("tr[data-verdict]").forEach((row) => {
    row.hidden = wanted !== "" && row.dataset.verdict !== wanted;
  });
});

const curves = JSON.parse(JSON.parse(byId("curves").textContent));
const chart = byId("roc-chart");
const pickers = [byId("roc-0"), byId("roc-1")];
const at = (x, y) => `${30 + 280 * x},${290 - 280 * y}`;
const shape = (tag, attributes) => {
  const made = document.createElementNS(chart.namespaceURI, tag);
  Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, value));
  return made;
};
const draw = () => {
  const [, found] = curves.cells[byId("roc-cell").selectedIndex];
  chart.replaceChildren(
    shape("rect", { x: 30, y: 10, width: 280, height: 280, fill: "none", stroke: "var(--rule)" }),
    shape("polyline", { points: `${at(0, 0)} ${at(1, 1)}`, stroke: "var(--rule)", fill: "none" }),
  );
  const key = [];
  pickers.forEach((picker, place) => {
    const flat = found[picker.value];
    key.push(curves.names[picker.value] + (place ? " dashed" : " solid") + (flat ? "" : " (not measured)"));
    if (!flat) return;
    const points = [];
    for (let k = 0; k < flat.length; k += 2) points.push(at(flat[k], flat[k + 1]));
    chart.append(shape("polyline", {
      points: points.join(" "), fill: "none", "stroke-width": 2,
      stroke: place ? "var(--anomalous)" : "var(--normal)", "stroke-dasharray": place ? "6 4" : "",
    }));
  });
  byId("roc-key").textContent = key.join("; ");
};
for (const [title] of curves.cells) byId("roc-cell").add(new Option(title));
pickers.forEach((picker, place) => {
  curves.names.forEach((name, k) => picker.add(new Option(name, k)));
  picker.selectedIndex = Math.min(place, curves.names.length - 1);
  picker.addEventListener("change", draw);
});
byId("roc-cell").addEventListener("change", draw);
draw();
