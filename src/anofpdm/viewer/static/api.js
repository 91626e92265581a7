/** The API, as openapi.json tells it; drawn here, so that nothing has to come from elsewhere. */
import { ask, byId, make, trouble } from "./common.js";

function parts(call) {
  const form = call.requestBody?.content?.["multipart/form-data"]?.schema?.properties || {};
  const named = [...(call.parameters || []).map((one) => [one.name, one.in, one.description || ""]),
    ...Object.entries(form).map(([name, one]) => [name, "form", one.description || ""])];
  return make("ul", {}, ...named.map(([name, place, said]) =>
    make("li", {}, make("code", { text: name }), ` (${place}) ${said}`)));
}

function answers(call) {
  const said = Object.entries(call.responses || {}).map(([status, one]) => `${status} ${one.description.replace(/\.$/, "")}`);
  return make("p", { className: "quiet", text: said.join("; ") });
}

function section(path, method, call) {
  return make("section", {}, make("p", {}, make("span", { className: "method", text: method.toUpperCase() }),
    make("span", { className: "path", text: path })), make("p", { text: call.description || "" }), parts(call), answers(call));
}

async function start() {
  try {
    const told = await ask("/openapi.json");
    byId("title").textContent = `${told.info.title}, the API`;
    byId("about").textContent = told.info.description;
    for (const [path, calls] of Object.entries(told.paths)) {
      for (const [method, call] of Object.entries(calls)) byId("calls").append(section(path, method, call));
    }
    document.body.dataset.ready = "yes";
  } catch (problem) {
    trouble(problem.message);
  }
}

start();
