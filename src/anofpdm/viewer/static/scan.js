/** One result: what was found, the volume, findings, files. */
import { ask, byId, forget, make, millilitres, nameOf, trouble, whole } from "./common.js";
import { openVolumes, peakOf } from "./volumes.js";

const NAMES = {
  report: "Report", mask: "Mask (NIfTI)", map: "Anomaly map (NIfTI)", "dicom-seg": "Mask (DICOM-SEG)", "dicom-picture": "Overview (DICOM)", findings: "Findings (CSV)",
  slices: "Slices (CSV)", summary: "Summary (JSON)", picture: "Overview (PNG)",
};
const SHOWN = ["report", "picture"];
const key = decodeURIComponent(location.hash.slice(1));

function figures(result) {
  const named = { Volume: millilitres(result.volume_ml), Findings: whole(result.findings) };
  named["Largest finding"] = result.lesions.length ? millilitres(result.lesions[0].volume_ml) : "-";
  named["Slices called unhealthy"] = result.slices === null ? "-" : `${whole(result.slices_detected)} of ${result.slices}`;
  byId("figures").replaceChildren(...Object.entries(named).map(([name, value]) =>
    make("div", {}, make("dt", { text: name }), make("dd", { text: value }))));
}

function notes(result) {
  byId("notes").hidden = !result.notes.length;
  byId("notes-list").replaceChildren(...result.notes.map((text) => make("li", { text })));
}

const SIDES = ["RL", "AP", "SI"];
const centre = (one) => ["x_mm", "y_mm", "z_mm"].map((axis) => one[axis]);
const inLetters = (place) => place.map((at, axis) => `${Math.abs(at).toFixed(0)} ${SIDES[axis][at < 0 ? 1 : 0]}`).join(", ");

function lesions(result, volumes) {
  byId("no-lesions").hidden = result.lesions.length > 0;
  byId("lesions").hidden = !result.lesions.length;
  byId("lesion-rows").replaceChildren(...result.lesions.map((one) => {
    const go = make("button", { type: "button", className: "go", text: "Show", "aria-label": `Show finding ${one.finding}` });
    go.addEventListener("click", () => {
      volumes.goTo(peakOf(one));
      byId("volumes").scrollIntoView({ block: "start" });
    });
    return make("tr", {}, make("td", { text: String(one.finding) }), make("td", { text: millilitres(one.volume_ml) }),
      make("td", { text: inLetters(centre(one)) }), make("td", { className: "optional", text: Number(one.peak.toPrecision(3)) }),
      make("td", {}, ...(volumes ? [go] : [])));
  }));
}

function files(result) {
  const known = Object.keys(NAMES).map((role) => result.files.find((one) => one.role === role)).filter(Boolean);
  byId("files").replaceChildren(...known.map((one) => {
    const link = make("a", { className: "button", href: one.url, text: NAMES[one.role] });
    if (SHOWN.includes(one.role)) Object.assign(link, { target: "_blank", rel: "noopener" });
    else link.download = one.name;
    return link;
  }));
}

function fallBack(result, why) {
  const report = result.files.find((one) => one.role === "report");
  byId("volumes").hidden = true;
  byId("fallback").hidden = false;
  byId("why-not").textContent = `${why} ${report ? "Here are the slices of the report instead." : ""}`;
  byId("no-slices").hidden = Boolean(report);
  if (report) Object.assign(byId("slices"), { hidden: false, src: `${report.url}#browser` });
}

async function volumesOf(result, status) {
  if (!status.viewer.ready) {
    fallBack(result, status.viewer.why_not);
    return null;
  }
  try {
    byId("volumes").hidden = false;
    return await openVolumes(status.viewer.url, result);
  } catch (problem) {
    fallBack(result, `The volume viewer could not be used: ${problem.message.replace(/\.?$/, ".")}`);
    return null;
  }
}

function offerToDelete(status) {
  byId("delete-row").hidden = status.kind !== "serve";
  byId("delete").addEventListener("click", async () => {
    if (!window.confirm("Delete this scan and all its results?")) return;
    try {
      await ask(`/api/jobs/${encodeURIComponent(key)}`, { method: "DELETE" });
      forget(key);
      location.href = "/";
    } catch (problem) {
      trouble(problem.message);
    }
  });
}

async function start() {
  try {
    const status = await ask("/api/status");
    const result = await ask(`/api/results/${encodeURIComponent(key)}`);
    const name = nameOf(key) || result.title;
    byId("title").textContent = name;
    document.title = `${name}: AnoFPDM`;
    byId("all").hidden = false;
    notes(result);
    figures(result);
    files(result);
    offerToDelete(status);
    lesions(result, null);
    const volumes = await volumesOf(result, status);
    if (volumes) lesions(result, volumes);
    document.body.dataset.ready = "yes";
  } catch (problem) {
    trouble(problem.message);
  }
}

window.addEventListener("hashchange", () => location.reload());
start();
