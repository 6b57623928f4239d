// The page: four views, one stream of events from the server.

import { at, get, make, say } from "./dom.js";
import * as photos from "./photos.js";
import * as results from "./results.js";
import * as review from "./review.js";
import * as train from "./train.js";
import * as viewer from "./viewer.js";

const VIEWS = ["photos", "train", "review", "results"];

function current() {
  const wanted = location.hash.slice(1);
  return VIEWS.includes(wanted) ? wanted : null;
}

async function show(focus) {
  const name = current() || "photos";
  for (const each of VIEWS) at(each).hidden = each !== name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${name[0].toUpperCase()}${name.slice(1)} – anocaps`;
  if (name === "train") await photos.load(); // marks were added
  await draw(name);
  if (focus) {
    scrollTo(0, 0);
    at("main").focus({ preventScroll: true });
  }
}

async function draw(name) {
  if (name === "train") train.draw();
  if (name === "review") review.draw();
  if (name === "results") await results.draw();
}

async function changed(job) {
  if (job.kind === "check") {
    await photos.refresh();
  } else if (job.kind === "forecast") {
    await photos.load();
  } else if (job.kind === "train") {
    train.job(job);
    if (job.state === "done") review.setModels(await train.models());
  } else {
    review.job(job);
  }
  if (["train", "review"].includes(current())) await draw(current());
}

function listen() {
  const stream = new EventSource("/api/events");
  let lost = false;
  stream.addEventListener("job", (event) => changed(JSON.parse(event.data)).catch((error) => say(error.message, true)));
  stream.addEventListener("open", () => {
    if (lost) say("The server is back.");
    lost = false;
  });
  stream.addEventListener("error", async () => {
    if (!lost) say("The connection to the server is lost. Trying again …", true);
    lost = true;
    if (stream.readyState !== EventSource.CLOSED) return;
    stream.close();
    try {
      await get("/api/state");
    } catch (error) {
      if (error.status === 401) {
        say("The server was started again: open the address that it printed.", true);
        return;
      }
    }
    setTimeout(listen, 2000);
  });
}

async function begin() {
  const state = await get("/api/state");
  at("project").textContent = state.project;
  photos.start(state);
  train.start(state);
  review.start(state);
  viewer.start();
  await photos.refresh();
  review.setModels(await train.models());
  if (!current() && photos.checked().classes.length) history.replaceState(null, "", "#train");
  addEventListener("hashchange", () => show(true));
  await show(false);
  listen();
}

begin().catch((error) => at("main").prepend(make("p", { class: "problem", role: "alert" }, error.message)));
