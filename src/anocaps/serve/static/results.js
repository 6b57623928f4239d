// View 4: what the marks say of the model, what it may miss, drift, and what can be taken away.

import { at, baseName, count, get, make, many, percent, photos, post, trying } from "./dom.js";
import { dayChart } from "./charts.js";
import { allRows, alpha, auditsOfRun, flagged, loadAudits, model, ordered, run } from "./review.js";
import { wilson } from "./statistics.js";
import { view } from "./viewer.js";

const DRAWN = 50;
const MOST_PRINTED = 60;

export async function draw() {
  const place = at("results-body"), job = run();
  if (!job || !model()) {
    place.replaceChildren(make("p", { class: "lead" }, "Review photos first, in the view Review."));
    return;
  }
  const days = await get(`/api/models/${encodeURIComponent(model().name)}/days?alpha=${alpha()}`);
  const rows = allRows(), raised = rows.filter(flagged);
  place.replaceChildren(
    make("p", { class: "lead" }, `${baseName(job.folder)}: ${count(raised.length)} of ${count(rows.filter((row) => row.p_value !== null).length)} photos flagged at ${percent(alpha(), 1)}, by ${model().name}.`),
    make("div", { class: "columns" }, precision(raised), missed(rows)),
    make("section", { class: "panel" },
      make("h2", {}, "Flagged share per day"),
      make("p", { class: "muted" }, `The dashed line is what normal photos alone would give, ${percent(alpha(), 1)}. A share that stays above twice this line says that the photos have changed, or that faults became frequent.`),
      days.length ? dayChart(days, alpha(), Math.min(760, at("results").clientWidth - 40)) : make("p", {}, "No photo was scored yet.")),
    exports(job), report(raised));
}

const between = ([low, high]) => `${(100 * low).toFixed(0)} to ${percent(high)}`;

function precision(raised) {
  const right = raised.filter((row) => row.mark === "anomalous").length;
  const wrong = raised.filter((row) => row.mark === "normal").length;
  const all = right + wrong;
  return make("section", { class: "panel" },
    make("h2", {}, "Flagged photos"),
    make("p", { class: "figure-number" }, all ? percent(right / all) : "—"),
    make("p", {}, all
      ? `of the flagged photos that you marked are anomalous: ${right} of ${all}, so ${between(wilson(right, all))} is likely.`
      : "Mark flagged photos to see how many are anomalous."),
    make("p", { class: "muted" }, `${count(raised.length)} flagged: ${right} anomalous, ${many(wrong, "false alarm")}, ${raised.filter((row) => row.mark === "unsure").length} unsure, ${raised.filter((row) => !row.mark).length} not marked.`));
}

function missed(rows) {
  const byId = new Map(rows.map((row) => [row.id, row]));
  const audit = auditsOfRun().filter((each) => each.among === "unflagged").at(-1);
  const whole = auditsOfRun().filter((each) => each.among === "all").at(-1);
  const unflagged = rows.filter((row) => row.p_value !== null && !flagged(row)).length;
  const undecided = (each) => each.rows.filter((id) => !["anomalous", "normal"].includes(byId.get(id)?.mark));
  const words = [];
  if (audit) {
    const marks = audit.rows.map((id) => byId.get(id)?.mark);
    const found = marks.filter((mark) => mark === "anomalous").length;
    const looked = marks.filter((mark) => ["anomalous", "normal"].includes(mark)).length;
    const [low, high] = wilson(found, looked);
    words.push(make("p", { class: "figure-number" }, looked ? percent(found / looked) : "—"));
    words.push(make("p", {}, looked
      ? `of ${looked} random unflagged photos are anomalous, so ${Math.round(low * audit.drawn_from)} to ${Math.round(high * audit.drawn_from)} of ${photos(audit.drawn_from)} may be missed.`
      : "Mark the photos that were drawn."));
    if (looked < audit.rows.length) words.push(make("p", { class: "muted" }, `${undecided(audit).length} of ${audit.rows.length} are unsure or not marked yet.`));
  }
  const begin = (among) => trying(async () => {
    const open = among === "all" ? whole : audit;
    const left = open && (among === "all" ? undecided(open).length : open.rows.some((id) => !byId.get(id)?.mark));
    let chosen = left ? open : null;
    if (!chosen) {
      await post(`/api/jobs/${run().id}/audits`, { alpha: alpha(), among, count: DRAWN });
      await loadAudits();
      chosen = auditsOfRun().filter((each) => each.among === among).at(-1);
    }
    const drawn = chosen.rows.map((id) => byId.get(id)).filter(Boolean);
    view(drawn.find((row) => !row.mark) || drawn.find((row) => row.mark === "unsure") || drawn[0], () => drawn, draw);
  });
  return make("section", { class: words.length ? "panel" : "panel on-screen" },
    make("h2", {}, "Photos that are missed"),
    ...words,
    make("p", { class: "buttons" }, make("button", { type: "button", class: "button", disabled: !unflagged, onclick: begin("unflagged") }, `Check ${DRAWN} random unflagged photos`)),
    make("p", { class: "muted on-screen" }, "Mark each with A or N. To calibrate again, draw from all photos instead."),
    make("p", { class: "buttons" }, make("button", { type: "button", class: "button quiet", onclick: begin("all") }, `Check ${DRAWN} random photos of all`)),
    whole && make("p", { class: "muted", "data-undecided": undecided(whole).length }, undecided(whole).length
      ? `${undecided(whole).length} of ${whole.rows.length} are unsure or not marked yet; calibration needs A or N for each.`
      : `All ${whole.rows.length} are marked. Train again to calibrate with them.`));
}

function exports(job) {
  const link = (href, text) => make("a", { class: "button", href, download: "" }, text);
  return make("section", { class: "panel on-screen" },
    make("h2", {}, "Take away"),
    make("p", { class: "buttons" },
      link(`/api/jobs/${job.id}/table.csv?alpha=${alpha()}`, "Table (CSV)"),
      link(`/api/jobs/${job.id}/flagged.zip?alpha=${alpha()}`, "Flagged photos (zip)"),
      link(`/api/models/${encodeURIComponent(model().name)}/file`, model().onnx ? "Model (ONNX)" : "Model"),
      make("button", { type: "button", class: "button", onclick: () => print() }, "Print the report"),
      make("a", { class: "button quiet", href: "#train" }, "Retrain with false alarms")));
}

// Shown on paper only.
function report(raised) {
  const printed = ordered().filter((row) => raised.includes(row)).slice(0, MOST_PRINTED);
  const card = model().card;
  return make("section", { class: "report" },
    make("h2", {}, "Model"),
    make("ul", {}, (card ? card.lines : []).map((line) => make("li", {}, line)), make("li", {}, `Checksum: ${model().checksum}`)),
    make("h2", {}, raised.length > printed.length ? `The ${printed.length} most anomalous of ${raised.length} flagged photos` : "Flagged photos"),
    make("ol", { class: "printed" }, printed.map((row) => make("li", {},
      make("img", { src: `/api/rows/${row.id}/photo`, alt: "" }), baseName(row.file), make("br"), `p-value ${row.p_value.toPrecision(2)}${row.mark ? `, ${row.mark}` : ""}`))));
}
