"""The page of serve.py: one file without a build step or anything from elsewhere."""
from __future__ import annotations

from .style import COLORS

_STYLE = COLORS + """
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 80rem; background: var(--page); color: var(--ink);
  font: 16px/1.45 system-ui, "DejaVu Sans", Verdana, Arial, sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 0.5rem; } h2 { font-size: 1.1rem; margin: 0; overflow-wrap: anywhere; }
article { border: 1px solid var(--grid); border-radius: 6px; padding: 0.8rem 1rem; margin: 1rem 0; }
.state { margin: 0.3rem 0; color: var(--muted); } .silent .state { color: var(--c2); font-weight: bold; }
.bar { height: 6px; border-radius: 3px; background: var(--grid); overflow: hidden; }
.bar div { height: 100%; background: var(--c1); } .finished .bar div { background: var(--c3); }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: 0.5rem 1rem; margin: 0.8rem 0; }
dt { color: var(--muted); font-size: 0.8rem; } dd { margin: 0; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(21rem, 100%), 1fr)); gap: 0.8rem 1.2rem; }
figure { margin: 0; min-width: 0; } figcaption { font-size: 0.85rem; font-weight: bold; display: flex; flex-wrap: wrap; gap: 0 0.8em; }
figcaption span { font-weight: normal; }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--muted); font-size: 11px; }
svg .axis { stroke: var(--grid); } svg path { fill: none; stroke-width: 1.8; }
#gone { color: var(--c2); font-weight: bold; } .problems { color: var(--c2); overflow-wrap: anywhere; }
"""

_SCRIPT = """
"use strict";
const every = 2000, width = 420, height = 170, left = 48, right = 10, top_ = 8, bottom = 22;

function element(name, parent, text, attributes) {
  const made = name.startsWith("svg:") ? document.createElementNS("http://www.w3.org/2000/svg", name.slice(4)) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  if (text !== undefined && text !== null) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}
function digits(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return size < 0.001 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
}
function ticks(least, most, count) {
  const rough = (most - least) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(x => x * power).find(x => x >= rough);
  const found = [];
  for (let count = Math.ceil(least / step - 1e-9); count * step <= most + 1e-9 * step; ++count) found.push(Number((count * step).toPrecision(12)));
  return found;
}
function chart(parent, it) {
  const figure = element("figure", parent), caption = element("figcaption", figure, it.title);
  const points = it.lines.flatMap(line => line.points);
  let [x0, x1] = [Math.min(...points.map(p => p[0])), Math.max(...points.map(p => p[0]))];
  let [y0, y1] = [Math.min(...points.map(p => p[1])), Math.max(...points.map(p => p[1]))];
  if (it.least !== null) y0 = Math.min(y0, it.least);
  if (x1 <= x0) { x0 -= 0.5; x1 += 0.5; }
  if (y1 <= y0) { const room = Math.abs(y1) * 0.1 || 1; y0 -= room; y1 += room; }
  const x = v => left + (v - x0) / (x1 - x0) * (width - left - right), y = v => height - bottom - (v - y0) / (y1 - y0) * (height - top_ - bottom);
  const svg = element("svg:svg", figure, null, {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${it.title} over ${it.x}s`});
  for (const at of ticks(y0, y1, 4)) {
    element("svg:line", svg, null, {class: "axis", x1: left, x2: width - right, y1: y(at), y2: y(at)});
    element("svg:text", svg, digits(at), {x: left - 5, y: y(at) + 4, "text-anchor": "end"});
  }
  for (const at of ticks(x0, x1, 5).filter(Number.isInteger)) element("svg:text", svg, digits(at), {x: x(at), y: height - 6, "text-anchor": "middle"});
  it.lines.forEach((line, number) => {
    const color = `var(--c${number % 7 + 1})`, last = line.points[line.points.length - 1];
    if (it.lines.length > 1) element("span", caption, `${line.name} ${digits(last[1])}`, {style: `color: ${color}`});
    else element("span", caption, digits(last[1]));
    if (line.points.length > 1) element("svg:path", svg, null, {d: "M" + line.points.map(p => `${x(p[0]).toFixed(1)} ${y(p[1]).toFixed(1)}`).join("L"), style: `stroke: ${color}`});
    element("svg:circle", svg, null, {cx: x(last[0]), cy: y(last[1]), r: 3, style: `fill: ${color}`});
  });
}
function show(state) {
  const main = document.createElement("main");
  for (const run of state.runs) {
    const card = element("article", main, null, {class: run.is_finished ? "finished" : run.is_silent ? "silent" : "running"});
    element("h2", card, run.title);
    element("p", card, run.state, {class: "state"});
    if (run.done > 0) element("div", element("div", card, null, {class: "bar"}), null, {style: `width: ${100 * run.done}%`});
    const facts = element("dl", card);
    for (const [title, text] of run.facts) { const one = element("div", facts); element("dt", one, title); element("dd", one, text); }
    const charts = element("div", card, null, {class: "charts"});
    for (const one of run.charts) chart(charts, one);
    for (const problem of run.problems) element("p", card, problem, {class: "problems"});
  }
  if (!state.runs.length) element("p", main, "No run yet.");
  for (const problem of state.problems) element("p", main, problem, {class: "problems"});
  document.querySelector("main").replaceWith(main);
  const going = state.runs.filter(run => !run.is_finished).length;
  document.title = going ? `${going} running - dptrain` : "dptrain";
}
let shown = "";
async function look() {
  const gone = document.getElementById("gone");
  try {
    const answer = await (await fetch("runs.json")).text();
    if (answer !== shown) show(JSON.parse(answer));
    shown = answer;
    gone.hidden = true;
  } catch (error) {
    gone.hidden = false;
  }
  setTimeout(look, every);
}
look();
"""

PAGE = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>dptrain</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>Runs</h1>
<p id="gone" hidden>dpreport has ended; what follows is what it said last.</p>
<main><p>Reading the logs ...</p></main>
<script>{_SCRIPT}</script>
</body>
</html>
"""
