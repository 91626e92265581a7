
"use strict";
/** Small line charts in SVG, and numbers as they are written beside them. */
const charts = (() => {
  // ---- numbers ----------------------------------------------------------------------------------------------------

  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
  const shown = (value, digits = 3) => (isNumber(value) ? String(Number(value.toPrecision(digits))) : "-");

  function rangeOf(values, ...more) {
    const known = [...values, ...more].filter(isNumber);
    if (!known.length) return [0, 1];
    const low = Math.min(...known), high = Math.max(...known);
    const room = high > low ? 0 : Math.abs(high) / 2 || 0.5;
    return [low - room, high + room];
  }

  /** The ends of an axis that counts slices or levels; alone, a place has room on both sides. */
  const endsOf = (places) => (places.length > 1 ? rangeOf(places) : [places[0] - 1, places[0] + 1]);

  /** Round numbers between two ends, about so many, and how many decimals tell them apart. */
  function ticks(low, high, wanted) {
    const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((one) => one * power >= rough * 0.999);
    const decimals = Math.min(12, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
    const found = [];
    for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at += 1) found.push(at * step);
    return found.map((at) => [at, small(at, decimals)]);
  }

  const small = (at, decimals) => (decimals > 5 && Math.abs(at) < 1e-3 ? shown(at, 2) : (at + 0).toFixed(decimals));

  // ---- charts -----------------------------------------------------------------------------------------------------

  function element(parent, name, attributes, text) {
    const made = document.createElementNS(parent.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return parent.appendChild(made);
  }

  const WIDTH = 380, HEIGHT = 220, LEFT = 52, RIGHT = 10, TOP = 22, BOTTOM = 38;

  /** Axes, and the function that places a point on them. */
  function axes(svg, [lowX, highX], [lowY, highY], across) {
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    const x = (at) => LEFT + ((WIDTH - LEFT - RIGHT) * (at - lowX)) / (highX - lowX);
    const y = (at) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * (at - lowY)) / (highY - lowY);
    for (const [at, said] of ticks(lowY, highY, 4)) {
      element(svg, "line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(at), y2: y(at), class: "grid" });
      element(svg, "text", { x: LEFT - 5, y: y(at) + 4, "text-anchor": "end" }, said);
    }
    for (const [at, said] of ticks(lowX, highX, 6).filter(([one]) => Number.isInteger(Number(one.toFixed(9))))) {
      element(svg, "text", { x: x(at), y: HEIGHT - BOTTOM + 15, "text-anchor": "middle" }, said);
    }
    element(svg, "text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, across);
    return { x, y };
  }

  function line(svg, place, xs, ys, kind) {
    const points = xs.map((at, number) => [at, ys[number]]).filter(([, at]) => isNumber(at));
    const path = points.map(([at, value]) => `${place.x(at).toFixed(1)},${place.y(value).toFixed(1)}`);
    if (path.length === 1) element(svg, "circle", { cx: place.x(points[0][0]), cy: place.y(points[0][1]), r: 3, class: "dot" });
    element(svg, "polyline", { points: path.join(" "), class: `line ${kind}` });
  }

  function upright(svg, place, at, said) {
    if (!isNumber(at)) return;
    element(svg, "line", { x1: place.x(at), x2: place.x(at), y1: TOP - 4, y2: HEIGHT - BOTTOM, class: "mark" });
    const middle = Math.min(Math.max(place.x(at), LEFT + 30), WIDTH - 40);
    element(svg, "text", { x: middle, y: TOP - 8, "text-anchor": "middle", class: "strong" }, said);
  }

  return { isNumber, shown, rangeOf, endsOf, element, axes, line, upright, WIDTH, LEFT, RIGHT };
})();
