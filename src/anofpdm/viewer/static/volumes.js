/** The volume viewer: niivue with the scan, and the anomaly map and the mask as overlays. */
import { byId, make } from "./common.js";

const VIEWS = { all: "Three planes and 3D", planes: "Three planes", axial: "Axial", coronal: "Coronal", sagittal: "Sagittal", solid: "3D" };
const MASK_COLOURS = { R: [0, 63], G: [0, 224], B: [0, 255], A: [0, 255], I: [0, 255] };
const TRANSPARENT_BELOW = 0.25; // share of the map's maximum

function loadScript(url) {
  return new Promise((resolve, reject) => {
    const tag = make("script", { src: url });
    tag.addEventListener("load", resolve);
    tag.addEventListener("error", () => reject(new Error("its script could not be loaded.")));
    document.head.append(tag);
  });
}

export const peakPosition = (one) => [one.peak_x_mm, one.peak_y_mm, one.peak_z_mm];

async function fetchBytes(file) {
  const response = await fetch(file.url);
  if (!response.ok) throw new Error(`${file.name} could not be loaded.`);
  return response.arrayBuffer();
}

export async function openVolumes(url, result) {
  if (!document.createElement("canvas").getContext("webgl2")) throw new Error("this browser does not support WebGL2.");
  await loadScript(url);
  const viewer = new Volumes(window.niivue, result);
  await viewer.open();
  return viewer;
}

class Volumes {
  constructor(library, result) {
    this.library = library;
    this.bytes = new Map(); // by role; each file is fetched once
    this.files = new Map([...result.scans, ...result.files].map((file) => [file.role, file]));
    this.first = result.lesions.length ? peakPosition(result.lesions[0]) : null; // initial position
    this.scans = result.scans.map((file) => file.role);
    this.nv = new library.Niivue({
      isRadiologicalConvention: true, dragAndDropEnabled: false, loadingText: "", logLevel: "error", show3Dcrosshair: true,
      backColor: [0, 0, 0, 1], fontColor: [0.84, 0.86, 0.88, 1], crosshairColor: [0.72, 0.74, 0.74, 1], crosshairWidth: 0.4,
    });
  }

  async open() {
    await this.nv.attachTo("canvas");
    this.nv.addColormap("lesion", MASK_COLOURS);
    this.nv.onLocationChange = () => this.showPosition();
    this.addControls();
    await this.load(this.scans[0]);
    this.setView("all");
    if (this.first) this.goTo(this.first);
  }

  async image(role, options) {
    const file = this.files.get(role);
    if (!this.bytes.has(role)) this.bytes.set(role, await fetchBytes(file));
    return this.library.NVImage.loadFromUrl({ url: this.bytes.get(role), name: file.name, ...options });
  }

  /** Load the scan and the overlays. Without a scan, the map is the background. */
  async load(scan) {
    byId("loading").hidden = false;
    const background = await this.image(scan || "map", { colormap: scan ? "gray" : "inferno" });
    const overlays = [];
    if (scan) overlays.push(await this.image("map", { colormap: "inferno" }));
    overlays.push(await this.image("mask", { colormap: "lesion", cal_min: 0.5, cal_max: 1 }));
    if (scan && overlays[0].global_max > 0) Object.assign(overlays[0], { cal_min: TRANSPARENT_BELOW * overlays[0].global_max, cal_max: overlays[0].global_max });
    const last = overlays.pop();
    this.nv.volumes = [background, ...overlays];
    this.nv.addVolume(last); // draws all volumes
    this.overlayIndex = scan ? { map: 1, mask: 2 } : { mask: 1 };
    Object.assign(byId("slice"), { max: background.dimsRAS[3] });
    this.updateOpacity();
    byId("loading").hidden = true;
    this.showPosition();
  }

  // ---- controls -----------------------------------------------------------------------------------------------------

  addControls() {
    byId("views").append(...Object.entries(VIEWS).map(([name, label]) => {
      const input = make("input", { type: "radio", name: "view", value: name, checked: name === "all" });
      input.addEventListener("change", () => this.setView(name));
      return make("label", {}, input, label);
    }));
    byId("modality").append(...this.scans.map((role) => make("option", { value: role, text: role.replace("scan-", "").toUpperCase() })));
    byId("modality-part").hidden = this.scans.length < 2;
    byId("modality").addEventListener("change", (event) => this.changeScan(event.target.value));
    for (const name of ["map", "mask"]) {
      byId(name).addEventListener("input", () => this.updateOpacity());
      byId(`${name}-on`).addEventListener("change", () => this.updateOpacity());
    }
    byId("slice").addEventListener("input", (event) => this.setSlice(Number(event.target.value)));
  }

  async changeScan(scan) {
    const position = [...this.nv.scene.crosshairPos];
    await this.load(scan);
    this.move(position);
  }

  setView(name) {
    const { nv } = this, { SHOW_RENDER: render, MULTIPLANAR_TYPE: layout } = this.library;
    const types = { axial: nv.sliceTypeAxial, coronal: nv.sliceTypeCoronal, sagittal: nv.sliceTypeSagittal, solid: nv.sliceTypeRender };
    nv.opts.multiplanarShowRender = name === "all" ? render.ALWAYS : render.NEVER;
    nv.opts.multiplanarLayout = name === "all" ? layout.GRID : layout.AUTO;
    nv.setSliceType(types[name] ?? nv.sliceTypeMultiplanar);
    document.body.dataset.view = name;
  }

  updateOpacity() {
    for (const name of ["map", "mask"]) {
      const share = byId(`${name}-on`).checked ? byId(name).value / 100 : 0;
      byId(`${name}-value`).textContent = `${Math.round(100 * share)}%`;
      if (this.overlayIndex?.[name]) this.nv.volumes[this.overlayIndex[name]].opacity = share;
    }
    this.nv.updateGLVolume();
  }

  setSlice(number) {
    const position = [...this.nv.scene.crosshairPos];
    position[2] = (number - 0.5) / Number(byId("slice").max);
    this.move(position);
  }

  move(position) {
    this.nv.scene.crosshairPos = position;
    this.nv.drawScene();
    this.showPosition();
  }

  goTo(millimetres) {
    this.move(this.nv.mm2frac([...millimetres, 1]));
  }

  // ---- position -----------------------------------------------------------------------------------------------------

  showPosition() {
    if (!this.nv.volumes.length) return;
    const position = this.nv.scene.crosshairPos, slices = Number(byId("slice").max);
    const number = Math.min(slices, Math.max(1, Math.floor(position[2] * slices) + 1));
    byId("slice").value = number;
    byId("slice-value").textContent = String(number);
    const [x, y, z] = this.nv.frac2mm(position);
    const coordinates = [[x, "RL"], [y, "AP"], [z, "SI"]].map(([at, sides]) => `${Math.abs(at).toFixed(0)} mm ${sides[at < 0 ? 1 : 0]}`);
    byId("where").textContent = `Crosshair at ${coordinates.join(", ")}; axial slice ${number}, counted from 1 at the inferior end`;
  }
}
