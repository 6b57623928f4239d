// View 2: train a model, watch it, stop it and go on, and see what to expect of it.

import { at, count, duration, fill, get, make, photos, post, say, sentence, trying } from "./dom.js";
import { aurocBars } from "./charts.js";
import { checked } from "./photos.js";
import { finishedAudits } from "./review.js";

const PHASES = {
  starting: "Starting", reading: "Reading photos", training: "Training",
  "self-check": "Checking itself", saving: "Saving the model", done: "Done",
};
const SHOWN = ["starting", "reading", "training", "self-check", "saving"];

let latest = null, canTrain = true;

export function start(state) {
  canTrain = state.can_train;
  at("train-form").addEventListener("submit", trying(async (event) => {
    event.preventDefault();
    const wanted = new FormData(at("train-form"));
    const audit = wanted.get("audit");
    await post("/api/train", {
      mode: wanted.get("mode"),
      false_alarms: wanted.has("false_alarms"),
      audit: audit ? Number(audit) : null,
    });
  }));
}

export function job(changed) {
  if (!latest || changed.id >= latest.id) latest = changed;
}

export function draw() {
  const found = checked();
  const busy = latest !== null && ["queued", "running"].includes(latest.state);
  const ready = canTrain && found.state === "done" && found.images > 0;
  at("train-form").hidden = busy || !ready;
  const classes = new Set(found.classes.filter((each) => !each.excluded).map((each) => each.name)).size;
  at("train-lead").textContent = !canTrain
    ? "Training needs more packages on the server: pip install 'anocaps[all]'. Review works without them."
    : !ready ? (busy ? "" : "Choose normal photos first, in the view Photos.")
      : `The network learns what ${photos(found.images)} in ${classes} class${classes === 1 ? "" : "es"} look like.`;
  for (const mode of ["quick", "full"]) {
    at(`time-${mode}`).textContent = found.seconds[mode] ? `about ${duration(found.seconds[mode])}` : "";
  }
  drawRetrain();
  drawProgress(busy);
  const card = latest && latest.state === "done" ? latest.progress.card : null;
  drawOnce(at("trained"), card ? latest.progress.model : "", () => (card ? [cardOf(card, latest.progress.model)] : []));
}

// Draws a part of the page if its content changed, so that a click or the focus is not lost.
function drawOnce(place, key, children) {
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  fill(place, ...children());
}

function drawRetrain() {
  const alarms = checked().marked_normal, audit = finishedAudits().at(-1);
  at("retrain").hidden = !alarms && !audit;
  const box = (properties, text) => make("label", { class: "switch" }, make("input", { type: "checkbox", ...properties }), text);
  drawOnce(at("retrain"), `${alarms} ${audit?.id}`, () => [
    alarms ? box({ name: "false_alarms", checked: true }, ` Retrain with false alarms: also learn from ${photos(alarms)} that you marked normal`) : null,
    audit ? box({ name: "audit", value: audit.id }, ` Calibrate on the normal photos of the random check of ${photos(audit.rows.length)}`) : null,
    make("p", { class: "muted" },
      "Photos marked normal are used for training only: they were chosen by their score, so they would distort the false-alarm rate. Only a random check whose photos are all marked may set that rate."),
  ]);
}

function drawProgress(busy) {
  const place = at("training"), told = latest ? latest.progress : {};
  const stopped = latest !== null && ["stopped", "failed"].includes(latest.state);
  place.hidden = !busy && !stopped;
  if (place.hidden) return;
  const phase = told.phase || "starting";
  const title = stopped
    ? (latest.state === "failed" ? "Training failed" : "Training is stopped; what it learned is kept")
    : latest.state === "queued" ? "Waiting" : PHASES[phase];
  drawOnce(place, `${latest.id} ${latest.state}`, () => [
    make("h2", { id: "training-title", "aria-live": "polite" }),
    stopped && latest.error ? make("p", { class: "problem" }, sentence(latest.error)) : null,
    make("ol", { id: "phases", class: "phases", "aria-hidden": "true" }),
    make("progress", { id: "training-bar", "aria-label": "Progress of training" }),
    make("p", { id: "training-facts", class: "muted" }),
    make("p", { class: "buttons" },
      busy ? make("button", { type: "button", class: "button", id: "stop", onclick: trying(async () => {
        await post(`/api/jobs/${latest.id}/stop`);
        say("Stopping. The checkpoint is kept.");
      }) }, "Stop") : make("button", { type: "button", class: "button primary", id: "go-on", onclick: trying(() => post(`/api/jobs/${latest.id}/resume`)) }, "Go on")),
  ]);
  drawOnce(at("training-title"), title, () => [title]);
  drawOnce(at("phases"), phase, () => SHOWN.map((name) => make("li", { class: name === phase ? "now" : SHOWN.indexOf(name) < SHOWN.indexOf(phase) ? "past" : "" }, PHASES[name])));
  const known = (value) => value !== null && value !== undefined;
  if (known(told.share)) at("training-bar").value = told.share;
  else at("training-bar").removeAttribute("value");
  const facts = [];
  if (told.steps) facts.push(`${count(told.step)} of ${count(told.steps)} ${phase === "reading" ? "photos" : "steps"}`);
  if (known(told.loss)) facts.push(`loss ${told.loss.toFixed(4)}`);
  if (known(told.left) && busy) facts.push(`${duration(told.left)} left`);
  at("training-facts").textContent = facts.join(" · ");
}

export function cardOf(card, name) {
  return make("article", { class: "panel model-card", "aria-label": `Model ${name}` },
    make("h2", {}, `${name} is ready`),
    make("ul", { class: "card-lines" }, card.lines.map((line) => {
      const cut = line.indexOf(":");
      return make("li", {}, make("b", {}, line.slice(0, cut + 1)), line.slice(cut + 1));
    })),
    card.warnings.map((line) => make("p", { class: "problem" }, sentence(line))),
    card.bars.length ? aurocBars(card.bars) : null,
    make("p", { class: "buttons" }, make("a", { class: "button primary", href: "#review" }, "Next: review photos")));
}

export async function models() {
  return (await get("/api/models")).filter((each) => !each.error);
}
