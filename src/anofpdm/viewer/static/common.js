/** What all pages use: answers of the server in words, elements, numbers. */

export const byId = (id) => document.getElementById(id);

export class Refused extends Error {
  constructor(status, said) {
    super(said?.error || "The server gave an answer that this page does not understand.");
    this.status = status;
    this.field = said?.field || null;
  }
}

const GONE = "The server does not answer. Is it still running? This page tries again by itself.";

/** An answer of the API as JSON, or an error that says why not. */
export async function ask(url, options = {}) {
  let answer;
  try {
    answer = await fetch(url, options);
  } catch {
    throw new Refused(0, { error: GONE });
  }
  if (answer.status === 204) return null;
  let said = null;
  try {
    said = await answer.json();
  } catch {
    // no JSON: told below
  }
  if (!answer.ok || said === null) throw new Refused(answer.status, said);
  return said;
}

/** An element; text is text, whatever is in it. */
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

export function say(id, text) {
  byId(id).textContent = text || "";
  byId(id).hidden = !text;
}

export function trouble(text) {
  byId("trouble-said").textContent = text || "";
  byId("trouble").hidden = !text;
}

const known = (value) => typeof value === "number" && Number.isFinite(value);

export function millilitres(value) {
  if (!known(value)) return "-";
  return `${value >= 1 ? value.toFixed(1) : Number(value.toPrecision(2))} ml`;
}

export const whole = (value) => (known(value) ? String(value) : "-");

export function size(bytes) {
  return bytes < 1 << 20 ? `${Math.ceil(bytes / 1024)} kB` : `${(bytes / (1 << 20)).toFixed(bytes < 10 << 20 ? 1 : 0)} MB`;
}

/** Names of files by scan: kept here and nowhere else. */
const KEPT = "anofpdm-scans";

export function kept() {
  try {
    const scans = JSON.parse(localStorage.getItem(KEPT) || "[]");
    return Array.isArray(scans) ? scans.filter((one) => typeof one.id === "string" && typeof one.name === "string") : [];
  } catch {
    return [];
  }
}

function keep(scans) {
  try {
    localStorage.setItem(KEPT, JSON.stringify(scans.slice(0, 200)));
  } catch {
    // a browser that keeps nothing: the scans are listed until the page is left
  }
}

export const remember = (id, name) => keep([{ id, name }, ...kept()]);
export const forget = (id) => keep(kept().filter((one) => one.id !== id));
export const nameOf = (id) => kept().find((one) => one.id === id)?.name || null;
