/** The results in a folder. */
import { ask, byId, make, millilitres, trouble, whole } from "./common.js";

let results = [];

function row(one) {
  const called = one.slices_detected === null ? "-" : `${one.slices_detected} of ${one.slices}`;
  const open = make("a", { className: "button", href: `/scan#${one.key}`, text: "Open", "aria-label": `Open ${one.title}` });
  return make("tr", {}, make("td", { text: one.title }), make("td", { text: millilitres(one.volume_ml) }),
    make("td", { text: whole(one.findings) }), make("td", { className: "optional", text: called }),
    make("td", { className: "optional", text: one.warnings ? String(one.warnings) : "-" }), make("td", {}, open));
}

function show() {
  const wanted = byId("search").value.trim().toLowerCase();
  const some = results.filter((one) => one.title.toLowerCase().includes(wanted));
  byId("count").textContent = some.length === results.length ? `${results.length}` : `${some.length} of ${results.length}`;
  byId("rows").replaceChildren(...some.map(row));
}

async function start() {
  try {
    results = await ask("/api/results");
    show();
    document.body.dataset.ready = "yes";
  } catch (problem) {
    trouble(problem.message);
  }
}

byId("search").addEventListener("input", show);
start();
