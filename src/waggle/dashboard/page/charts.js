// Line charts as SVG: axes, lines, bands. No text is ever read as markup.
const NS = "http://www.w3.org/2000/svg";

export function svg(name, attributes = {}, children = []) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function html(name, attributes = {}, children = []) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...[children].flat());
  return made;
}

function nice(most) {
  const power = 10 ** Math.floor(Math.log10(most || 1));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((top) => top >= most * 0.999);
}

function ticks(top, count = 4) {
  return Array.from({ length: count + 1 }, (_, i) => (top * i) / count);
}

function rounds(most) {
  const step = Math.max(1, nice(most / 4));
  return Math.ceil(most / 4 / step) * step * 4;
}

const number = (value) => (Math.abs(value) >= 1000 ? `${Math.round(value / 100) / 10}k` : `${Math.round(value * 100) / 100}`);

// series: {name, colour, points: [[x, y, low?, high?]], dashed}
export function chart(series, { width = innerWidth < 736 ? 380 : 760, height = 240, title = "", most = null } = {}) {
  const left = 38, right = 10, top = 10, bottom = 24;
  const all = series.flatMap((one) => one.points);
  const xMost = rounds(Math.max(4, ...all.map(([x]) => x)));
  const yMost = most ?? nice(Math.max(0.05, ...all.flatMap(([, y, , high]) => [y, high ?? 0])));
  const X = (x) => left + ((width - left - right) * x) / xMost;
  const Y = (y) => height - bottom - ((height - top - bottom) * Math.min(y, yMost)) / yMost;
  const drawn = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": describe(title, series) });
  for (const y of ticks(yMost)) {
    drawn.append(svg("line", { class: "axis", x1: left, x2: width - right, y1: Y(y), y2: Y(y) }));
    drawn.append(svg("text", { x: left - 6, y: Y(y) + 4, "text-anchor": "end" }, [number(y)]));
  }
  for (const x of ticks(xMost)) drawn.append(svg("text", { x: X(x), y: height - 6, "text-anchor": "middle" }, [number(x)]));
  for (const one of series) draw(drawn, one, X, Y);
  if (!all.length) drawn.append(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, ["nothing yet"]));
  return drawn;
}

function draw(drawn, one, X, Y) {
  const banded = one.points.filter((point) => point.length > 3);
  if (banded.length > 1) {
    const upper = banded.map(([x, , , high]) => `${X(x)},${Y(high)}`);
    const lower = banded.map(([x, , low]) => `${X(x)},${Y(low)}`).reverse();
    drawn.append(svg("polygon", { points: [...upper, ...lower].join(" "), fill: one.colour, opacity: 0.13 }));
  }
  const line = one.points.map(([x, y]) => `${X(x)},${Y(y)}`).join(" ");
  const style = { points: line, fill: "none", stroke: one.colour, "stroke-width": 2, "stroke-linejoin": "round" };
  drawn.append(svg("polyline", one.dashed ? { ...style, "stroke-dasharray": "5 4" } : style));
  const end = one.points.at(-1);
  if (end) drawn.append(svg("circle", { cx: X(end[0]), cy: Y(end[1]), r: 3, fill: one.colour }, [svg("title", {}, [`${one.name}: ${number(end[1])}`])]));
}

function describe(title, series) {
  const ends = series.filter((one) => one.points.length).map((one) => `${one.name} ${number(one.points.at(-1)[1])}`);
  return `${title}: ${ends.join(", ") || "nothing yet"}`;
}

export function legend(series) {
  return html("div", { class: "legend" }, series.map((one) => {
    const dot = html("span", { class: "dot" });
    dot.style.background = one.colour;
    return html("span", {}, [dot, one.name + (one.dashed ? " (alone)" : "")]);
  }));
}
