// Pictures: the topology with loads and trees, the timeline, and small charts. Plain SVG.

import { clock, jobColour, jobOf, labelOf, linkOf, load, measured, number, perSecond, short, slotsOf, sums, switchOf, works } from "./state.js";
import { renew } from "./tables.js";

const SVG = "http://www.w3.org/2000/svg";
const RAMP = [[0xc3, 0xcc, 0xd5], [0x4d, 0xab, 0xf7], [0xe8, 0x59, 0x0c], [0xc9, 0x2a, 0x2a]];
const UNMEASURED = "#adb5bd";

export function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function titled(made, title) {
  made.append(shape("title", {}, title));
  return made;
}

export function loadColour(part) {
  const place = Math.max(0, Math.min(1, part)) * (RAMP.length - 1);
  const low = Math.min(RAMP.length - 2, Math.floor(place));
  const mixed = RAMP[low].map((from, i) => Math.round(from + (RAMP[low + 1][i] - from) * (place - low)));
  return `rgb(${mixed.join(",")})`;
}

function arc(x, y, radius, part) {
  const end = Math.min(part, 0.9999) * 2 * Math.PI;
  return `M ${x} ${y - radius} A ${radius} ${radius} 0 ${end > Math.PI ? 1 : 0} 1 `
    + `${x + radius * Math.sin(end)} ${y - radius * Math.cos(end)}`;
}

// Ends of a line between two nodes, shifted to its side; both directions shift the same way.
function beside(places, a, b, shift) {
  const [first, second] = [a, b].sort();
  const [[x1, y1], [x2, y2]] = [places[first], places[second]];
  const length = Math.hypot(x2 - x1, y2 - y1) || 1;
  const [dx, dy] = [shift * (y1 - y2) / length, shift * (x2 - x1) / length];
  return { x1: x1 + dx, y1: y1 + dy, x2: x2 + dx, y2: y2 + dy };
}

function treesOf(state, only) {
  return state.jobs.filter((job) => only === null || job.job === only)
    .flatMap((job) => job.trees.map((tree) => ({ job, tree })));
}

export function drawTopology(svg, history, layout, picked, pick) {
  const state = history.latest;
  const { places, names, host_width: width, switch_radius: radius } = layout;
  svg.setAttribute("viewBox", `0 0 ${layout.width} ${layout.height}`);
  const parts = [];
  const chosen = (kind, id) => picked?.kind === kind && picked.id === id;

  for (const link of state.network.links) {
    const id = `${link.a}-${link.b}`;
    const part = load(state, link);
    const directions = [linkOf(state, link.a, link.b), linkOf(state, link.b, link.a)];
    const health = directions.map((each) => each?.health).find(Boolean);
    const ends = beside(places, link.a, link.b, 0);
    parts.push(shape("line", {
      ...ends, class: `link${health ? " down" : ""}${chosen("link", id) ? " picked-shape" : ""}`,
      stroke: directions.some(measured) ? loadColour(part ?? 0) : UNMEASURED, "stroke-width": (health ? 5 : 1.5) + 9 * (part ?? 0),
    }));
    const hit = titled(shape("line", { ...ends, class: "hit pick", "data-link": id }),
      `${labelOf(state, link.a)} - ${labelOf(state, link.b)}: ${health || (!directions.some(measured) ? "not measured" : part === null ? "no rate" : `${Math.round(100 * part)} %`)}`);
    hit.onclick = () => pick({ kind: "link", id });
    parts.push(hit);
  }

  const drawn = treesOf(state, picked?.kind === "job" ? picked.id : null);
  const abreast = new Map();
  drawn.forEach(({ tree }, place) => {
    for (const pair of Object.entries(tree.parents)) {
      const key = pair.sort().join(" ");
      abreast.set(key, [...(abreast.get(key) ?? []), place]);
    }
  });
  const summing = new Set();
  drawn.forEach(({ job, tree }, place) => {
    tree.sums.forEach((name) => summing.add(name));
    for (const [node, parent] of Object.entries(tree.parents)) {
      const all = abreast.get([node, parent].sort().join(" "));
      const shift = (all.indexOf(place) - (all.length - 1) / 2) * Math.min(4, 14 / all.length);
      parts.push(shape("line", {
        ...beside(places, node, parent, shift), class: "tree", stroke: jobColour(job.job),
        "data-tree": `${job.job}/${tree.tree}`,
      }));
    }
  });

  const roles = new Map();
  for (const job of state.jobs.filter((each) => !each.over)) {
    job.servers.forEach((host) => roles.set(host, "server"));
    job.workers.forEach((host) => roles.set(host, "worker"));
  }
  for (const node of state.nodes) {
    const [x, y] = places[node.host];
    const look = `host pick ${roles.get(node.host) ?? ""}${node.attached ? "" : " detached"}`
      + (chosen("host", node.host) ? " picked-shape" : "");
    const box = titled(shape("rect", { class: look, x: x - width / 2, y: y - 11, width, height: 22, rx: Math.min(5, width / 3), "data-host": node.host }),
      node.attached ? labelOf(state, node.host) : `${labelOf(state, node.host)}: no agent attached`);
    box.onclick = () => pick({ kind: "host", id: node.host });
    parts.push(box);
    parts.push(shape("text", { x, y }, names[node.host]));
  }

  for (const { name, aggregates } of state.network.switches) {
    const [x, y] = places[name];
    const found = switchOf(state, name);
    const down = found && (!works(found) || found.health);
    const use = slotsOf(state, name);
    const circle = titled(shape("circle", {
      class: `switch pick${aggregates ? "" : " plain"}${summing.has(name) ? " sums" : ""}${down ? " down" : ""}`
        + (chosen("switch", name) ? " picked-shape" : ""),
      cx: x, cy: y, r: radius, "data-switch": name,
    }), `${labelOf(state, name)}: ${found ? found.health || found.state : "not driven"}`);
    circle.onclick = () => pick({ kind: "switch", id: name });
    parts.push(circle);
    if (use?.taken) parts.push(shape("path", { class: "tree", stroke: "#0b7285", d: arc(x, y, radius + 3, use.taken / use.slots) }));
    parts.push(shape("text", { x, y }, names[name]));
    if (found) {
      const rate = history.rate((each) => sums(switchOf(each, name)));
      parts.push(shape("text", { class: "small start", x: x + radius + 7, y }, rate ? perSecond(rate) : ""));
    }
  }
  renew(svg, parts);
}

const KINDS = {
  submitted: "#868e96", queued: "#868e96", planned: "#868e96", started: "#1864ab", finished: "#2b8a3e",
  failed: "#c92a2a", cancelled: "#495057", failover: "#e8590c", replan: "#5f3dc4", preempted: "#a61e4d",
  outage: "#c92a2a", recovery: "#2b8a3e",
};
export const kindColour = (kind) => KINDS[kind] ?? "#495057";

// A lane for the network and one for every job that has had an event; epochs are bars.
export function drawTimeline(svg, state, pick) {
  const names = new Map(state.jobs.map((job) => [job.job, job.name]));
  const jobs = [...new Set(state.events.map((event) => event.job).filter((job) => job && names.has(job)))];
  const lanes = [0, ...jobs.slice(-11)];
  const [width, lane, left] = [1000, 24, 110];
  const start = state.events[0]?.date ?? state.date - 1;
  const x = (date) => left + (width - left - 15) * (date - start) / Math.max(state.date - start, 0.001);
  svg.setAttribute("viewBox", `0 0 ${width} ${lane * lanes.length + 20}`);
  const parts = [];
  lanes.forEach((job, row) => {
    const y = 12 + row * lane;
    parts.push(shape("text", { x: left / 2, y }, short(job ? names.get(job) : "network", 13)));
    parts.push(shape("line", { x1: left, x2: width - 10, y1: y, y2: y, stroke: "#d5dde5" }));
    const events = state.events.filter((event) => lanes.includes(event.job) ? event.job === job : !job && !event.job);
    const begun = events.filter((event) => event.epoch && ["planned", "failover", "replan", "preempted"].includes(event.kind));
    const found = jobOf(state, job);
    const end = found?.over ? found.ended : state.date;
    begun.forEach((event, i) => {
      const until = begun[i + 1]?.date ?? end;
      const bar = { x: x(event.date), y: y - 7, width: Math.max(1, x(until) - x(event.date)), height: 14 };
      parts.push(titled(shape("rect", { ...bar, fill: jobColour(job), "fill-opacity": 0.18 + 0.14 * (i % 2) }), `epoch ${event.epoch}`));
      if (bar.width > 40) parts.push(shape("text", { class: "small", x: bar.x + bar.width - 14, y }, `e${event.epoch}`));
    });
    for (const event of events) {
      const dot = titled(shape("circle", { cx: x(event.date), cy: y, r: 5, fill: kindColour(event.kind), class: "pick", "data-event": event.kind }),
        `${clock(event.date)}: ${event.text}`);
      if (event.job) dot.onclick = () => pick({ kind: "job", id: event.job });
      parts.push(dot);
    }
  });
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    const date = start + part * (state.date - start);
    parts.push(shape("text", { class: "small", x: x(date) - (part === 1 ? 22 : 0), y: lane * lanes.length + 10 }, clock(date)));
  }
  renew(svg, parts);
}

// Lines over time: [{name, colour, points: [[date, value]]}], from 0 to `top` or the most there is.
export function chart(lines, format, top = 0) {
  const [width, height] = [340, 80];
  const points = lines.flatMap((line) => line.points);
  if (points.length < 2) return shape("svg", { viewBox: `0 0 ${width} 1` });
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height + 16}`, class: "chart" });
  const dates = points.map(([date]) => date);
  const [first, last] = [Math.min(...dates), Math.max(...dates)];
  const most = Math.max(top, ...points.map(([, value]) => value)) || 1;
  svg.append(shape("line", { x1: 0, x2: width, y1: height, y2: height, stroke: "#adb5bd" }));
  for (const line of lines) {
    const d = line.points.map(([date, value]) =>
      `${(width * (date - first) / (last - first || 1)).toFixed(1)},${(height - (height - 12) * value / most).toFixed(1)}`);
    svg.append(shape("polyline", { points: d.join(" "), fill: "none", stroke: line.colour, "stroke-width": 1.6 }));
  }
  svg.append(shape("text", { class: "small", x: 40, y: 6 }, format(most)));
  svg.append(shape("text", { class: "small", x: 60, y: height + 9 }, `the last ${number((last - first).toFixed(1))} s`));
  return svg;
}
