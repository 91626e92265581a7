/** The results in a folder. */
import { byId, formatCount, formatMillilitres, make, request, showTrouble } from "./common.js";

let results = [];

function row(one) {
  if (one.unreadable) {
    const reason = make("td", { className: "failed", colSpan: 5, text: `Unreadable: ${one.unreadable}` });
    return make("tr", {}, make("td", { text: one.title }), reason);
  }
  const unhealthy = one.slices_detected === null ? "-" : `${one.slices_detected} of ${one.slices}`;
  const open = make("a", { className: "button", href: `/scan#${one.key}`, text: "Open", "aria-label": `Open ${one.title}` });
  return make("tr", {}, make("td", { text: one.title }), make("td", { text: formatMillilitres(one.volume_ml) }),
    make("td", { text: formatCount(one.findings) }), make("td", { className: "optional", text: unhealthy }),
    make("td", { className: "optional", text: one.warnings ? String(one.warnings) : "-" }), make("td", {}, open));
}

function show() {
  const wanted = byId("search").value.trim().toLowerCase();
  const matching = results.filter((one) => one.title.toLowerCase().includes(wanted));
  byId("count").textContent = matching.length === results.length ? `${results.length}` : `${matching.length} of ${results.length}`;
  byId("rows").replaceChildren(...matching.map(row));
}

async function start() {
  try {
    results = await request("/api/results");
    show();
    document.body.dataset.ready = "yes";
  } catch (error) {
    showTrouble(error.message);
  }
}

byId("search").addEventListener("input", show);
start();
