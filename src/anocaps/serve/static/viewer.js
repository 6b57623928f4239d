// One photo, large: with its heatmap, the most similar normal photo, its scores, and marks.

import { at, baseName, fill, make } from "./dom.js";
import { MARKS, draw, flagged, mark, model } from "./review.js";
import { among } from "./statistics.js";

let row = null, list = () => [], opacity = 0.8, onEnd = null;

export const viewed = () => row !== null;

// Shows a row; `rows` gives the rows to page through.
export function view(first, rows, ended = null) {
  list = rows;
  onEnd = ended;
  show(first);
  if (!at("viewer").open) at("viewer").showModal();
  at("viewer").focus();
}

function turn(step) {
  const rows = list().filter((each) => !each.error);
  const place = rows.findIndex((each) => each.id === row.id);
  const next = rows[place + step];
  if (next) show(next);
  return Boolean(next);
}

async function marked(wanted) {
  const rows = list().filter((each) => !each.error), place = rows.findIndex((each) => each.id === row.id);
  const current = row, next = rows[place + 1];
  if (next) show(next); // at once: the next key is for the next photo
  await mark(current, wanted);
  if (!next) show(current);
}

// Whether the eye sees a heatmap: at least one pixel in 1000 is a quarter opaque.
export function visible(heat) {
  const canvas = make("canvas", { width: heat.naturalWidth, height: heat.naturalHeight });
  const pen = canvas.getContext("2d");
  pen.drawImage(heat, 0, 0);
  const pixels = pen.getImageData(0, 0, canvas.width, canvas.height).data;
  let seen = 0;
  for (let alpha = 3; alpha < pixels.length; alpha += 4) seen += pixels[alpha] >= 64;
  return seen >= canvas.width * canvas.height / 1000;
}

function show(wanted) {
  row = wanted;
  const heat = make("img", { class: "heat", alt: "" });
  const photo = make("img", { src: `/api/rows/${row.id}/photo?large=true`, alt: `The photo ${baseName(row.file)}` });
  const paint = () => { // orange is seen on grey only: many photos are orange themselves
    heat.style.opacity = opacity;
    photo.style.filter = slider.disabled ? "" : `grayscale(${opacity})`;
  };
  const caption = make("figcaption", {}, "photo");
  const parts = [make("figure", {},
    make("span", { class: "stack" }, photo, model().heatmaps ? heat : null),
    caption)];
  if (model().nearest) {
    const near = make("figure", { class: "near" },
      make("span", { class: "stack" }, make("img", { src: `/api/rows/${row.id}/nearest`, alt: "The most similar normal photo" })),
      make("figcaption", {}, "most similar normal photo"));
    near.querySelector("img").addEventListener("error", () => near.remove());
    parts.push(near);
  }
  const slider = make("input", { type: "range", min: 0, max: 1, step: 0.05, value: opacity, disabled: true });
  if (model().heatmaps) {
    heat.addEventListener("load", () => {
      slider.disabled = !visible(heat);
      paint();
      caption.textContent = !slider.disabled ? "photo, orange where it is anomalous"
        : flagged(wanted) ? "photo; this model cannot show where it is anomalous" : "photo, without an anomalous place";
    });
    heat.src = `/api/rows/${row.id}/heat`;
  }
  slider.addEventListener("input", () => {
    opacity = slider.value;
    paint();
  });
  const scores = Object.entries(row.scores).map(([name, value]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, value === null ? "" : value.toPrecision(5))));
  const n = model().calibration_images;
  const button = (key, name, text) => {
    const one = make("button", { type: "button", class: "button", onclick: () => marked(name) }, make("kbd", {}, key), ` ${text}`);
    one.setAttribute("aria-pressed", row.mark === name);
    return one;
  };
  fill(at("viewer"),
    make("h2", { id: "viewer-name" }, baseName(row.file)),
    make("p", { role: "status" },
      make("span", { class: flagged(row) ? "verdict anomalous" : "verdict normal" }, flagged(row) ? "flagged" : "not flagged"),
      row.p_value === null ? "" : ` ${among(row.p_value, n)}`, row.class ? `, closest to ${row.class}` : "", row.mark ? `; marked ${row.mark}` : ""),
    make("div", { class: "figures" }, parts),
    model().heatmaps ? make("label", { class: "field wide" }, make("span", {}, "Heatmap"), slider) : null,
    make("p", { class: "buttons" }, button("A", "anomalous", "anomalous"), button("N", "normal", "normal (false alarm)"), button("U", "unsure", "unsure")),
    make("details", {}, make("summary", {}, "Scores"),
      make("p", {}, row.sentence),
      make("table", { class: "scores" }, make("tbody", {}, make("tr", {}, make("th", { scope: "row" }, "p-value"), make("td", {}, row.p_value === null ? "" : row.p_value.toPrecision(3))), scores)),
      make("p", { class: "path" }, row.file)),
    make("p", { class: "buttons" },
      make("button", { type: "button", class: "button quiet", onclick: () => turn(-1) }, "← Previous"),
      make("button", { type: "button", class: "button quiet", onclick: () => turn(1) }, "Next →"),
      make("button", { type: "button", class: "button quiet", onclick: () => at("viewer").close() }, "Close")));
  if (at("viewer").open) at("viewer").focus(); // the button that had the focus is gone
}

export function start() {
  at("viewer").addEventListener("close", () => {
    const last = row && document.querySelector(`[data-row="${row.id}"]`);
    row = null;
    draw();
    if (last) last.focus();
    if (onEnd) onEnd();
  });
  at("viewer").addEventListener("click", (event) => {
    if (event.target === at("viewer")) at("viewer").close(); // beside it
  });
  at("viewer").addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.type !== "range" && event.key === "ArrowLeft") turn(-1);
    if (event.target.type !== "range" && event.key === "ArrowRight") turn(1);
    const wanted = MARKS[event.key.toLowerCase()];
    if (wanted) marked(wanted);
  });
}
