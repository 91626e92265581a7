
"use strict";
/** Line charts in SVG, and number formatting. */
const charts = (() => {
  // ---- numbers ----------------------------------------------------------------------------------------------------

  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
  const formatNumber = (value, digits = 3) => (isNumber(value) ? String(Number(value.toPrecision(digits))) : "-");

  function rangeOf(values, ...more) {
    const known = [...values, ...more].filter(isNumber);
    if (!known.length) return [0, 1];
    const low = Math.min(...known), high = Math.max(...known);
    const margin = high > low ? 0 : Math.abs(high) / 2 || 0.5;
    return [low - margin, high + margin];
  }

  /** Ends of an axis of slices or noise levels; a single value gets a margin. */
  const axisEnds = (values) => (values.length > 1 ? rangeOf(values) : [values[0] - 1, values[0] + 1]);

  /** About `wanted` round numbers between two ends, each with its label. */
  function ticks(low, high, wanted) {
    const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((one) => one * power >= rough * 0.999);
    const decimals = Math.min(12, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
    const values = [];
    for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at += 1) values.push(at * step);
    return values.map((at) => [at, tickLabel(at, decimals)]);
  }

  const tickLabel = (at, decimals) => (decimals > 5 && Math.abs(at) < 1e-3 ? formatNumber(at, 2) : (at + 0).toFixed(decimals));

  // ---- charts -----------------------------------------------------------------------------------------------------

  function element(parent, name, attributes, text) {
    const made = document.createElementNS(parent.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return parent.appendChild(made);
  }

  const WIDTH = 380, HEIGHT = 220, LEFT = 52, RIGHT = 10, TOP = 22, BOTTOM = 38;

  /** Draws the axes; returns the functions from values to positions. */
  function axes(svg, [lowX, highX], [lowY, highY], xLabel) {
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    const x = (at) => LEFT + ((WIDTH - LEFT - RIGHT) * (at - lowX)) / (highX - lowX);
    const y = (at) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * (at - lowY)) / (highY - lowY);
    for (const [at, label] of ticks(lowY, highY, 4)) {
      element(svg, "line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(at), y2: y(at), class: "grid" });
      element(svg, "text", { x: LEFT - 5, y: y(at) + 4, "text-anchor": "end" }, label);
    }
    for (const [at, label] of ticks(lowX, highX, 6).filter(([one]) => Number.isInteger(Number(one.toFixed(9))))) {
      element(svg, "text", { x: x(at), y: HEIGHT - BOTTOM + 15, "text-anchor": "middle" }, label);
    }
    element(svg, "text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, xLabel);
    return { x, y };
  }

  function line(svg, scale, xs, ys, className) {
    const points = xs.map((at, number) => [at, ys[number]]).filter(([, at]) => isNumber(at));
    const path = points.map(([at, value]) => `${scale.x(at).toFixed(1)},${scale.y(value).toFixed(1)}`);
    if (path.length === 1) element(svg, "circle", { cx: scale.x(points[0][0]), cy: scale.y(points[0][1]), r: 3, class: "dot" });
    element(svg, "polyline", { points: path.join(" "), class: `line ${className}` });
  }

  function verticalMark(svg, scale, at, label) {
    if (!isNumber(at)) return;
    element(svg, "line", { x1: scale.x(at), x2: scale.x(at), y1: TOP - 4, y2: HEIGHT - BOTTOM, class: "mark" });
    const middle = Math.min(Math.max(scale.x(at), LEFT + 30), WIDTH - 40);
    element(svg, "text", { x: middle, y: TOP - 8, "text-anchor": "middle", class: "strong" }, label);
  }

  return { isNumber, formatNumber, rangeOf, axisEnds, element, axes, line, verticalMark, WIDTH, LEFT, RIGHT };
})();
