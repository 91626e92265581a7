
(() => {
  const { isNumber, formatNumber, rangeOf, axisEnds, element, axes, line, verticalMark, WIDTH, LEFT, RIGHT } = charts;
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const slices = data.slices, last = slices.length - 1;
  const sheets = new Map([...document.querySelectorAll("img[data-sheet]")].map((one) => [one.dataset.sheet, one]));
  const OUTLINE = "#3fe0ff", HALO = "rgba(0, 0, 0, 0.7)";
  const detects = data.score.detector !== "none";
  const isUnhealthy = (one) => detects && one.detected;
  let chosen = data.start;

  // ---- slices -----------------------------------------------------------------------------------------------------

  const tileCorner = (row) => [(row % data.columns) * data.size, Math.floor(row / data.columns) * data.size];

  function draw(context, sheet, row) {
    const side = context.canvas.width;
    context.drawImage(sheets.get(sheet), ...tileCorner(row), data.size, data.size, 0, 0, side, side);
  }

  const scratch = Object.assign(document.createElement("canvas"), { width: data.size, height: data.size });
  const scratchContext = scratch.getContext("2d", { willReadFrequently: true });
  const outlines = new Map();
  // Marching squares: sides (top, right, bottom, left) of a square of four pixels that the outline connects.
  const JOINS = ["", "30", "01", "31", "12", "30 12", "02", "32", "23", "02", "01 23", "12", "31", "01", "30", ""];

  /** Outline of the mask, half-way between pixels inside and outside it. */
  function maskOutline(row) {
    if (outlines.has(row)) return outlines.get(row);
    draw(scratchContext, "mask", row);
    const n = data.size, bits = scratchContext.getImageData(0, 0, n, n).data, path = new Path2D();
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

  function drawOutline(context, row, thickness = 1) {
    const scale = context.canvas.width / data.size;
    context.save();
    context.scale(scale, scale);
    context.lineCap = "round";
    for (const [colour, width] of [[HALO, 1.3 * thickness], [OUTLINE, 0.65 * thickness]]) {
      context.strokeStyle = colour;
      context.lineWidth = width;
      context.stroke(maskOutline(row));
    }
    context.restore();
  }

  /** The patient's right is on the left. */
  function drawSides(context) {
    const { width, height } = context.canvas;
    Object.assign(context, { font: "600 26px system-ui, sans-serif", textBaseline: "middle", lineWidth: 4 });
    for (const [letter, x] of [["R", 8], ["L", width - 8 - context.measureText("L").width]]) {
      Object.assign(context, { fillStyle: "#d7dce0", strokeStyle: HALO });
      context.strokeText(letter, x, height / 2);
      context.fillText(letter, x, height / 2);
    }
  }

  /** The map as an overlay: dark pixels are transparent. */
  function mapOverlay(row) {
    draw(scratchContext, "map", row);
    const image = scratchContext.getImageData(0, 0, data.size, data.size), bytes = image.data;
    for (let at = 0; at < bytes.length; at += 4) bytes[at + 3] = Math.max(bytes[at], bytes[at + 1], bytes[at + 2]);
    scratchContext.putImageData(image, 0, 0);
    return scratch;
  }

  function drawPanel(canvas) {
    const context = canvas.getContext("2d"), sheet = canvas.dataset.sheet;
    const opacity = byId("opacity").value / 100;
    context.imageSmoothingQuality = "high";
    draw(context, sheet, chosen);
    if (sheet !== "map" && opacity > 0) {
      context.globalAlpha = opacity;
      context.drawImage(mapOverlay(chosen), 0, 0, canvas.width, canvas.height);
      context.globalAlpha = 1;
    }
    if (byId("outline").checked) drawOutline(context, chosen);
    canvas.setAttribute("aria-label", `${canvas.dataset.name}, ${describeSlice(slices[chosen])}`);
  }

  const panels = [...document.querySelectorAll("canvas.panel")];

  // ---- curves ------------------------------------------------------------------------------------------------------

  function drawCurves() {
    const one = slices[chosen], levels = data.levels, range = axisEnds(levels);
    const errors = byId("errors"), divergence = byId("divergence");
    for (const chart of [errors, divergence]) chart.parentElement.hidden = !one.divergence;
    if (!one.divergence) return; // a student's slice without explanation
    const errorRange = rangeOf([...one.mse_guided, ...one.mse_unguided], 0);
    const scale = axes(errors, range, errorRange, "noise level t");
    line(errors, scale, levels, one.mse_unguided, "unguided");
    line(errors, scale, levels, one.mse_guided, "guided");
    errors.setAttribute("aria-label", `Reconstruction errors of slice ${one.slice} from noise level ${range[0]} to ${range[1]}`);
    const divergenceScale = axes(divergence, range, rangeOf(one.divergence, 0), "noise level t");
    line(divergence, divergenceScale, levels, one.divergence, "guided");
    verticalMark(divergence, divergenceScale, one.end_step, `t_e = ${formatNumber(one.end_step, 4)}`);
    divergence.setAttribute("aria-label", `Divergence of slice ${one.slice}, largest at ${formatNumber(one.end_step, 4)}`);
  }

  function drawScores() {
    const svg = byId("scores"), xs = slices.map((one) => one.slice), cut = data.score.threshold, now = slices[chosen];
    const scale = axes(svg, axisEnds(xs), rangeOf(slices.map((one) => one.score), cut), "slice");
    line(svg, scale, xs, slices.map((one) => one.score), "score");
    if (isNumber(cut)) {
      element(svg, "line", { x1: LEFT, x2: WIDTH - RIGHT, y1: scale.y(cut), y2: scale.y(cut), class: "line threshold" });
    }
    for (const one of slices.filter(({ score }) => isNumber(score))) {
      const className = `${isUnhealthy(one) ? "unhealthy" : "healthy"}${one === now ? " chosen" : ""}`;
      element(svg, "circle", { cx: scale.x(one.slice), cy: scale.y(one.score), r: one === now ? 5 : 2.2, class: className });
    }
    svg.setAttribute("aria-label", `${data.score.name}: ${formatScore(now.score)} in slice ${now.slice}, threshold ${formatScore(cut)}`);
  }

  function drawStrip() {
    const svg = byId("strip"), width = 1000, height = 72, floor = 62, step = width / slices.length;
    const maximum = Math.max(...slices.map((one) => one.area_mm2 || 0)) || 1;
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("preserveAspectRatio", "none");
    element(svg, "line", { x1: 0, x2: width, y1: floor, y2: floor, class: "grid" });
    slices.forEach((one, row) => {
      const barHeight = ((floor - 4) * (one.area_mm2 || 0)) / maximum, bar = { x: row * step, width: step - Math.min(step / 10, 2) };
      if (barHeight) element(svg, "rect", { ...bar, y: floor - barHeight, height: barHeight, class: "area" });
      if (isUnhealthy(one)) element(svg, "rect", { ...bar, y: floor + 3, height: 6, class: "unhealthy" });
    });
    const at = (chosen + 0.5) * step;
    element(svg, "line", { x1: at, x2: at, y1: 0, y2: height, class: "mark", "vector-effect": "non-scaling-stroke" });
  }

  // ---- the chosen slice -------------------------------------------------------------------------------------------

  const formatScore = (value) => formatNumber(value, data.score.digits);
  const formatArea = (one) => (isNumber(one.area_mm2) ? `${one.area_mm2.toFixed(0)} mm\u00b2` : "-");

  function formatThreshold(one) {
    const [low, high] = [formatNumber(one.threshold), formatNumber(one.highest_threshold)];
    return low === high || !isNumber(one.threshold) ? low : `${low} to ${high}`;
  }

  function describeSlice(one) {
    const label = detects ? `, ${one.detected ? "unhealthy" : "healthy"}` : "";
    return `slice ${one.slice}${label}, ${one.area_mm2 ? formatArea(one) : "empty mask"}`;
  }

  function sliceNumbers(one) {
    const pairs = [[data.score.short, formatScore(one.score)], ["Score threshold", formatScore(data.score.threshold)]];
    if (one.divergence) pairs.push(["End step t_e", formatNumber(one.end_step, 4)], ["M at t_e", formatNumber(one.end_divergence)]);
    if (isNumber(one.quantile)) pairs.push(["Quantile", formatNumber(one.quantile)]);
    return [...pairs, ["Map threshold", formatThreshold(one)], ["Mask area", formatArea(one)]];
  }

  function showNumbers(one) {
    byId("numbers").replaceChildren(...sliceNumbers(one).map(([name, value]) => {
      const pair = document.createElement("div");
      for (const [kind, text] of [["dt", name], ["dd", value]]) {
        pair.appendChild(Object.assign(document.createElement(kind), { textContent: text }));
      }
      return pair;
    }));
  }

  function markThreshold(one) {
    const mark = byId("threshold-mark"), known = isNumber(one.threshold) && data.map_maximum > 0;
    mark.hidden = !known || one.threshold > data.map_maximum;
    if (known) mark.style.left = `${(100 * one.threshold) / data.map_maximum}%`;
  }

  function choose(row) {
    chosen = Math.min(Math.max(row, 0), last);
    const one = slices[chosen], description = describeSlice(one);
    byId("slider").value = chosen;
    byId("slider").setAttribute("aria-valuetext", description);
    byId("slice-description").textContent = description[0].toUpperCase() + description.slice(1);
    byId("previous").disabled = chosen === 0;
    byId("next").disabled = chosen === last;
    byId("which").textContent = one.slice;
    byId("decision-text").textContent = one.decision;
    panels.forEach(drawPanel);
    drawStrip();
    if (data.levels) drawCurves();
    drawScores();
    showNumbers(one);
    markThreshold(one);
    for (const button of byId("overview").querySelectorAll("button")) {
      button.setAttribute("aria-current", String(Number(button.dataset.row) === chosen));
    }
  }

  function jump(row) {
    choose(row);
    byId("browser").scrollIntoView({ block: "start" });
    byId("slider").focus({ preventScroll: true });
  }

  function drawOverview() {
    for (const row of data.overview) {
      const one = slices[row], item = document.createElement("li"), button = document.createElement("button");
      const canvas = Object.assign(document.createElement("canvas"), { width: 256, height: 256 });
      const context = canvas.getContext("2d");
      draw(context, "0", row);
      drawOutline(context, row, 2);
      if (data.oriented) drawSides(context);
      Object.assign(button, { type: "button", className: isUnhealthy(one) ? "unhealthy" : "" });
      button.dataset.row = row;
      button.setAttribute("aria-label", `Show ${describeSlice(one)}`);
      button.append(canvas, Object.assign(document.createElement("span"), { textContent: one.slice }));
      button.addEventListener("click", () => jump(row));
      byId("overview").appendChild(item).append(button);
    }
  }

  // ---- keys, slider, clicks ---------------------------------------------------------------------------------------

  const KEYS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -1e6, End: 1e6 };

  /** Left and right work everywhere; keys that scroll the page, only on the images and the slider. */
  function onKey(event) {
    if (!(event.key in KEYS) || event.ctrlKey || event.metaKey || event.altKey) return;
    const onSlices = event.target.id === "slider" || event.target.closest("#panels") !== null;
    const sideways = event.key === "ArrowLeft" || event.key === "ArrowRight";
    if (!onSlices && (!sideways || event.target.matches("input"))) return;
    event.preventDefault();
    choose(chosen + KEYS[event.key]);
  }

  /** Choose a slice by clicking or dragging. */
  function chooseByPointer(svg, rowAt) {
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
    const [low, high] = axisEnds(slices.map((one) => one.slice));
    const wanted = low + ((share * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT)) * (high - low);
    const distances = slices.map((one) => Math.abs(one.slice - wanted));
    return distances.indexOf(Math.min(...distances));
  }

  function showOpacity() {
    byId("opacity-value").textContent = `${byId("opacity").value}%`;
  }

  function addListeners() {
    document.addEventListener("keydown", onKey);
    byId("slider").addEventListener("input", (event) => choose(Number(event.target.value)));
    byId("previous").addEventListener("click", () => choose(chosen - 1));
    byId("next").addEventListener("click", () => choose(chosen + 1));
    byId("outline").addEventListener("change", () => panels.forEach(drawPanel));
    byId("opacity").addEventListener("input", () => {
      showOpacity();
      panels.forEach(drawPanel);
    });
    chooseByPointer(byId("strip"), (share) => Math.floor(share * slices.length));
    chooseByPointer(byId("scores"), rowOfSlice);
    for (const button of document.querySelectorAll(".jump")) {
      button.addEventListener("click", () => jump(Number(button.dataset.row)));
    }
  }

  async function start() {
    await Promise.all([...sheets.values()].map((sheet) => sheet.decode()));
    byId("slider").max = last;
    byId("map-maximum").textContent = formatNumber(data.map_maximum, 2);
    byId("panels").classList.toggle("sided", data.oriented);
    byId("unhealthy-key").hidden = !detects;
    byId("outline").checked = true; // browsers restore form values on reload
    byId("opacity").value = 0;
    showOpacity();
    drawOverview();
    addListeners();
    choose(data.start);
    document.body.dataset.ready = "yes";
  }

  start();
})();
