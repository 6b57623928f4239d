// View 3: scored photos, the most anomalous first, with a live false-alarm rate.

import { at, baseName, count, get, make, percent, photos, post, say, trying } from "./dom.js";
import { dropZone, upload } from "./drop.js";
import { among, rank, rateRange, steps } from "./statistics.js";
import { view, viewed, visible as isSeen } from "./viewer.js";

const STEP = 60; // tiles added at a time

const jobs = new Map(); // of scoring, by id
const tiles = new Map(); // by row id
let models = [], rows = [], current = null, alphaSteps = [1], k = 1, shown = STEP, loading = null;
let audits = [], fresh = false;

// ── what other views ask ──

export const run = () => jobs.get(current) || null;
export const allRows = () => rows;
export const model = () => models.find((each) => each.name === (run() ? run().spec.model : null)) || null;
export const alpha = () => k / ((model() ? model().calibration_images : 0) + 1);
export const flagged = (row) => row.p_value !== null && rank(row.p_value, model().calibration_images) <= k;
export const auditsOfRun = () => audits;
export const finishedAudits = () => audits.filter((audit) => audit.among === "all"
  && audit.rows.every((id) => ["normal", "anomalous"].includes((rows.find((row) => row.id === id) || {}).mark)));
export const allRuns = () => [...jobs.values()];

// ── beginning ──

export function start(state) {
  const chosen = make("select", { id: "model", "aria-label": "Model" });
  const watch = make("input", { type: "checkbox", id: "watch" });
  dropZone(at("review-drop"), "Drop new photos here", [
    make("label", { class: "field" }, make("span", {}, "Model"), chosen),
    make("label", { class: "switch" }, watch, " keep watching the folder on the server"),
    make("button", { type: "button", class: "button quiet", id: "new-list", onclick: () => {
      fresh = true;
      say("The next photos start a new list.");
    } }, "New list"),
  ], async (files, told) => {
    if (!chosen.value) throw new Error("Train a model first.");
    if (watch.checked) say("Photos from this browser are scored once: only a folder on the server can be watched.");
    const name = into(chosen.value);
    await upload(`new/${name}`, files, state.part, told);
    const target = `new/${encodeURIComponent(name)}`;
    const { job } = await post(`/api/uploads/${target}/score?model=${encodeURIComponent(chosen.value)}`);
    fresh = false;
    current = job;
  }, async (folder) => {
    if (!chosen.value) throw new Error("Train a model first.");
    const { job } = await post(`/api/models/${encodeURIComponent(chosen.value)}/score-folder`, { folder, watch: watch.checked });
    current = job;
  }, true);
  at("runs").addEventListener("change", () => choose(Number(at("runs").value)));
  at("show").addEventListener("change", () => { shown = STEP; draw(); });
  at("alpha").addEventListener("input", () => {
    k = alphaSteps[at("alpha").value];
    localStorage.setItem(`alpha ${model().checksum}`, k);
    draw();
  });
  at("more").addEventListener("click", () => { shown += STEP; draw(); });
  new IntersectionObserver((seen) => {
    if (seen[0].isIntersecting && !at("more").hidden) { shown += STEP; draw(); }
  }, { rootMargin: "600px" }).observe(at("more"));
  at("grid").addEventListener("keydown", keys);
  at("run-stop").addEventListener("click", trying(() => post(`/api/jobs/${current}/stop`)));
  at("run-resume").addEventListener("click", trying(() => post(`/api/jobs/${current}/resume`)));
}

// Where dropped photos go: to the list that is shown, if it was dropped here too and has the same
// model; else to a new one, named after this moment.
function into(name) {
  const job = run();
  if (!fresh && job && job.dropped && job.spec.model === name) return baseName(job.folder);
  const now = new Date(), two = (number) => String(number).padStart(2, "0");
  const day = [now.getFullYear(), two(now.getMonth() + 1), two(now.getDate())].join("-");
  return `${day} ${[now.getHours(), now.getMinutes(), now.getSeconds()].map(two).join(".")}`;
}

export function setModels(found) {
  models = found;
  const before = at("model").value;
  at("model").replaceChildren(...models.map(({ name }) => make("option", { value: name }, name)));
  if (models.some(({ name }) => name === before)) at("model").value = before;
  setAlpha();
}

export function job(changed) {
  const isNew = !jobs.has(changed.id);
  jobs.set(changed.id, changed);
  if (isNew && (current === null || changed.id >= current)) choose(changed.id);
  else if (changed.id === current) load();
}

function choose(id) {
  current = id;
  rows = [];
  audits = [];
  shown = STEP;
  tiles.clear();
  setAlpha();
  load();
}

function setAlpha() {
  const found = model();
  if (!found) return;
  const n = found.calibration_images;
  alphaSteps = steps(n);
  const kept = Number(localStorage.getItem(`alpha ${found.checksum}`));
  const usual = Math.max(1, Math.floor(found.alpha * (n + 1) + 1e-9));
  const wanted = alphaSteps.includes(kept) ? kept : usual;
  k = alphaSteps.filter((each) => each <= wanted).at(-1) || 1;
  at("alpha").max = alphaSteps.length - 1;
  at("alpha").value = alphaSteps.indexOf(k);
}

// Rows stream in: each call fetches what is new; calls do not overlap.
async function load() {
  const wanted = current;
  if (loading === wanted) return;
  loading = wanted;
  try {
    for (;;) {
      const last = rows.length ? rows.at(-1).id : 0;
      const some = await get(`/api/jobs/${wanted}/rows?after=${last}`);
      if (current !== wanted) return;
      if (!some.length) break;
      rows.push(...some);
      draw();
    }
    audits = await get(`/api/jobs/${wanted}/audits`);
  } catch (error) {
    say(error.message, true);
  } finally {
    if (loading === wanted) loading = null;
  }
  draw();
}

export async function loadAudits() {
  audits = await get(`/api/jobs/${current}/audits`);
}

// ── the grid ──

export const ordered = () => [...rows].sort((a, b) => !!a.error - !!b.error
  || (a.p_value ?? 2) - (b.p_value ?? 2) || (a.score ?? 0) - (b.score ?? 0));

function visible() {
  const show = at("show").value;
  return ordered().filter((row) => show === "all" || (flagged(row) && (show === "flagged" || !row.mark)));
}

export function draw() {
  const job = run();
  at("review-body").hidden = !job;
  if (!models.length) at("review-lead").textContent = "Train a model first, in the view Train.";
  else at("review-lead").textContent = "Drop new photos. The most anomalous come first.";
  if (!job || !model()) return;
  drawRuns();
  at("run-stop").hidden = !["queued", "running"].includes(job.state);
  at("run-resume").hidden = !["stopped", "failed"].includes(job.state);
  drawCounts(job);
  const found = visible();
  const focused = document.activeElement;
  const wanted = found.slice(0, shown).map(tile);
  const there = at("grid").children;
  if (wanted.length !== there.length || wanted.some((one, place) => one !== there[place])) {
    at("grid").replaceChildren(...wanted);
    if (at("grid").contains(focused)) focused.focus();
  }
  at("more").hidden = found.length <= shown;
}

function drawRuns() {
  const options = allRuns().sort((a, b) => b.id - a.id).map((each) => make("option", { value: each.id }, `${baseName(each.folder)} (${each.spec.model})`));
  if (at("runs").childElementCount !== options.length) at("runs").replaceChildren(...options);
  at("runs").value = current;
}

function drawCounts(job) {
  const n = model().calibration_images;
  const scored = rows.filter((row) => row.p_value !== null);
  const many = scored.filter(flagged).length, failed = rows.filter((row) => row.error).length;
  at("alpha-value").textContent = percent(alpha(), alpha() < 0.1 ? 1 : 0);
  at("alpha").setAttribute("aria-valuetext", at("alpha-value").textContent);
  const [low, high] = rateRange(k, n).map((rate) => 100 * rate);
  const digits = low < 1 ? 1 : 0;
  const going = job.state === "running" && !job.spec.watch && job.progress.total > rows.length ? `, ${count(job.progress.total - rows.length)} to come` : "";
  const words = [`${count(many)} of ${count(scored.length)} flagged${going}; ${low.toFixed(digits)} to ${high.toFixed(digits)} % of normal photos expected.`];
  if (failed) words.push(`${photos(failed)} could not be read.`);
  if (job.error) words.push(job.error);
  if (!n) words.push("The model has no calibration set, so nothing is flagged.");
  at("counts").textContent = words.join(" ");
}

function tile(row) {
  let one = tiles.get(row.id);
  if (!one) {
    one = make("li", { class: "tile" });
    if (row.error) {
      one.append(make("div", { class: "tile-error" }, make("b", {}, baseName(row.file)), " ", row.error));
    } else {
      const heat = make("img", { class: "heat", alt: "", onload: () => heat.classList.toggle("seen", isSeen(heat)) });
      const warm = () => { if (!heat.src && model().heatmaps) heat.src = `/api/rows/${row.id}/heat`; };
      const open = make("button", { type: "button", class: "open", onclick: () => view(row, visible), onpointerenter: warm, onfocus: warm, ontouchstart: warm },
        make("span", { class: "stack" },
          make("img", { src: `/api/rows/${row.id}/photo`, alt: "", loading: "lazy" }), heat),
        make("span", { class: "said" }), make("span", { class: "badge" }));
      open.dataset.row = row.id;
      one.append(open);
    }
    tiles.set(row.id, one);
  }
  if (!row.error) dress(one, row);
  return one;
}

function dress(one, row) {
  const isFlagged = flagged(row);
  one.classList.toggle("flagged", isFlagged);
  one.dataset.mark = row.mark || "";
  const words = row.p_value === null ? `score ${row.score.toPrecision(3)}` : among(row.p_value, model().calibration_images);
  one.querySelector(".said").textContent = words;
  one.querySelector(".badge").textContent = row.mark === "normal" ? "false alarm" : row.mark || "";
  const state = [baseName(row.file), isFlagged ? "flagged" : "not flagged", words, row.mark ? `marked ${row.mark}` : "not marked"];
  one.querySelector("button").setAttribute("aria-label", state.join(", "));
}

// ── marks and keys ──

export const MARKS = { a: "anomalous", n: "normal", u: "unsure" };

export const mark = trying(async (row, wanted) => {
  const next = row.mark === wanted ? "none" : wanted; // the same key again takes it back
  await post(`/api/rows/${row.id}/mark`, { mark: next });
  row.mark = next === "none" ? null : next;
  if (tiles.has(row.id)) dress(tiles.get(row.id), row);
});

async function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || viewed()) return;
  const buttons = [...at("grid").querySelectorAll("button.open")];
  const place = buttons.indexOf(document.activeElement);
  if (place < 0) return;
  const wide = buttons.filter((each) => each.offsetTop === buttons[0].offsetTop).length || 1;
  const move = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: wide, ArrowUp: -wide }[event.key];
  if (move) {
    event.preventDefault();
    const next = buttons[place + move];
    if (next) next.focus();
  } else if (MARKS[event.key.toLowerCase()]) {
    const row = rows.find((each) => each.id === Number(document.activeElement.dataset.row));
    await mark(row, MARKS[event.key.toLowerCase()]);
  }
}
