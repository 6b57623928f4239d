// A place to drop folders, to choose them or single photos, or to name a folder of the server; and the upload.
// Files go in parts. A file that has arrived, also in an earlier try, is not sent again.

import { at, call, get, make, photos, post, say, trying } from "./dom.js";

const AT_A_TIME = 4;
const IMAGE = /\.(png|jpe?g|jfif|tiff?|bmp|webp)$/i;

export function dropZone(place, title, settings, onFiles, onFolder, single = false) {
  const input = (properties) => make("input", { type: "file", multiple: true, class: "unseen", tabIndex: -1, "aria-label": title, ...properties });
  const inputs = [input({ webkitdirectory: true })];
  if (single) inputs.unshift(input({ accept: "image/*" }));
  const choose = inputs.map((one) => make("button", { type: "button", class: "button", onclick: () => one.click() },
    one.webkitdirectory ? "Choose a folder" : "Choose photos"));
  const bar = make("progress", { max: 1, value: 0, hidden: true, "aria-label": "Upload" });
  const note = make("p", { class: "muted", role: "status" });
  const zone = make("div", { class: "drop" },
    make("p", { class: "strong" }, title),
    make("p", { class: "buttons" },
      ...choose,
      make("button", { type: "button", class: "button quiet", onclick: () => browse(onFolder) }, "Use a folder on the server"),
      ...settings),
    ...inputs, bar, note);

  const send = trying(async (found) => {
    const files = found.filter((each) => IMAGE.test(each.path));
    if (!files.length) throw new Error("There is no image file in what you dropped.");
    zone.classList.add("busy");
    try {
      await onFiles(files, (done) => {
        bar.hidden = false;
        bar.value = done / files.length;
        note.textContent = `${photos(done)} of ${files.length} sent`;
      });
    } finally {
      zone.classList.remove("busy");
      bar.hidden = true;
      note.textContent = "";
    }
  });
  for (const one of inputs) one.addEventListener("change", () => {
    send([...one.files].map((file) => ({ path: file.webkitRelativePath || file.name, file })));
    one.value = "";
  });
  zone.addEventListener("dragover", (event) => {
    event.preventDefault();
    zone.classList.add("over");
  });
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", async (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry());
    const found = [];
    for (const entry of entries) if (entry) await walk(entry, "", found);
    send(found);
  });
  place.replaceChildren(zone);
}

async function walk(entry, above, found) {
  const path = above + entry.name;
  if (entry.isFile) {
    found.push({ path, file: await new Promise((done, fail) => entry.file(done, fail)) });
    return;
  }
  const reader = entry.createReader();
  for (;;) {
    const some = await new Promise((done, fail) => reader.readEntries(done, fail));
    if (!some.length) return;
    for (const each of some) await walk(each, `${path}/`, found);
  }
}

// Drops the name of a folder that holds all class folders: train/lemon/1.jpg → lemon/1.jpg.
export function withoutTop(files) {
  const tops = new Set(files.map(({ path }) => path.split("/")[0]));
  if (tops.size > 1 || files.some(({ path }) => path.split("/").length < 3)) return files;
  return files.map(({ path, file }) => ({ path: path.slice(path.indexOf("/") + 1), file }));
}

export async function upload(target, files, part, told) {
  const announced = [];
  for (let start = 0; start < files.length; start += 5000) {
    const some = files.slice(start, start + 5000);
    announced.push(...await post("/api/uploads", { target, files: some.map(({ path, file }) => [path, file.size]) }));
  }
  const refused = announced.filter((each) => each.error);
  const waiting = files.map((each, k) => ({ ...each, ...announced[k] })).filter((each) => !each.error);
  let done = refused.length, next = 0;
  const worker = async () => {
    while (next < waiting.length) {
      await sendOne(target, waiting[next++], part);
      told(++done);
    }
  };
  await Promise.all(Array.from({ length: AT_A_TIME }, worker));
  if (refused.length) say(`${photos(refused.length)} not accepted. ${refused[0].error}`, true);
}

async function sendOne(target, { path, file, received }, part) {
  const address = `/api/uploads?target=${encodeURIComponent(target)}&path=${encodeURIComponent(path)}&size=${file.size}`;
  for (let tries = 0; received < file.size;) {
    try {
      const piece = file.slice(received, received + part);
      received = (await call("PUT", `${address}&offset=${received}`, piece)).received;
    } catch (error) {
      if (++tries > 5 || ![0, 408, 503].includes(error.status)) throw error;
      await new Promise((wait) => setTimeout(wait, 500 * 2 ** tries));
      [{ received }] = await post("/api/uploads", { target, files: [[path, file.size]] });
    }
  }
}

// ── a folder of the server ──

function browse(onFolder) {
  const dialog = at("folders");
  const list = make("ul", { class: "folder-list" });
  const here = make("p", { class: "path" });
  const use = make("button", { type: "button", class: "button primary" }, "Use this folder");
  const open = trying(async (path) => {
    const found = await get("/api/folders" + (path ? `?path=${encodeURIComponent(path)}` : ""));
    here.textContent = found.path || "Folders that this server may read:";
    use.disabled = !found.path;
    use.onclick = trying(async () => {
      dialog.close();
      await onFolder(found.path);
    });
    const entry = (to, name) => make("li", {}, make("button", { type: "button", class: "button quiet", onclick: () => open(to) }, name));
    const up = found.path ? [entry(found.parent, "↑ up")] : [];
    list.replaceChildren(...up, ...found.folders.map((each) => entry(each, found.path ? each.slice(each.lastIndexOf("/") + 1) : each)));
  });
  dialog.replaceChildren(
    make("h2", { id: "folders-title" }, "A folder on the server"), here, list,
    make("p", { class: "buttons" }, use, make("button", { type: "button", class: "button", onclick: () => dialog.close() }, "Cancel")));
  dialog.showModal();
  open(null);
}
