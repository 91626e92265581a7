/** Upload form and the list of scans with their progress. */
import { RequestError, byId, forget, formatBytes, formatMillilitres, make, remember, rememberedScans, request, setMessage, showTrouble } from "./common.js";

const BUSY_MS = 600, IDLE_MS = 5000, RETRY_MS = 2000; // between two requests for the state of the scans
const MODALITY_PATTERNS = {
  flair: /flair|t2f/i, t1ce: /t1ce|t1c(?![a-z])|t1gd|t1post|ce-t1|t1w?_?gd/i, t2: /t2(?!f)/i, t1: /t1/i,
};
let status = null, upload = null, listed = [], timer = 0;

// ---- form -----------------------------------------------------------------------------------------------------------

function makeSlot(modality, optional) {
  const input = make("input", { type: "file", id: `file-${modality}`, accept: ".nii,.gz,.nii.gz", "aria-describedby": `error-${modality}` });
  return make("div", { className: "slot", id: `slot-${modality}` },
    make("label", { htmlFor: `file-${modality}`, text: `${modality.toUpperCase()}${optional ? " (optional)" : ""}` }), input,
    make("p", { className: "error", id: `error-${modality}`, role: "alert", hidden: true }));
}

const fields = () => [...status.modalities, ...(status.dicom ? ["dicom"] : [])];
const chosen = (field) => byId(`file-${field}`).files[0] || null;

function setFile(field, file) {
  const transfer = new DataTransfer();
  if (file) transfer.items.add(file);
  byId(`file-${field}`).files = transfer.files;
  markSlot(field);
}

function markSlot(field, error = "") {
  byId(`slot-${field}`).classList.toggle("given", Boolean(chosen(field)) && !error);
  byId(`slot-${field}`).classList.toggle("bad", Boolean(error));
  setMessage(`error-${field}`, error);
}

function clearErrors() {
  fields().forEach((field) => markSlot(field));
  setMessage("error-series", "");
  setMessage("error-form", "");
}

/** Modality of a file, guessed from its name; a single missing modality needs no hint. */
function guessField(name, free) {
  if (/\.zip$/i.test(name) && status.dicom) return "dicom";
  const found = Object.keys(MODALITY_PATTERNS).find((one) => MODALITY_PATTERNS[one].test(name));
  if (found && free.includes(found)) return found;
  return free.length === 1 && !found ? free[0] : null;
}

function assignDropped(files) {
  clearErrors();
  const unknown = [];
  for (const file of files) {
    const free = status.modalities.filter((one) => !chosen(one));
    const field = guessField(file.name, files.length > 1 || free.length === 0 ? status.modalities : free);
    if (field) setFile(field, file);
    else unknown.push(file.name);
  }
  if (unknown.length) setMessage("error-form", `Unknown modality: ${unknown.join(", ")}. Choose the files below.`);
}

function showError(error) {
  const field = error.field;
  if (field === "series") {
    byId("series-part").open = true;
    setMessage("error-series", error.message);
  } else if (field && fields().includes(field)) {
    markSlot(field, error.message);
    byId(`file-${field}`).focus();
  } else {
    setMessage("error-form", error.message);
  }
}

/** The form data, after the checks that need no server. */
function buildForm() {
  const zip = status.dicom ? chosen("dicom") : null;
  const given = status.modalities.filter(chosen);
  if (zip && given.length) throw new RequestError(0, { error: "Give either a zip of DICOM files or one file per modality, not both.", field: "dicom" });
  if (!zip) {
    const missing = status.modalities.filter((one) => !chosen(one) && !status.optional.includes(one));
    if (!given.length) throw new RequestError(0, { error: "Choose the files of a scan first." });
    if (missing.length) throw new RequestError(0, { error: `The ${missing[0].toUpperCase()} file is missing; the model needs it.`, field: missing[0] });
  }
  const form = new FormData();
  let bytes = 0;
  for (const field of zip ? ["dicom"] : given) {
    form.append(field, chosen(field), field); // the original file name is not sent
    bytes += chosen(field).size;
  }
  if (zip && byId("series").value.trim()) form.append("series", byId("series").value.trim());
  if (bytes > status.upload_bytes) {
    throw new RequestError(0, { error: `The files have ${formatBytes(bytes)} in total; the server accepts ${formatBytes(status.upload_bytes)}.` });
  }
  return { form, name: scanName((zip || chosen(given[0])).name) };
}

/** p1_flair.nii.gz gives p1. */
function scanName(name) {
  const stem = name.replace(/\.(nii|nii\.gz|zip)$/i, "");
  const end = status.modalities.find((one) => stem.toLowerCase().endsWith(one));
  return (end ? stem.slice(0, -end.length).replace(/[-_. ]+$/, "") : stem) || stem || name;
}

function setUploading(on) {
  byId("sending").hidden = byId("stop").hidden = !on;
  byId("send").disabled = on;
}

function showUploaded(share) {
  byId("sent").value = share;
  byId("sent-value").textContent = share < 1 ? `${Math.floor(100 * share)}%` : "checking the files";
}

/** With XMLHttpRequest, because fetch reports no upload progress. */
function post(form) {
  return new Promise((resolve, reject) => {
    upload = new XMLHttpRequest();
    upload.open("POST", "/api/jobs");
    upload.responseType = "json";
    upload.upload.addEventListener("progress", (event) => showUploaded(event.lengthComputable ? event.loaded / event.total : 0));
    upload.addEventListener("load", () => {
      if (upload.status === 202 && upload.response) resolve(upload.response);
      else reject(new RequestError(upload.status, upload.response));
    });
    upload.addEventListener("error", () => reject(new RequestError(0, { error: "The connection was lost during the upload; try again." })));
    upload.addEventListener("abort", () => reject(new RequestError(0, { error: "The upload was cancelled." })));
    upload.send(form);
  });
}

async function send(event) {
  event.preventDefault();
  clearErrors();
  try {
    const { form, name } = buildForm();
    setUploading(true);
    showUploaded(0);
    const job = await post(form);
    remember(job.id, name);
    fields().forEach((field) => setFile(field, null));
    byId("series").value = "";
    await refreshRepeatedly();
  } catch (error) {
    showError(error);
  } finally {
    setUploading(false);
  }
}

// ---- scans ----------------------------------------------------------------------------------------------------------

function describeState(job) {
  if (job.state === "queued") return `Queued: ${job.ahead} ${job.ahead === 1 ? "scan" : "scans"} ahead`;
  if (job.state === "running") return job.total ? `Running: ${percent(job)}%${timeLeft(job)}` : "Running: starting";
  if (job.state === "cancelled") return "Cancelled; the uploaded files were deleted";
  if (job.state === "failed") return `Failed: ${job.error}`;
  const { volume_ml: volume, findings, warnings, missing_modalities: missing } = job.result;
  const found = findings ? `${formatMillilitres(volume)} in ${findings} ${findings === 1 ? "finding" : "findings"}` : "no lesion was found";
  const without = missing?.length ? `; without ${missing.join(", ").toUpperCase()}` : "";
  return `Done: ${found}${without}${warnings?.length ? "; with warnings" : ""}`;
}

const percent = (job) => Math.floor((100 * job.done) / job.total);

function timeLeft(job) {
  const spent = Date.now() / 1000 - job.started, share = job.done / job.total;
  if (share < 0.05 || spent < 3) return "";
  const seconds = Math.round((spent * (1 - share)) / share);
  return seconds < 90 ? `, about ${seconds} s left` : `, about ${Math.round(seconds / 60)} min left`;
}

const isFinished = (job) => !["queued", "running"].includes(job.state);

function makeItem(job, name) {
  const item = make("li", { id: `scan-${job.id}` });
  item.dataset.state = job.state;
  const date = new Date(1000 * job.accepted).toLocaleString();
  item.append(make("div", { className: "row" }, make("span", { className: "file", text: name }),
    make("span", { className: "quiet push", text: name === job.name ? date : `${job.name}, ${date}` })));
  item.append(make("div", { className: `state ${job.state}`, text: describeState(job) }));
  if (job.state === "running") {
    item.append(make("progress", { max: job.total || 1, value: job.done, "aria-label": "Progress" }));
  }
  const buttons = make("div", { className: "row" });
  if (job.state === "done") buttons.append(make("a", { className: "button main open", href: `/scan#${job.id}`, text: "Open result" }));
  if (!isFinished(job)) buttons.append(make("button", { type: "button", className: "cancel", text: "Cancel", onclick: () => cancel(job) }));
  else buttons.append(make("button", { type: "button", className: "delete", text: "Delete", onclick: () => remove(job) }));
  item.append(buttons);
  return item;
}

/** Updates only what has changed, so that focus and clicks are not lost. */
function showJobs(jobs, list, none) {
  const names = new Map(rememberedScans().map((one) => [one.id, one.name]));
  none.hidden = jobs.length > 0;
  for (const item of [...list.children]) if (!jobs.some((job) => item.id === `scan-${job.id}`)) item.remove();
  jobs.forEach((job, at) => {
    const drawn = byId(`scan-${job.id}`);
    if (drawn && drawn.dataset.state === job.state) {
      drawn.querySelector(".state").textContent = describeState(job);
      const bar = drawn.querySelector("progress");
      if (bar) Object.assign(bar, { max: job.total || 1, value: job.done });
    } else if (drawn) {
      drawn.replaceWith(makeItem(job, names.get(job.id) || job.name));
    } else {
      list.insertBefore(makeItem(job, names.get(job.id) || job.name), list.children[at] || null);
    }
  });
}

async function refresh() {
  const ids = rememberedScans().map((one) => one.id);
  const jobs = ids.length ? await request(`/api/jobs?${ids.map((id) => `id=${encodeURIComponent(id)}`).join("&")}`) : [];
  for (const id of ids) if (!jobs.some((job) => job.id === id)) forget(id);
  const others = byId("others").open ? (await request("/api/jobs")).filter((job) => !ids.includes(job.id)) : [];
  listed = [...jobs, ...others];
  showJobs(jobs, byId("scans"), byId("none"));
  showJobs(others, byId("other-scans"), byId("no-others"));
}

async function cancel(job) {
  await runAction(() => request(`/api/jobs/${job.id}/cancel`, { method: "POST" }));
}

async function remove(job) {
  if (job.state === "done" && !window.confirm("Delete this scan and all its results?")) return;
  await runAction(() => request(`/api/jobs/${job.id}`, { method: "DELETE" }));
}

async function runAction(action) {
  try {
    await action();
    await refreshRepeatedly();
  } catch (error) {
    showTrouble(error.message);
  }
}

async function refreshRepeatedly() {
  let wait = IDLE_MS;
  try {
    if (!status) await loadStatus();
    await refresh();
    showTrouble("");
    if (!listed.every(isFinished)) wait = BUSY_MS;
  } catch (error) {
    showTrouble(error.message);
    wait = RETRY_MS;
  }
  window.clearTimeout(timer); // only one timer runs
  timer = window.setTimeout(refreshRepeatedly, document.hidden ? IDLE_MS : wait);
}

// ---- start ----------------------------------------------------------------------------------------------------------

async function loadStatus() {
  const loaded = await request("/api/status");
  byId("model").textContent = `AnoFPDM, model ${loaded.model}`;
  const needed = loaded.modalities.filter((one) => !loaded.optional.includes(one)).join(", ").toUpperCase();
  const optional = loaded.optional.length ? ` and, if there are any, ${loaded.optional.join(", ").toUpperCase()}` : "";
  const size = formatBytes(loaded.upload_bytes);
  const form = loaded.raw
    ? `as NIfTI files, at most ${size} in total. Series on different grids, or of whole heads, are registered and stripped first.`
    : `as NIfTI files of stripped brains on the same grid, at most ${size} in total.`;
  byId("needs").textContent = `The model needs ${needed}${optional} ${form}`;
  byId("slots").replaceChildren(...loaded.modalities.map((one) => makeSlot(one, loaded.optional.includes(one))));
  byId("dicom-part").hidden = !loaded.dicom;
  status = loaded;
  for (const field of fields()) byId(`file-${field}`).addEventListener("change", () => markSlot(field));
  document.body.dataset.ready = "yes";
}

function addListeners() {
  const drop = byId("drop");
  for (const kind of ["dragenter", "dragover"]) {
    document.addEventListener(kind, (event) => {
      event.preventDefault();
      drop.classList.add("over");
    });
  }
  document.addEventListener("dragleave", (event) => !event.relatedTarget && drop.classList.remove("over"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    if (status) assignDropped([...event.dataTransfer.files]);
  });
  byId("form").addEventListener("submit", send);
  byId("others").addEventListener("toggle", refreshRepeatedly);
  byId("stop").addEventListener("click", () => upload?.abort());
}

addListeners();
refreshRepeatedly();
