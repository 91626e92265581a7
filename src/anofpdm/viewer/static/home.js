/** Upload, queue, progress. */
import { Refused, ask, byId, forget, kept, make, millilitres, remember, say, size, trouble } from "./common.js";

const EVERY = 600, RESTING = 5000; // milliseconds between two looks at the queue
const WORDS = {
  flair: /flair|t2f/i, t1ce: /t1ce|t1c(?![a-z])|t1gd|t1post|ce-t1|t1w?_?gd/i, t2: /t2(?!f)/i, t1: /t1/i,
};
let status = null, upload = null, listed = [], timer = 0;

// ---- the form -------------------------------------------------------------------------------------------------------

function slot(modality) {
  const input = make("input", { type: "file", id: `file-${modality}`, accept: ".nii,.gz,.nii.gz", "aria-describedby": `wrong-${modality}` });
  return make("div", { className: "slot", id: `slot-${modality}` },
    make("label", { htmlFor: `file-${modality}`, text: modality.toUpperCase() }), input,
    make("p", { className: "wrong", id: `wrong-${modality}`, role: "alert", hidden: true }));
}

const fields = () => [...status.modalities, ...(status.dicom ? ["dicom"] : [])];
const chosen = (field) => byId(`file-${field}`).files[0] || null;

function choose(field, file) {
  const one = new DataTransfer();
  if (file) one.items.add(file);
  byId(`file-${field}`).files = one.files;
  mark(field);
}

function mark(field, wrong = "") {
  byId(`slot-${field}`).classList.toggle("given", Boolean(chosen(field)) && !wrong);
  byId(`slot-${field}`).classList.toggle("bad", Boolean(wrong));
  say(`wrong-${field}`, wrong);
}

function clearWrongs() {
  fields().forEach((field) => mark(field));
  say("wrong-series", "");
  say("wrong-form", "");
}

/** Which modality a file is, by its name; alone, a model's only one. */
function guess(name, free) {
  if (/\.zip$/i.test(name) && status.dicom) return "dicom";
  const found = Object.keys(WORDS).find((one) => WORDS[one].test(name));
  if (found && free.includes(found)) return found;
  return free.length === 1 && !found ? free[0] : null;
}

function dropped(files) {
  clearWrongs();
  const lost = [];
  for (const file of files) {
    const free = status.modalities.filter((one) => !chosen(one));
    const field = guess(file.name, files.length > 1 || free.length === 0 ? status.modalities : free);
    if (field) choose(field, file);
    else lost.push(file.name);
  }
  if (lost.length) say("wrong-form", `It is not clear which modality this is: ${lost.join(", ")}. Choose it by hand below.`);
}

function wrongAt(problem) {
  const field = problem.field;
  if (field === "series") {
    byId("series-part").open = true;
    say("wrong-series", problem.message);
  } else if (field && fields().includes(field)) {
    mark(field, problem.message);
    byId(`file-${field}`).focus();
  } else {
    say("wrong-form", problem.message);
  }
}

/** What can be seen without asking the server. */
function checked() {
  const zip = status.dicom ? chosen("dicom") : null;
  const given = status.modalities.filter(chosen);
  if (zip && given.length) throw new Refused(0, { error: "Give a zip of DICOM files or a file for each modality, not both.", field: "dicom" });
  if (!zip) {
    const missing = status.modalities.filter((one) => !chosen(one));
    if (missing.length === status.modalities.length) throw new Refused(0, { error: "Choose the files of a scan first." });
    if (missing.length) throw new Refused(0, { error: `The ${missing[0].toUpperCase()} is missing; the model needs it.`, field: missing[0] });
  }
  const form = new FormData();
  let bytes = 0;
  for (const field of zip ? ["dicom"] : status.modalities) {
    form.append(field, chosen(field), field); // its own name stays here
    bytes += chosen(field).size;
  }
  if (zip && byId("series").value.trim()) form.append("series", byId("series").value.trim());
  if (bytes > status.upload_bytes) {
    throw new Refused(0, { error: `Together the files have ${size(bytes)}; the server takes ${size(status.upload_bytes)}.` });
  }
  return { form, name: called((zip || chosen(status.modalities[0])).name) };
}

/** p1_flair.nii.gz is a scan of p1. */
function called(name) {
  const whole = name.replace(/\.(nii|nii\.gz|zip)$/i, "");
  const end = status.modalities.find((one) => whole.toLowerCase().endsWith(one));
  return (end ? whole.slice(0, -end.length).replace(/[-_. ]+$/, "") : whole) || whole || name;
}

function sending(on) {
  byId("sending").hidden = byId("stop").hidden = !on;
  byId("send").disabled = on;
}

function sent(share) {
  byId("sent").value = share;
  byId("sent-said").textContent = share < 1 ? `${Math.floor(100 * share)}%` : "the server looks at it";
}

/** XMLHttpRequest, since fetch does not tell how much is sent. */
function post(form) {
  return new Promise((resolve, reject) => {
    upload = new XMLHttpRequest();
    upload.open("POST", "/api/jobs");
    upload.responseType = "json";
    upload.upload.addEventListener("progress", (event) => sent(event.lengthComputable ? event.loaded / event.total : 0));
    upload.addEventListener("load", () => {
      if (upload.status === 202 && upload.response) resolve(upload.response);
      else reject(new Refused(upload.status, upload.response));
    });
    upload.addEventListener("error", () => reject(new Refused(0, { error: "The connection broke during the upload; try again." })));
    upload.addEventListener("abort", () => reject(new Refused(0, { error: "The upload was stopped." })));
    upload.send(form);
  });
}

async function send(event) {
  event.preventDefault();
  clearWrongs();
  try {
    const { form, name } = checked();
    sending(true);
    sent(0);
    const job = await post(form);
    remember(job.id, name);
    fields().forEach((field) => choose(field, null));
    byId("series").value = "";
    await keepLooking();
  } catch (problem) {
    wrongAt(problem);
  } finally {
    sending(false);
  }
}

// ---- the queue ------------------------------------------------------------------------------------------------------

function stands(job) {
  if (job.state === "queued") return job.ahead === 1 ? "Waiting: one scan before it" : `Waiting: ${job.ahead} scans before it`;
  if (job.state === "running") return job.total ? `Working: ${percent(job)}%${left(job)}` : "Working: it begins";
  if (job.state === "cancelled") return "Cancelled; what was uploaded is deleted";
  if (job.state === "failed") return `Not possible: ${job.error}`;
  const { volume_ml: volume, findings, warnings } = job.found;
  const found = findings ? `${millilitres(volume)} in ${findings === 1 ? "one finding" : `${findings} findings`}` : "nothing was found";
  return `Done: ${found}${warnings?.length ? "; there is a warning" : ""}`;
}

const percent = (job) => Math.floor((100 * job.done) / job.total);

function left(job) {
  const spent = Date.now() / 1000 - job.started, share = job.done / job.total;
  if (share < 0.05 || spent < 3) return "";
  const seconds = Math.round((spent * (1 - share)) / share);
  return seconds < 90 ? `, about ${seconds} s left` : `, about ${Math.round(seconds / 60)} min left`;
}

const over = (job) => !["queued", "running"].includes(job.state);

function line(job, name) {
  const item = make("li", { id: `scan-${job.id}` });
  item.dataset.state = job.state;
  item.append(make("div", { className: "row" }, make("span", { className: "file", text: name }),
    make("span", { className: "quiet push", text: `${job.name}, ${new Date(1000 * job.accepted).toLocaleString()}` })));
  item.append(make("div", { className: `state ${job.state}`, text: stands(job) }));
  if (job.state === "running") {
    item.append(make("progress", { max: job.total || 1, value: job.done, "aria-label": "How far it is" }));
  }
  const buttons = make("div", { className: "row" });
  if (job.state === "done") buttons.append(make("a", { className: "button main look", href: `/scan#${job.id}`, text: "Look at it" }));
  if (!over(job)) buttons.append(make("button", { type: "button", className: "cancel", text: "Cancel", onclick: () => cancel(job) }));
  else buttons.append(make("button", { type: "button", className: "delete", text: "Delete", onclick: () => remove(job) }));
  item.append(buttons);
  return item;
}

/** Only what has changed is drawn anew, so that focus and clicks are not lost. */
function show(jobs) {
  const names = new Map(kept().map((one) => [one.id, one.name]));
  byId("none").hidden = jobs.length > 0;
  const list = byId("scans");
  for (const item of [...list.children]) if (!jobs.some((job) => item.id === `scan-${job.id}`)) item.remove();
  jobs.forEach((job, at) => {
    const drawn = byId(`scan-${job.id}`);
    if (drawn && drawn.dataset.state === job.state) {
      drawn.querySelector(".state").textContent = stands(job);
      const bar = drawn.querySelector("progress");
      if (bar) Object.assign(bar, { max: job.total || 1, value: job.done });
    } else if (drawn) {
      drawn.replaceWith(line(job, names.get(job.id) || job.name));
    } else {
      list.insertBefore(line(job, names.get(job.id) || job.name), list.children[at] || null);
    }
  });
}

async function look() {
  const ids = kept().map((one) => one.id);
  const jobs = ids.length ? await ask(`/api/jobs?${ids.map((id) => `id=${encodeURIComponent(id)}`).join("&")}`) : [];
  for (const id of ids) if (!jobs.some((job) => job.id === id)) forget(id);
  listed = jobs;
  show(jobs);
}

async function cancel(job) {
  await tried(() => ask(`/api/jobs/${job.id}/cancel`, { method: "POST" }));
}

async function remove(job) {
  if (job.state === "done" && !window.confirm("Delete this scan and all its results?")) return;
  await tried(() => ask(`/api/jobs/${job.id}`, { method: "DELETE" }));
}

async function tried(action) {
  try {
    await action();
    await keepLooking();
  } catch (problem) {
    trouble(problem.message);
  }
}

async function keepLooking() {
  let wait = RESTING;
  try {
    if (!status) await begin();
    await look();
    trouble("");
    if (!listed.every(over)) wait = EVERY;
  } catch (problem) {
    trouble(problem.message);
    wait = 2000;
  }
  window.clearTimeout(timer); // there is one loop, whoever woke it
  timer = window.setTimeout(keepLooking, document.hidden ? RESTING : wait);
}

// ---- the start ------------------------------------------------------------------------------------------------------

async function begin() {
  const said = await ask("/api/status");
  byId("model").textContent = `AnoFPDM, model ${said.model}`;
  byId("needs").textContent = `The model needs ${said.modalities.map((one) => one.toUpperCase()).join(", ")} as NIfTI, on one grid; at most ${size(said.upload_bytes)} together.`;
  byId("slots").replaceChildren(...said.modalities.map(slot));
  byId("dicom-part").hidden = !said.dicom;
  status = said;
  for (const field of fields()) byId(`file-${field}`).addEventListener("change", () => mark(field));
  document.body.dataset.ready = "yes";
}

function listen() {
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
    if (status) dropped([...event.dataTransfer.files]);
  });
  byId("form").addEventListener("submit", send);
  byId("stop").addEventListener("click", () => upload?.abort());
}

listen();
keepLooking();
