// View 1: the normal photos, class by class.

import { at, call, count, get, make, photos, post, sentence, trying } from "./dom.js";
import { dropZone, upload, withoutTop } from "./drop.js";

let known = { classes: [] };

export const checked = () => known;

export function start(state) {
  dropZone(at("photos-drop"), "Drop folders of normal photos here", [],
    async (files, told) => {
      await upload("photos", withoutTop(files), state.part, told);
      await post("/api/photos");
    },
    (folder) => post("/api/photos", { folder }));
  at("seen").addEventListener("change", draw);
}

export async function load() {
  known = await get("/api/photos");
}

export async function refresh() {
  await load();
  draw();
}

function draw() {
  const problem = at("photos-problem");
  const checking = ["queued", "running"].includes(known.state);
  const wrong = known.state === "failed" ? [known.error] : known.warnings || [];
  problem.hidden = !wrong.length;
  problem.replaceChildren(...wrong.map((text) => make("p", {}, sentence(text))));
  at("photos-tools").hidden = !known.classes.length;
  const used = known.classes.filter((each) => !each.excluded);
  const names = new Set(used.map((each) => each.name));
  at("photos-count").textContent = checking
    ? `Looking through the photos … ${known.total ? `${count(known.done)} of ${count(known.total)}` : ""}`
    : `${photos(known.images)} in ${names.size} class${names.size === 1 ? "" : "es"}`;
  if (checking) at("photos-tools").hidden = false;
  at("classes").replaceChildren(...known.classes.map((each, place) => card(each, place)));
}

function card(each, place) {
  const seen = at("seen").checked;
  const change = trying(async (changes) => {
    const { source, name, excluded } = { ...each, ...changes };
    await call("PATCH", "/api/photos/classes", { source, name, excluded });
    await refresh();
  });
  const name = make("input", { type: "text", value: each.name, maxLength: 100, class: "name", "aria-label": `Name of the class ${each.name}` });
  name.addEventListener("change", () => change({ name: name.value.trim() || each.source }));
  const others = known.classes.map((other) => other.name).filter((other) => other !== each.name);
  const merge = make("select", { "aria-label": `Merge ${each.name} with another class` },
    make("option", { value: "" }, "merge with …"),
    [...new Set(others)].map((other) => make("option", { value: other }, other)));
  merge.addEventListener("change", () => merge.value && change({ name: merge.value }));
  const use = make("input", { type: "checkbox", checked: !each.excluded });
  use.addEventListener("change", () => change({ excluded: !use.checked }));
  const thumbs = Array.from({ length: each.samples }, (_, number) => make("img", {
    src: `/api/photos/${known.job}/${place}/${number}${seen ? "?seen=true" : ""}`,
    alt: "", loading: "lazy", class: seen ? "pixels" : "",
  }));
  return make("li", { class: each.excluded ? "card excluded" : "card" },
    make("div", { class: "card-head" }, name, make("span", { class: "muted" }, photos(each.count))),
    make("div", { class: "thumbs", role: "img", "aria-label": `Some photos of ${each.name}` }, thumbs),
    each.problems.length ? make("ul", { class: "problems" }, each.problems.map((text) => make("li", {}, text))) : null,
    make("div", { class: "card-foot" },
      make("label", { class: "switch" }, use, " use for training"),
      others.length ? merge : null));
}
