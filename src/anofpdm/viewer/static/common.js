/** Shared by all pages: requests, elements, number formatting, scans remembered by the browser. */

export const byId = (id) => document.getElementById(id);

export class RequestError extends Error {
  constructor(status, payload) {
    super(payload?.error || "The server sent an unexpected response.");
    this.status = status;
    this.field = payload?.field || null;
  }
}

const NO_RESPONSE = "The server does not respond. Check that it is running; this page retries automatically.";

/** The JSON payload of a response; throws a RequestError otherwise. */
export async function request(url, options = {}) {
  let response;
  try {
    response = await fetch(url, options);
  } catch {
    throw new RequestError(0, { error: NO_RESPONSE });
  }
  if (response.status === 204) return null;
  let payload = null;
  try {
    payload = await response.json();
  } catch {
    // not JSON: handled below
  }
  if (!response.ok || payload === null) throw new RequestError(response.status, payload);
  return payload;
}

/** Creates an element; text is never parsed as HTML. */
export function make(kind, properties = {}, ...children) {
  const element = document.createElement(kind);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "text") element.textContent = value;
    else if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export function setMessage(id, text) {
  byId(id).textContent = text || "";
  byId(id).hidden = !text;
}

export function showTrouble(text) {
  byId("trouble-text").textContent = text || "";
  byId("trouble").hidden = !text;
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export function formatMillilitres(value) {
  if (!isNumber(value)) return "-";
  return `${value >= 1 ? value.toFixed(1) : Number(value.toPrecision(2))} ml`;
}

export const formatCount = (value) => (isNumber(value) ? String(value) : "-");

export function formatBytes(bytes) {
  return bytes < 1 << 20 ? `${Math.ceil(bytes / 1024)} kB` : `${(bytes / (1 << 20)).toFixed(bytes < 10 << 20 ? 1 : 0)} MB`;
}

/** Ids and file names of the user's scans. File names are stored only in the browser. */
const STORAGE_KEY = "anofpdm-scans";

export function rememberedScans() {
  try {
    const scans = JSON.parse(localStorage.getItem(STORAGE_KEY) || "[]");
    return Array.isArray(scans) ? scans.filter((one) => typeof one.id === "string" && typeof one.name === "string") : [];
  } catch {
    return [];
  }
}

function store(scans) {
  try {
    localStorage.setItem(STORAGE_KEY, JSON.stringify(scans.slice(0, 200)));
  } catch {
    // storage is disabled: scans are listed until the page is closed
  }
}

export const remember = (id, name) => store([{ id, name }, ...rememberedScans()]);
export const forget = (id) => store(rememberedScans().filter((one) => one.id !== id));
export const nameOf = (id) => rememberedScans().find((one) => one.id === id)?.name || null;
