"use strict";
const at = (id) => document.getElementById(id);
const content = JSON.parse(at("content").textContent);
const FILE = 0, SCORE = 1, P = 2, VERDICT = 3, CLASS = 4, SENTENCE = 5, FURTHER = 6, ERROR = 7, RANK = 8, LINK = 9, NEAREST = 10;
const WIDTH = 3, HEIGHT = 4;  // after photo, reconstruction and heat in content.images
const STEP = 50;  // entries added when the page is scrolled to its end
const TINY = 64;  // pixels: smaller images are enlarged without smoothing
const all = content.rows.map((row, rank) => ({
  row, rank, images: content.images[rank], name: row[FILE].toLowerCase(),
  first: content.copies[rank] ?? rank,  // the first of its near-copies
}));
const classes = counted(CLASS);
let found = all, firsts = all, copies = new Map(), made = 0, viewed = null;

function element(tag, name, text) {
  const one = document.createElement(tag);
  if (name) one.className = name;
  if (text) one.textContent = text;  // not innerHTML: a file name may contain HTML
  return one;
}

// ── one entry ──

function image(address, words, kind) {
  const one = element("img", kind);
  one.src = address;
  one.alt = words;
  one.decoding = "async";
  return one;
}

function stack(entry, ...layers) {
  const shape = entry.images[WIDTH] / entry.images[HEIGHT];
  const tiny = Math.max(entry.images[WIDTH], entry.images[HEIGHT]) <= TINY;
  const one = element("span", tiny ? "stack tiny" : "stack");
  one.style.aspectRatio = String(shape);
  one.style.width = "min(100%, calc(var(--tall) * " + shape + "))";
  one.append(...layers);
  return one;
}

function images(entry) {
  const looks = entry.row[CLASS], [photo, reconstruction, heat] = entry.images;
  const layers = [image(photo, "photo")];
  if (heat) layers.push(image(heat, "where it is anomalous", "heat"));
  const strip = element("span", reconstruction ? "images two" : "images");
  strip.append(stack(entry, ...layers));
  if (reconstruction) {
    strip.append(stack(entry, image(reconstruction, looks ? "reconstructed as " + looks : "reconstruction")));
  }
  return strip;
}

function facts(row) {
  const one = element("details", "facts"), list = element("p");
  one.append(element("summary", "", "Details"));
  if (row[SENTENCE]) one.append(element("p", "", row[SENTENCE]));
  const further = content.further.map((name, which) => [name, row[FURTHER][which]]);
  for (const [name, value] of [[content.score, row[SCORE]], ["p-value", row[P]], ...further]) {
    if (!value) continue;
    const fact = element("span", "", name + " ");
    fact.append(element("b", "", value));
    list.append(fact, " ");
  }
  one.append(list);
  return one;
}

// The name of the most similar normal photo. The large view adds the photo, if it still exists.
function similar(name, open) {
  const one = element("p", "like", "most similar normal photo: " + name);
  if (open && content.normal[name]) one.append(image(content.normal[name], "the most similar normal photo", "similar"));
  return one;
}

function words(entry, open) {
  const row = entry.row, text = element("div", "words");
  const title = element("h2"), cut = row[FILE].lastIndexOf("/") + 1;
  const name = element(row[LINK] ? "a" : "span");
  if (row[LINK]) Object.assign(name, { href: row[LINK], target: "_blank", rel: "noopener" });
  name.append(element("span", "folder", row[FILE].slice(0, cut)), row[FILE].slice(cut));
  title.append(name);
  const said = element("p");
  said.append(element("span", "kind " + row[VERDICT].replace(" ", "-"), row[VERDICT]));
  if (row[RANK]) said.append(" ", row[RANK]);
  text.append(title, said);
  if (row[CLASS] && classes.size > 1) text.append(element("p", "like", "looks like " + row[CLASS]));
  if (row[NEAREST]) text.append(similar(row[NEAREST], open));
  if (row[ERROR]) text.append(element("p", "why", row[ERROR]));
  else {
    const more = facts(row);
    more.open = Boolean(open);
    text.append(more);
  }
  return text;
}

function item(entry) {
  const one = element("li", entry.images ? "item" : "item plain");
  if (entry.images) {
    const open = element("button", "open");
    open.type = "button";
    open.title = "Enlarge";
    open.setAttribute("aria-label", "Enlarge the photo of " + entry.row[FILE]);
    open.append(images(entry));
    open.addEventListener("click", () => view(entry));
    one.append(open);
  }
  one.append(words(entry));
  const others = copies.get(entry) || [];
  if (others.length) {
    const unfold = element("button", "copies", others.length + (others.length > 1 ? " near-copies" : " near-copy"));
    unfold.type = "button";
    unfold.addEventListener("click", () => {
      unfold.remove();
      one.after(...others.map(item));
    });
    one.append(unfold);
  }
  return one;
}

// ── the list ──

function more(focus) {
  const begun = made, part = document.createDocumentFragment();
  for (; made < Math.min(begun + STEP, firsts.length); made++) part.append(item(firsts[made]));
  at("list").append(part);
  at("more").hidden = made >= firsts.length;
  const next = focus && at("list").children[begun].querySelector("button");
  if (next) next.focus();
}

const number = (count) => count.toLocaleString("en");
const by = new Intl.Collator(undefined, { numeric: true });
const orders = {
  anomalous: (a, b) => a.rank - b.rank,
  normal: (a, b) => !!a.row[ERROR] - !!b.row[ERROR] || b.rank - a.rank,
  file: (a, b) => by.compare(a.row[FILE], b.row[FILE]),
};

// Only the first of several near-copies is listed. A button unfolds the others.
function group() {
  const leaders = new Map();
  copies = new Map();
  firsts = found.filter((entry) => {
    const leader = leaders.get(entry.first);
    if (leader === undefined) leaders.set(entry.first, entry);
    else copies.set(leader, [...(copies.get(leader) || []), entry]);
    return leader === undefined;
  });
}

function update() {
  const chosen = new FormData(at("tools")), verdict = chosen.get("verdict");
  const part = at("search").value.trim().toLowerCase(), kind = at("class").value;
  at("list").className = chosen.get("view");
  found = all.filter(({ row, name }) => (!verdict || row[VERDICT] === verdict)
    && (!kind || row[CLASS] === kind) && name.includes(part));
  found.sort(orders[at("order").value]);
  group();
  made = 0;
  at("list").replaceChildren();
  more();
  const few = found.length < all.length ? " of " + number(all.length) : "";
  at("count").textContent = found.length ? number(found.length) + few + " listed"
    : "No file matches. Choose another verdict or class, or clear the search.";
  const above = document.querySelector("header").getBoundingClientRect().bottom;
  if (above < 0) scrollBy(0, above);  // back to the beginning of the list
}

function counted(which) {
  const counts = new Map();
  for (const { row } of all) counts.set(row[which], (counts.get(row[which]) || 0) + 1);
  counts.delete("");
  return counts;
}

function choice(value, label, count) {
  const one = element("label"), radio = element("input");
  Object.assign(radio, { type: "radio", name: "verdict", value, checked: !value });
  const face = element("span", "", label + " ");
  face.append(element("span", "many", number(count)));
  one.append(radio, face);
  at("verdicts").append(one);
}

choice("", "all", all.length);
const verdicts = counted(VERDICT);
for (const verdict of ["anomalous", "normal", "no verdict", "not scored"]) {
  if (verdicts.has(verdict)) choice(verdict, verdict, verdicts.get(verdict));
}
for (const [name, count] of [...classes].sort((a, b) => by.compare(a[0], b[0]))) {
  const one = element("option", "", name + " (" + number(count) + ")");
  one.value = name;
  at("class").append(one);
}
at("class").closest("label").hidden = classes.size < 2;

const sliders = [...document.querySelectorAll(".opacity")];
for (const slider of sliders) {
  slider.addEventListener("input", (event) => {
    event.stopPropagation();  // do not update the list
    document.documentElement.style.setProperty("--heat", slider.value / 100);
    for (const each of sliders) each.value = slider.value;
  });
}
at("tools").addEventListener("input", update);
at("tools").addEventListener("submit", (event) => event.preventDefault());
at("more").addEventListener("click", () => more(true));
new IntersectionObserver((seen) => {
  if (seen[0].isIntersecting && made < firsts.length) more();
}, { rootMargin: "900px" }).observe(at("more"));

// ── the large photo ──

function neighbour(step) {
  let place = found.indexOf(viewed) + step;
  while (found[place] && !found[place].images) place += step;
  return found[place];
}

function view(entry) {
  viewed = entry;
  const text = words(entry, true);
  text.querySelector("h2").id = "viewer-file";
  at("viewer-card").replaceChildren(images(entry), text);
  at("back").disabled = !neighbour(-1);
  at("on").disabled = !neighbour(1);
  if (!at("viewer").open) at("viewer").showModal();
}

function turn(step) {
  const next = neighbour(step);
  if (next) view(next);
}

at("back").addEventListener("click", () => turn(-1));
at("on").addEventListener("click", () => turn(1));
at("shut").addEventListener("click", () => at("viewer").close());
at("viewer").addEventListener("click", (event) => {
  if (event.target === at("viewer")) at("viewer").close();  // a click outside the card
});
at("viewer").addEventListener("keydown", (event) => {
  if (event.target.type === "range") return;
  if (event.key === "ArrowLeft") turn(-1);
  if (event.key === "ArrowRight") turn(1);
});
update();
