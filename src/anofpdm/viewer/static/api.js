/** API documentation, rendered from openapi.json without external scripts. */
import { byId, make, request, showTrouble } from "./common.js";

function parameters(call) {
  const form = call.requestBody?.content?.["multipart/form-data"]?.schema?.properties || {};
  const rows = [...(call.parameters || []).map((one) => [one.name, one.in, one.description || ""]),
    ...Object.entries(form).map(([name, one]) => [name, "form", one.description || ""])];
  return make("ul", {}, ...rows.map(([name, location, description]) =>
    make("li", {}, make("code", { text: name }), ` (${location}) ${description}`)));
}

function responses(call) {
  const texts = Object.entries(call.responses || {}).map(([status, one]) => `${status} ${one.description.replace(/\.$/, "")}`);
  return make("p", { className: "quiet", text: texts.join("; ") });
}

function section(path, method, call) {
  return make("section", {}, make("p", {}, make("span", { className: "method", text: method.toUpperCase() }),
    make("span", { className: "path", text: path })), make("p", { text: call.description || "" }), parameters(call), responses(call));
}

async function start() {
  try {
    const schema = await request("/openapi.json");
    byId("title").textContent = `${schema.info.title}: API`;
    byId("about").textContent = schema.info.description;
    for (const [path, calls] of Object.entries(schema.paths)) {
      for (const [method, call] of Object.entries(calls)) byId("calls").append(section(path, method, call));
    }
    document.body.dataset.ready = "yes";
  } catch (error) {
    showTrouble(error.message);
  }
}

start();
