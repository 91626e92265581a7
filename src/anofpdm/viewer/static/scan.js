/** One result: summary, volume viewer, findings, files. */
import { byId, forget, formatCount, formatMillilitres, make, nameOf, request, showTrouble } from "./common.js";
import { openVolumes, peakPosition } from "./volumes.js";

const LABELS = {
  report: "Report", mask: "Mask (NIfTI)", map: "Anomaly map (NIfTI)", "dicom-seg": "Mask (DICOM-SEG)", "dicom-picture": "Overview (DICOM)", findings: "Findings (CSV)",
  slices: "Slices (CSV)", summary: "Summary (JSON)", picture: "Overview (PNG)",
};
const INLINE = ["report", "picture"];
const key = decodeURIComponent(location.hash.slice(1));

function showFigures(result) {
  const figures = { "Lesion volume": formatMillilitres(result.volume_ml), Findings: formatCount(result.findings) };
  figures["Largest finding"] = result.lesions.length ? formatMillilitres(result.lesions[0].volume_ml) : "-";
  figures["Unhealthy slices"] = result.slices === null ? "-" : `${formatCount(result.slices_detected)} of ${result.slices}`;
  if (result.missing_modalities.length) figures["Missing modalities"] = result.missing_modalities.join(", ").toUpperCase();
  byId("figures").replaceChildren(...Object.entries(figures).map(([name, value]) =>
    make("div", {}, make("dt", { text: name }), make("dd", { text: value }))));
}

function showWarnings(result) {
  byId("notes").hidden = !result.notes.length;
  byId("notes-list").replaceChildren(...result.notes.map((text) => make("li", { text })));
}

const DIRECTIONS = ["RL", "AP", "SI"];
const centre = (one) => ["x_mm", "y_mm", "z_mm"].map((axis) => one[axis]);
const formatPosition = (position) => position.map((at, axis) => `${Math.abs(at).toFixed(0)} ${DIRECTIONS[axis][at < 0 ? 1 : 0]}`).join(", ");

function showLesions(result, volumes) {
  byId("no-lesions").hidden = result.lesions.length > 0;
  byId("lesions").hidden = !result.lesions.length;
  byId("lesion-rows").replaceChildren(...result.lesions.map((one) => {
    const go = make("button", { type: "button", className: "go", text: "Show", "aria-label": `Show finding ${one.finding}` });
    go.addEventListener("click", () => {
      volumes.goTo(peakPosition(one));
      byId("volumes").scrollIntoView({ block: "start" });
    });
    return make("tr", {}, make("td", { text: String(one.finding) }), make("td", { text: formatMillilitres(one.volume_ml) }),
      make("td", { text: formatPosition(centre(one)) }), make("td", { className: "optional", text: Number(one.peak.toPrecision(3)) }),
      make("td", {}, ...(volumes ? [go] : [])));
  }));
}

function showFiles(result) {
  const files = Object.keys(LABELS).map((role) => result.files.find((one) => one.role === role)).filter(Boolean);
  byId("files").replaceChildren(...files.map((one) => {
    const link = make("a", { className: "button", href: one.url, text: LABELS[one.role] });
    if (INLINE.includes(one.role)) Object.assign(link, { target: "_blank", rel: "noopener" });
    else link.download = one.name;
    return link;
  }));
}

/** In the whole window: the report has the summary, warnings and findings. */
function showReport(result, reason) {
  const report = result.files.find((one) => one.role === "report");
  byId("volumes").hidden = true;
  byId("fallback").hidden = false;
  byId("why-not").textContent = `${reason} ${report ? "The report is shown instead." : ""}`;
  byId("no-slices").hidden = Boolean(report);
  if (!report) return;
  document.body.classList.add("report-only");
  Object.assign(byId("slices"), { hidden: false, src: report.url });
}

async function showVolumes(result, status) {
  if (!status.viewer.url) {
    showReport(result, status.viewer.why_not);
    return null;
  }
  try {
    byId("volumes").hidden = false;
    return await openVolumes(status.viewer.url, result);
  } catch (error) {
    showReport(result, `The volume viewer is not available: ${error.message.replace(/\.?$/, ".")}`);
    return null;
  }
}

function showDeleteButton(status) {
  byId("delete-row").hidden = status.kind !== "serve";
  byId("delete").addEventListener("click", async () => {
    if (!window.confirm("Delete this scan and all its results?")) return;
    try {
      await request(`/api/jobs/${encodeURIComponent(key)}`, { method: "DELETE" });
      forget(key);
      location.href = "/";
    } catch (error) {
      showTrouble(error.message);
    }
  });
}

async function start() {
  try {
    const status = await request("/api/status");
    const result = await request(`/api/results/${encodeURIComponent(key)}`);
    const name = nameOf(key) || result.title;
    byId("title").textContent = name;
    document.title = `${name}: AnoFPDM`;
    byId("content").hidden = false;
    showWarnings(result);
    showFigures(result);
    showFiles(result);
    showDeleteButton(status);
    showLesions(result, null);
    const volumes = await showVolumes(result, status);
    if (volumes) showLesions(result, volumes);
    document.body.dataset.ready = "yes";
  } catch (error) {
    showTrouble(error.message);
  }
}

window.addEventListener("hashchange", () => location.reload());
start();
