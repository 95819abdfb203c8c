// The figures of what was clicked: a link, a switch with its slots, a host, or a job.

import { chart, shape } from "./drawing.js";
import {
  WINDOW, amount, bits, bytes, clock, clockName, fetchMissing, fetchSlot, goodput, jobColour, jobOf, labelOf, linkOf, measured,
  number, packets, perSecond, short, slotsOf, sums, switchOf,
} from "./state.js";
import { element, figures, renew, row } from "./tables.js";

const MOST_LINES = 6;  // as many as there are colours

let shown = "";  // what the panel is of
let boxes = [];  // its figures, which change; the form of a switch and the answer, which stay

export function detail(panel, history, picked, pick) {
  const id = picked ? `${picked.kind} ${picked.id}` : "Goodput";
  if (id !== shown) {
    shown = id;
    boxes = [element("div"), element("div"), element("div")];
    const back = element("button", "all jobs");
    back.onclick = () => pick(null);
    panel.replaceChildren(...(picked ? [back] : []), element("h2", id), ...boxes);
  }
  const [changing, form, answer] = boxes;
  const tell = (made) => {
    if (id === shown) answer.replaceChildren(made);
  };
  const parts = picked ? { link, switch: switchPanel, host, job }[picked.kind](history, picked.id, pick, tell) : goodputs(history, pick);
  renew(changing, parts);
  const use = picked?.kind === "switch" ? slotsOf(history.latest, picked.id) : undefined;
  if (use && !form.hasChildNodes()) form.append(slotForm(use, picked.id, tell));
}

// What there is to see before anything is clicked.
function goodputs(history, pick) {
  const lines = history.latest.jobs.slice(-MOST_LINES)
    .map(({ job, name }) => ({ job, name, colour: jobColour(job), points: goodput(history, job) })).filter(({ points }) => points.length);
  const rows = lines.map(({ job, name, colour, points }) => {
    const cell = element("td", short(name, 20));
    [cell.style.color, cell.title] = [colour, name];
    const made = row("td", [cell, jobOf(history.latest, job).over ? "over" : bits(points.at(-1)[1])]);
    made.className = "pick";
    made.onclick = () => pick({ kind: "job", id: job });
    return made;
  });
  const jobs = element("table");
  jobs.append(...rows);
  return [
    element("p", lines.length ? `Tensors summed at a worker of each job, means of ${WINDOW} s:` : "No job runs, or has run while this page was open."),
    chart(lines, bits), jobs,
    element("p", "Click a link, a switch, a host, a job or a slot to see its figures."),
  ];
}

function link(history, id) {
  const state = history.latest;
  const found = state.network.links.find((each) => `${each.a}-${each.b}` === id);
  if (!found) return [element("p", "No such link.")];
  const directions = [[found.a, found.b], [found.b, found.a]];
  const pairs = [["rate", found.bandwidth ? bits(found.bandwidth) : "unlimited"], ["latency", `${1e6 * found.latency} µs`]];
  for (const [u, v] of directions) {
    const use = linkOf(state, u, v);
    if (!measured(use)) {
      pairs.push([`${labelOf(state, u)} → ${labelOf(state, v)}`, "not measured"]);
      continue;
    }
    const part = found.bandwidth ? ` (${(100 * use.used / found.bandwidth).toFixed(0)} %)` : "";
    pairs.push([`${labelOf(state, u)} → ${labelOf(state, v)}`, `${bits(use.used)}${part}`]);
  }
  pairs.push(["health", linkOf(state, found.a, found.b).health || "ok"]);
  const lines = directions.map(([u, v], i) => ({
    colour: ["#0b7285", "#e8590c"][i], points: history.series((each) => linkOf(each, u, v)).filter(([, use]) => measured(use)).map(([date, use]) => [date, use.used]),
  }));
  return [figures(pairs), chart(lines, bits, found.bandwidth ?? 0)];
}

function switchPanel(history, name, pick, tell) {
  const state = history.latest;
  const found = switchOf(state, name);
  const use = slotsOf(state, name);
  const parts = [];
  if (found) {
    const since = found.seconds ? `, for ${found.seconds.toFixed(0)} s` : "";
    parts.push(figures([
      ["state", found.state + since], ["health", found.health || "ok"], ["P4Runtime", found.address],
      ["packets", amount(packets(found))], ["sums", amount(sums(found))],
      ...(found.counters_error ? [["counters", found.counters_error]] : []),
      ...Object.entries(found.outcomes).filter(([, count]) => number(count)).sort()
        .map(([outcome, count]) => [outcome.replace(/^re_/, "re-").replaceAll("_", " "), amount(number(count))]),
    ]));
    const rates = history.rates((each) => sums(switchOf(each, name)));
    parts.push(chart([{ colour: "#0b7285", points: rates }], (most) => `${perSecond(most)} sums`));
  }
  if (use) parts.push(...slotMap(use, name, tell));
  return parts;
}

function slotMap(use, name, tell) {
  const width = 340;
  const svg = shape("svg", { viewBox: `0 0 ${width} 26`, class: "slots", role: "img", "aria-label": "slots" });
  svg.append(shape("rect", { x: 0, y: 2, width, height: 22, fill: "#f1f3f5" }));
  for (const range of use.ranges) {
    svg.append(shape("rect", {
      x: width * range.first / use.slots, width: Math.max(2, width * range.count / use.slots), y: 2,
      height: 22, fill: jobColour(range.job), class: "pick", "data-slots": `${range.first}`,
    }));
  }
  svg.onclick = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const first = event.target.dataset.slots;
    const slot = Math.floor(use.slots * (event.clientX - box.left) / box.width);
    showSlot(name, Math.min(use.slots - 1, Math.max(Number(first ?? 0), slot)), tell);
  };
  const words = use.ranges.map((range) => `job ${range.job}, tree ${range.tree}: ${range.first} to ${range.first + range.count - 1}`);
  return [element("p", `slots: ${use.taken} of ${use.slots} held${words.length ? `; ${words.join("; ")}` : ""}`), svg];
}

function slotForm(use, name, tell) {
  const line = element("p");
  const label = element("label", "slot ");
  const input = element("input");
  Object.assign(input, { type: "number", min: 0, max: use.slots - 1, value: use.ranges[0]?.first ?? 0, id: "slot" });
  label.append(input);
  const button = element("button", "read");
  button.addEventListener("click", () => showSlot(name, Number(input.value), tell));
  line.append(label, " ", button);
  return line;
}

async function showSlot(name, slot, tell) {
  const made = element("div");
  made.id = "slot-figures";
  try {
    const found = await fetchSlot(name, slot);
    const seen = [...Array(found.fan_in).keys()].map((child) => (found.bitmap >>> child & 1 ? "●" : "○")).join(" ");
    made.append(element("h3", `slot ${slot} of ${name}`), figures(found.valid ? [
      ["job", found.job], ["tree", found.tree], ["epoch", found.epoch], ["fragment", found.fragment],
      ["children in", `${found.count} of ${found.fan_in}  ${seen}`], ["weight", found.weight],
      ["state", found.cleared ? "cleared" : found.count === found.fan_in ? "complete" : "waits for children"],
    ] : [["state", "never used"]]));
  } catch (error) {
    made.append(element("p", error.message));
  }
  tell(made);
}

function host(history, name) {
  const state = history.latest;
  const node = state.nodes.find((each) => each.host === name);
  if (!node) return [element("p", "No such host.")];
  const { ip, mac } = state.network.hosts.find((each) => each.name === name);
  const names = node.jobs.map((each) => jobOf(state, each)?.name ?? each).join(", ");
  const pairs = [["agent", `${node.attached ? "attached" : "detached"} for ${node.seconds.toFixed(0)} s`], ["address", ip], ["MAC", mac], ["jobs", names || "none"]];
  for (const each of node.report?.interfaces ?? [])
    pairs.push([`to ${labelOf(state, each.peer)}`, `sends ${bits(each.sent)}, receives ${bits(each.received)}`]);
  for (const each of node.report?.jobs ?? [])
    pairs.push([`job ${each.job}`, `${number(each.round)} tensors, ${bytes(number(each.sent_bytes))}, ${amount(number(each.retransmissions))} retransmissions`]);
  return [figures(pairs)];
}

function job(history, id, pick, tell) {
  const state = history.latest;
  const found = jobOf(state, id);
  if (!found) return [element("p", "This job is no longer known.")];
  const span = found.started ? `${((found.ended || state.date) - found.started).toFixed(1)} s` : "not started";
  const why = element("span", found.reason || (found.over ? "it is over" : "nothing"));
  why.id = "why";
  if (found.reason) why.className = "waits";
  const parts = [figures([
    ["name", found.name], ["state", found.state], ["waits for", why], ["algorithm", found.algorithm],
    ["priority", found.over ? "" : found.level], ["epoch", found.epoch],
    ["tensors", `${number(found.round)} of ${number(found.tensors) || "?"}`], ["running", span],
    ["submitted", `${clock(found.submitted)} ${clockName()}`], ["workers", found.workers.join(", ")], ["servers", found.servers.join(", ")],
    ["sent", bytes(number(found.sent_bytes))], ["retransmissions", amount(number(found.retransmissions))],
    ["sums at", [...new Set(found.trees.flatMap((tree) => tree.sums))].sort().join(", ")],
    ["bypasses", found.bypassed.join(", ")],
  ].filter(([, value]) => value !== "")), element("h3", `goodput, means of ${WINDOW} s`),
  chart([{ colour: jobColour(id), points: goodput(history, id) }], bits)];
  if (found.trees.length) {
    const button = element("button", "what are its slots waiting for?");
    button.onclick = () => showMissing(id, tell);
    parts.push(button);
  }
  return parts;
}

async function showMissing(id, tell) {
  const made = element("ul");
  made.id = "missing";
  try {
    const { sentences } = await fetchMissing(id);
    for (const sentence of sentences.slice(0, 20)) made.append(element("li", sentence));
    if (!sentences.length) made.append(element("li", "no slot is waiting"));
    if (sentences.length > 20) made.append(element("li", `and ${sentences.length - 20} more`));
  } catch (error) {
    made.append(element("li", error.message));
  }
  tell(made);
}
