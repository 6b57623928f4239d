// The documentation of the API, drawn from /openapi.json.

import { at, get, make } from "./dom.js";

const found = await get("/openapi.json");

function shape(schema) {
  if (!schema) return "";
  if (schema.$ref) return shape(found.components.schemas[schema.$ref.split("/").at(-1)]);
  if (schema.anyOf) return schema.anyOf.map(shape).join(" or ");
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" | ");
  if (schema.type === "array") return `[${shape(schema.items)}, …]`;
  if (schema.type === "object" && schema.properties) {
    return `{${Object.entries(schema.properties).map(([name, each]) => `${name}: ${shape(each)}`).join(", ")}}`;
  }
  return schema.format || schema.type || "any";
}

function operation(method, path, one) {
  const given = (one.parameters || []).map((each) => make("tr", {},
    make("th", { scope: "row" }, each.name), make("td", {}, `${each.in}, ${shape(each.schema)}`), make("td", {}, each.description || "")));
  const body = Object.entries(one.requestBody?.content || {}).map(([kind, each]) => make("p", {}, `Body, ${kind}: `, make("code", {}, shape(each.schema))));
  const answer = Object.entries(one.responses["200"]?.content || {}).filter(([, each]) => shape(each.schema)).map(([, each]) => make("p", {}, "Answer: ", make("code", {}, shape(each.schema))));
  return make("details", { class: "panel" },
    make("summary", {}, make("b", {}, `${method.toUpperCase()} ${path}`), " ", one.description || ""),
    given.length ? make("table", { class: "scores" }, make("tbody", {}, given)) : null, body, answer);
}

at("about").textContent = `${found.info.title} ${found.info.version}. ${found.info.description.replaceAll("`", "")}`;
for (const [tag, title] of [["programs", "For programs"], ["page", "For the page"]]) {
  const all = Object.entries(found.paths).flatMap(([path, methods]) => Object.entries(methods)
    .filter(([, one]) => (one.tags || []).includes(tag)).map(([method, one]) => operation(method, path, one)));
  at("paths").append(make("h2", {}, title), ...all);
}
