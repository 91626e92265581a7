/** The volume viewer: niivue with the scan below, the map and the mask above it. */
import { byId, make } from "./common.js";

const VIEWS = { all: "Three planes and 3D", planes: "Three planes", axial: "Axial", coronal: "Coronal", sagittal: "Sagittal", solid: "3D" };
const MASK_COLOURS = { R: [0, 63], G: [0, 224], B: [0, 255], A: [0, 255], I: [0, 255] };
const FAINT = 0.25; // of the map's highest value: below, it is clear

function script(url) {
  return new Promise((resolve, reject) => {
    const tag = make("script", { src: url });
    tag.addEventListener("load", resolve);
    tag.addEventListener("error", () => reject(new Error("its script did not load.")));
    document.head.append(tag);
  });
}

export const peakOf = (one) => [one.peak_x_mm, one.peak_y_mm, one.peak_z_mm];

async function bytesOf(file) {
  const answer = await fetch(file.url);
  if (!answer.ok) throw new Error(`${file.name} did not load.`);
  return answer.arrayBuffer();
}

export async function openVolumes(url, result) {
  if (!document.createElement("canvas").getContext("webgl2")) throw new Error("this browser has no WebGL2.");
  await script(url);
  const viewer = new Volumes(window.niivue, result);
  await viewer.open();
  return viewer;
}

class Volumes {
  constructor(library, result) {
    this.library = library;
    this.bytes = new Map(); // by role: fetched once
    this.files = new Map([...result.scans, ...result.files].map((file) => [file.role, file]));
    this.first = result.lesions.length ? peakOf(result.lesions[0]) : null; // where to look first
    this.scans = result.scans.map((file) => file.role);
    this.nv = new library.Niivue({
      isRadiologicalConvention: true, dragAndDropEnabled: false, loadingText: "", logLevel: "error", show3Dcrosshair: true,
      backColor: [0, 0, 0, 1], fontColor: [0.84, 0.86, 0.88, 1], crosshairColor: [0.72, 0.74, 0.74, 1], crosshairWidth: 0.4,
    });
  }

  async open() {
    await this.nv.attachTo("canvas");
    this.nv.addColormap("lesion", MASK_COLOURS);
    this.nv.onLocationChange = () => this.tell();
    this.offer();
    await this.load(this.scans[0]);
    this.view("all");
    if (this.first) this.goTo(this.first);
  }

  async image(role, options) {
    const file = this.files.get(role);
    if (!this.bytes.has(role)) this.bytes.set(role, await bytesOf(file));
    return this.library.NVImage.loadFromUrl({ url: this.bytes.get(role), name: file.name, ...options });
  }

  /** The scan, then what lies over it. Without the scan, the map is what there is to see. */
  async load(scan) {
    byId("loading").hidden = false;
    const below = await this.image(scan || "map", { colormap: scan ? "gray" : "inferno" });
    const above = [];
    if (scan) above.push(await this.image("map", { colormap: "inferno" }));
    above.push(await this.image("mask", { colormap: "lesion", cal_min: 0.5, cal_max: 1 }));
    if (scan && above[0].global_max > 0) Object.assign(above[0], { cal_min: FAINT * above[0].global_max, cal_max: above[0].global_max });
    const last = above.pop();
    this.nv.volumes = [below, ...above];
    this.nv.addVolume(last); // which draws them all; once is enough
    this.over = scan ? { map: 1, mask: 2 } : { mask: 1 };
    const slices = below.dimsRAS[3];
    Object.assign(byId("slice"), { max: slices - 1 });
    this.mix();
    byId("loading").hidden = true;
    this.tell();
  }

  // ---- controls -----------------------------------------------------------------------------------------------------

  offer() {
    byId("views").append(...Object.entries(VIEWS).map(([name, said]) => {
      const input = make("input", { type: "radio", name: "view", value: name, checked: name === "all" });
      input.addEventListener("change", () => this.view(name));
      return make("label", {}, input, said);
    }));
    byId("modality").append(...this.scans.map((role) => make("option", { value: role, text: role.replace("scan-", "").toUpperCase() })));
    byId("modality-part").hidden = this.scans.length < 2;
    byId("modality").addEventListener("change", (event) => this.change(event.target.value));
    for (const name of ["map", "mask"]) {
      byId(name).addEventListener("input", () => this.mix());
      byId(`${name}-on`).addEventListener("change", () => this.mix());
    }
    byId("slice").addEventListener("input", (event) => this.slice(Number(event.target.value)));
  }

  async change(scan) {
    const place = [...this.nv.scene.crosshairPos];
    await this.load(scan);
    this.move(place);
  }

  view(name) {
    const { nv } = this, { SHOW_RENDER: render, MULTIPLANAR_TYPE: layout } = this.library;
    const types = { axial: nv.sliceTypeAxial, coronal: nv.sliceTypeCoronal, sagittal: nv.sliceTypeSagittal, solid: nv.sliceTypeRender };
    nv.opts.multiplanarShowRender = name === "all" ? render.ALWAYS : render.NEVER;
    nv.opts.multiplanarLayout = name === "all" ? layout.GRID : layout.AUTO;
    nv.setSliceType(types[name] ?? nv.sliceTypeMultiplanar);
    document.body.dataset.view = name;
  }

  mix() {
    for (const name of ["map", "mask"]) {
      const share = byId(`${name}-on`).checked ? byId(name).value / 100 : 0;
      byId(`${name}-said`).textContent = `${Math.round(100 * share)}%`;
      if (this.over?.[name]) this.nv.volumes[this.over[name]].opacity = share;
    }
    this.nv.updateGLVolume();
  }

  slice(number) {
    const place = [...this.nv.scene.crosshairPos];
    place[2] = (number + 0.5) / (Number(byId("slice").max) + 1);
    this.move(place);
  }

  move(place) {
    this.nv.scene.crosshairPos = place;
    this.nv.drawScene();
    this.tell();
  }

  goTo(millimetres) {
    this.move(this.nv.mm2frac([...millimetres, 1]));
  }

  // ---- where it is --------------------------------------------------------------------------------------------------

  tell() {
    if (!this.nv.volumes.length) return;
    const place = this.nv.scene.crosshairPos, slices = Number(byId("slice").max) + 1;
    const number = Math.min(slices - 1, Math.max(0, Math.floor(place[2] * slices)));
    byId("slice").value = number;
    byId("slice-said").textContent = String(number);
    const [x, y, z] = this.nv.frac2mm(place);
    const said = [[x, "RL"], [y, "AP"], [z, "SI"]].map(([at, sides]) => `${Math.abs(at).toFixed(0)} mm ${sides[at < 0 ? 1 : 0]}`);
    byId("where").textContent = `At ${said.join(", ")}; slice ${number}, counted from the inferior end`;
  }
}
