
(() => {
  const { isNumber, shown, rangeOf, endsOf, element, axes, line, upright, WIDTH, LEFT, RIGHT } = charts;
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const slices = data.slices, last = slices.length - 1;
  const sheets = new Map([...document.querySelectorAll("img[data-sheet]")].map((one) => [one.dataset.sheet, one]));
  const OUTLINE = "#3fe0ff", HALO = "rgba(0, 0, 0, 0.7)";
  const asked = data.score.detector !== "none"; // whether a detector had its say
  const called = (one) => asked && one.detected;
  let chosen = data.start;

  // ---- slices -----------------------------------------------------------------------------------------------------

  const tile = (row) => [(row % data.columns) * data.size, Math.floor(row / data.columns) * data.size];

  function draw(context, sheet, row) {
    const side = context.canvas.width;
    context.drawImage(sheets.get(sheet), ...tile(row), data.size, data.size, 0, 0, side, side);
  }

  const reader = Object.assign(document.createElement("canvas"), { width: data.size, height: data.size });
  const readerPen = reader.getContext("2d", { willReadFrequently: true });
  const outlines = new Map();
  // Of a square of four pixels, which of its sides (top, right, bottom, left) the outline joins, by which are inside.
  const JOINS = ["", "30", "01", "31", "12", "30 12", "02", "32", "23", "02", "01 23", "12", "31", "01", "30", ""];

  /** The outline runs half-way between pixels inside and outside the mask. */
  function outlineOf(row) {
    if (outlines.has(row)) return outlines.get(row);
    draw(readerPen, "mask", row);
    const n = data.size, bits = readerPen.getImageData(0, 0, n, n).data, path = new Path2D();
    const inside = (x, y) => (x >= 0 && y >= 0 && x < n && y < n && bits[4 * (y * n + x)] > 127 ? 1 : 0);
    for (let y = -1; y < n; y += 1) {
      for (let x = -1; x < n; x += 1) {
        const joins = JOINS[inside(x, y) + 2 * inside(x + 1, y) + 4 * inside(x + 1, y + 1) + 8 * inside(x, y + 1)];
        if (!joins) continue;
        const sides = [[x + 1, y + 0.5], [x + 1.5, y + 1], [x + 1, y + 1.5], [x + 0.5, y + 1]];
        for (const join of joins.split(" ")) {
          path.moveTo(...sides[join[0]]);
          path.lineTo(...sides[join[1]]);
        }
      }
    }
    outlines.set(row, path);
    return path;
  }

  function drawOutline(context, row, thick = 1) {
    const scale = context.canvas.width / data.size;
    context.save();
    context.scale(scale, scale);
    context.lineCap = "round";
    for (const [colour, width] of [[HALO, 1.3 * thick], [OUTLINE, 0.65 * thick]]) {
      context.strokeStyle = colour;
      context.lineWidth = width;
      context.stroke(outlineOf(row));
    }
    context.restore();
  }

  /** The map to lay over a scan: where it is dark it is clear. */
  function veil(row) {
    draw(readerPen, "map", row);
    const image = readerPen.getImageData(0, 0, data.size, data.size), bytes = image.data;
    for (let at = 0; at < bytes.length; at += 4) bytes[at + 3] = Math.max(bytes[at], bytes[at + 1], bytes[at + 2]);
    readerPen.putImageData(image, 0, 0);
    return reader;
  }

  function drawPanel(canvas) {
    const context = canvas.getContext("2d"), sheet = canvas.dataset.sheet;
    const opacity = byId("opacity").value / 100;
    context.imageSmoothingQuality = "high";
    draw(context, sheet, chosen);
    if (sheet !== "map" && opacity > 0) {
      context.globalAlpha = opacity;
      context.drawImage(veil(chosen), 0, 0, canvas.width, canvas.height);
      context.globalAlpha = 1;
    }
    if (byId("outline").checked) drawOutline(context, chosen);
    canvas.setAttribute("aria-label", `${canvas.dataset.name}, ${reading(slices[chosen])}`);
  }

  const panels = [...document.querySelectorAll("canvas.panel")];

  // ---- curves ------------------------------------------------------------------------------------------------------

  function drawCurves() {
    const one = slices[chosen], levels = data.levels, range = endsOf(levels);
    const errors = byId("errors"), divergence = byId("divergence");
    for (const chart of [errors, divergence]) chart.parentElement.hidden = !one.divergence;
    if (!one.divergence) return; // the diffusion model was not asked about this slice
    const errorRange = rangeOf([...one.mse_guided, ...one.mse_unguided], 0);
    const place = axes(errors, range, errorRange, "noise level t");
    line(errors, place, levels, one.mse_unguided, "unguided");
    line(errors, place, levels, one.mse_guided, "guided");
    errors.setAttribute("aria-label", `Errors of slice ${one.slice} from noise level ${range[0]} to ${range[1]}`);
    const other = axes(divergence, range, rangeOf(one.divergence, 0), "noise level t");
    line(divergence, other, levels, one.divergence, "guided");
    upright(divergence, other, one.end_step, `t_e = ${shown(one.end_step, 4)}`);
    divergence.setAttribute("aria-label", `Divergence of slice ${one.slice}, largest at ${shown(one.end_step, 4)}`);
  }

  function drawScores() {
    const svg = byId("scores"), xs = slices.map((one) => one.slice), cut = data.score.cut, now = slices[chosen];
    const place = axes(svg, endsOf(xs), rangeOf(slices.map((one) => one.score), cut), "slice");
    line(svg, place, xs, slices.map((one) => one.score), "score");
    if (isNumber(cut)) {
      element(svg, "line", { x1: LEFT, x2: WIDTH - RIGHT, y1: place.y(cut), y2: place.y(cut), class: "line cut" });
    }
    for (const one of slices.filter(({ score }) => isNumber(score))) {
      const kind = `${called(one) ? "called" : "healthy"}${one === now ? " chosen" : ""}`;
      element(svg, "circle", { cx: place.x(one.slice), cy: place.y(one.score), r: one === now ? 5 : 2.2, class: kind });
    }
    svg.setAttribute("aria-label", `${data.score.name}: ${scored(now.score)} in slice ${now.slice}, cut ${scored(cut)}`);
  }

  function drawStrip() {
    const svg = byId("strip"), width = 1000, height = 72, floor = 62, step = width / slices.length;
    const highest = Math.max(...slices.map((one) => one.area_mm2 || 0)) || 1;
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("preserveAspectRatio", "none");
    element(svg, "line", { x1: 0, x2: width, y1: floor, y2: floor, class: "grid" });
    slices.forEach((one, row) => {
      const tall = ((floor - 4) * (one.area_mm2 || 0)) / highest, bar = { x: row * step, width: step - Math.min(step / 10, 2) };
      if (tall) element(svg, "rect", { ...bar, y: floor - tall, height: tall, class: "area" });
      if (called(one)) element(svg, "rect", { ...bar, y: floor + 3, height: 6, class: "called" });
    });
    const at = (chosen + 0.5) * step;
    element(svg, "line", { x1: at, x2: at, y1: 0, y2: height, class: "mark", "vector-effect": "non-scaling-stroke" });
  }

  // ---- one slice is chosen ----------------------------------------------------------------------------------------

  const scored = (value) => shown(value, data.score.digits);
  const area = (one) => (isNumber(one.area_mm2) ? `${one.area_mm2.toFixed(0)} mm\u00b2` : "-");

  function reading(one) {
    const decided = asked ? `, called ${one.detected ? "unhealthy" : "healthy"}` : "";
    return `slice ${one.slice}${decided}, ${one.area_mm2 ? area(one) : "nothing drawn"}`;
  }

  function numbersOf(one) {
    const named = [[data.score.short, scored(one.score)], ["Cut", scored(data.score.cut)]];
    if (one.divergence) named.push(["End step t_e", shown(one.end_step, 4)], ["M at t_e", shown(one.end_divergence)]);
    return [...named, ["Quantile", shown(one.quantile)], ["Threshold", shown(one.threshold)], ["Area", area(one)]];
  }

  function showNumbers(one) {
    byId("numbers").replaceChildren(...numbersOf(one).map(([name, value]) => {
      const pair = document.createElement("div");
      for (const [kind, text] of [["dt", name], ["dd", value]]) {
        pair.appendChild(Object.assign(document.createElement(kind), { textContent: text }));
      }
      return pair;
    }));
  }

  function markThreshold(one) {
    const mark = byId("threshold-mark"), known = isNumber(one.threshold) && data.highest > 0;
    mark.hidden = !known || one.threshold > data.highest;
    if (known) mark.style.left = `${(100 * one.threshold) / data.highest}%`;
  }

  function choose(row) {
    chosen = Math.min(Math.max(row, 0), last);
    const one = slices[chosen], said = reading(one);
    byId("slider").value = chosen;
    byId("slider").setAttribute("aria-valuetext", said);
    byId("reading").textContent = said[0].toUpperCase() + said.slice(1);
    byId("previous").disabled = chosen === 0;
    byId("next").disabled = chosen === last;
    byId("which").textContent = one.slice;
    byId("said").textContent = one.said;
    panels.forEach(drawPanel);
    drawStrip();
    if (data.levels) drawCurves();
    drawScores();
    showNumbers(one);
    markThreshold(one);
    for (const button of byId("glance").querySelectorAll("button")) {
      button.setAttribute("aria-current", String(Number(button.dataset.row) === chosen));
    }
  }

  function jump(row) {
    choose(row);
    byId("browser").scrollIntoView({ block: "start" });
    byId("slider").focus({ preventScroll: true });
  }

  function showAtAGlance() {
    for (const row of data.glance) {
      const one = slices[row], item = document.createElement("li"), button = document.createElement("button");
      const canvas = Object.assign(document.createElement("canvas"), { width: 256, height: 256 });
      const context = canvas.getContext("2d");
      draw(context, "0", row);
      drawOutline(context, row, 2);
      Object.assign(button, { type: "button", className: called(one) ? "called" : "" });
      button.dataset.row = row;
      button.setAttribute("aria-label", `Show ${reading(one)}`);
      button.append(canvas, Object.assign(document.createElement("span"), { textContent: one.slice }));
      button.addEventListener("click", () => jump(row));
      byId("glance").appendChild(item).append(button);
    }
  }

  // ---- keys, slider, clicks ---------------------------------------------------------------------------------------

  const KEYS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -1e6, End: 1e6 };

  /** Left and right work anywhere; keys that would scroll the page, on the pictures and the slider alone. */
  function onKey(event) {
    if (!(event.key in KEYS) || event.ctrlKey || event.metaKey || event.altKey) return;
    const here = event.target.id === "slider" || event.target.closest("#panels") !== null;
    const sideways = event.key === "ArrowLeft" || event.key === "ArrowRight";
    if (!here && (!sideways || event.target.matches("input"))) return;
    event.preventDefault();
    choose(chosen + KEYS[event.key]);
  }

  /** Choose by pointing: pressed and dragged along, or clicked. */
  function pointed(svg, rowAt) {
    const follow = (event) => {
      const box = svg.getBoundingClientRect();
      choose(rowAt((event.clientX - box.left) / box.width));
    };
    svg.addEventListener("pointerdown", (event) => {
      svg.setPointerCapture(event.pointerId);
      follow(event);
    });
    svg.addEventListener("pointermove", (event) => event.buttons && follow(event));
  }

  function rowOfSlice(share) {
    const [low, high] = endsOf(slices.map((one) => one.slice));
    const wanted = low + ((share * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT)) * (high - low);
    const apart = slices.map((one) => Math.abs(one.slice - wanted));
    return apart.indexOf(Math.min(...apart));
  }

  function sayOpacity() {
    byId("opacity-said").textContent = `${byId("opacity").value}%`;
  }

  function listen() {
    document.addEventListener("keydown", onKey);
    byId("slider").addEventListener("input", (event) => choose(Number(event.target.value)));
    byId("previous").addEventListener("click", () => choose(chosen - 1));
    byId("next").addEventListener("click", () => choose(chosen + 1));
    byId("outline").addEventListener("change", () => panels.forEach(drawPanel));
    byId("opacity").addEventListener("input", () => {
      sayOpacity();
      panels.forEach(drawPanel);
    });
    pointed(byId("strip"), (share) => Math.floor(share * slices.length));
    pointed(byId("scores"), rowOfSlice);
    for (const button of document.querySelectorAll(".jump")) {
      button.addEventListener("click", () => jump(Number(button.dataset.row)));
    }
  }

  async function start() {
    await Promise.all([...sheets.values()].map((sheet) => sheet.decode()));
    byId("slider").max = last;
    byId("highest").textContent = shown(data.highest, 2);
    byId("panels").classList.toggle("sided", data.sides);
    byId("called-key").hidden = !asked;
    byId("outline").checked = true; // a reloaded page remembers otherwise
    byId("opacity").value = 0;
    sayOpacity();
    showAtAGlance();
    listen();
    choose(data.start);
    document.body.dataset.ready = "yes";
  }

  start();
})();
