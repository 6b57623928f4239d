// Small helpers: elements, requests, words for numbers. Text is always set as text, never as HTML:
// the name of a file or class may be anything.

export const at = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const one = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) one.addEventListener(name.slice(2), value);
    else if (name === "class") one.className = value;
    else if (name.includes("-") || name === "role" || name === "for") one.setAttribute(name, value);
    else one[name] = value;
  }
  return fill(one, ...children);
}

// Replaces the content of an element; null stands for nothing.
export function fill(place, ...children) {
  place.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
  return place;
}

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function call(method, path, body) {
  const options = { method, headers: {} };
  if (body instanceof Blob) options.body = body;
  else if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["content-type"] = "application/json";
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Refused(0, "The server does not answer. Is it still running?");
  }
  if (answer.ok) return answer.json();
  const text = await answer.text();
  let detail = text;
  try {
    detail = JSON.parse(text).detail;
    if (typeof detail !== "string") detail = detail[0].msg;
  } catch { /* plain text */ }
  throw new Refused(answer.status, sentence(detail || `Error ${answer.status}`));
}

export const get = (path) => call("GET", path);
export const post = (path, body = {}) => call("POST", path, body);

export const pause = (ms) => new Promise((done) => setTimeout(done, ms));

// ── words ──

export function sentence(text) {
  const words = String(text).trim();
  return words ? words[0].toUpperCase() + words.slice(1) + (/[.!?]$/.test(words) ? "" : ".") : "";
}

export const count = (number) => number.toLocaleString("en");
export const many = (number, thing) => `${count(number)} ${thing}${number === 1 ? "" : "s"}`;
export const photos = (number) => many(number, "photo");

export function percent(share, digits = 0) {
  return `${(100 * share).toFixed(digits)}\u00a0%`;
}

export function duration(seconds) {
  if (seconds < 50) return `${Math.max(5, Math.ceil(seconds / 5) * 5)} seconds`;
  if (seconds < 90) return "a minute";
  if (seconds < 5400) return `${Math.round(seconds / 60)} minutes`;
  return `${(seconds / 3600).toFixed(1)} hours`;
}

export const baseName = (path) => path.slice(path.lastIndexOf("/") + 1);

// ── messages ──

export function say(text, bad = false) {
  const message = make("p", { class: bad ? "message bad" : "message" }, text);
  if (bad) message.setAttribute("role", "alert");
  at("messages").append(message);
  setTimeout(() => message.remove(), bad ? 12000 : 5000);
}

// Runs what a button does; an error becomes a message.
export const trying = (work) => async (...given) => {
  try {
    await work(...given);
  } catch (error) {
    if (!(error instanceof Refused)) console.error(error);
    say(error.message, true);
  }
};
