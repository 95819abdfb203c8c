// The dashboard: takes states as they come (or as the slider says) and shows the latest.

import { detail } from "./detail.js";
import { drawTimeline, drawTopology, kindColour } from "./drawing.js";
import {
  History, amount, bits, bytes, clock, clockName, countFrom, fetchFrame, fetchFrames, fetchLayout, fetchState, follow, goodput, jobColour,
  labelOf, number, packets, pause, short, slotsOf, sums, works,
} from "./state.js";
import { element, renew, row, table } from "./tables.js";

const $ = (id) => document.getElementById(id);
const history = new History();
let layout = null;
let laidOut = "";  // the network, as JSON, that the layout is of
let layingOut = false;
let picked = null;
let following = true;
let frames = [];
let open = false;  // the stream of states
let live = true;  // false: what is shown is over
let unavailable = "";  // why no state comes
let noLayout = "";  // why a state cannot be drawn
let noFrame = "";  // why the state that the slider says does not come

function pick(what) {
  picked = what;
  show();
}

function show() {
  const state = history.latest;
  if (!state) return;
  if (JSON.stringify(state.network) !== laidOut) {
    layOut(state.network);
    return;
  }
  $("network").textContent = state.network.name;
  const { active_jobs: active, usable_switches: usable, attached_agents: attached } = state;
  $("summary").textContent = `${clock(state.date)} ${clockName()}: ${active} of ${state.jobs.length} jobs active, `
    + `${usable} of ${state.switches.length} switches ready${activities(state)}, ${attached} of ${state.nodes.length} agents attached`;
  $("unit").textContent = `(${clockName()})`;
  drawTopology($("topology"), history, layout, picked, pick);
  drawTimeline($("timeline"), state, pick);
  showJobs(state);
  showEvents(state);
  showSwitches(state);
  detail($("detail"), history, picked, pick);
}

// What switches that are not ready do, as " (3 writing rules, 1 connecting)".
function activities(state) {
  const counts = new Map();
  for (const { state: what } of state.switches)
    if (what !== "ready") counts.set(what, (counts.get(what) ?? 0) + 1);
  return counts.size ? ` (${[...counts].map(([what, count]) => `${count} ${what}`).join(", ")})` : "";
}

// Fetch where the nodes are drawn; until that is known, try every second and say why not.
async function layOut(network) {
  if (layingOut) return;
  layingOut = true;
  try {
    const found = await fetchLayout();
    if (![...network.hosts, ...network.switches].every(({ name }) => found.places[name]))
      throw new Error("the network has changed");
    [layout, laidOut, noLayout] = [found, JSON.stringify(network), ""];
    connected();
  } catch (error) {
    noLayout = error.message;
    connected();
    await pause(1);
  } finally {
    layingOut = false;
  }
  show();
}

function progress(job) {
  const total = number(job.tensors);
  const done = number(job.round);
  const cell = element("td");
  if (total) {
    const bar = element("progress");
    [bar.max, bar.value] = [total, done];
    bar.style.accentColor = jobColour(job.job);
    cell.append(bar, " ");
  }
  cell.append(total ? `${done} of ${total}` : String(done));
  return cell;
}

function showJobs(state) {
  const names = ["job", "name", "state", "priority", "progress", "goodput", "epoch", "sent", "resent", ""];
  const rows = [...state.jobs].reverse().map((job) => {
    const name = element("td", short(job.name, 20));
    [name.style.color, name.title] = [jobColour(job.job), job.name];
    const rate = job.over ? undefined : goodput(history, job.job).at(-1);
    const why = element("td", [job.reason, job.bypassed.length ? `bypasses ${job.bypassed.join(", ")}` : ""].filter(Boolean).join("; "));
    why.className = job.state === "failed" ? "bad" : job.over ? "" : "waits";
    const made = row("td", [job.job, name, element("td", job.state), job.over ? "" : job.level,
      progress(job), rate ? bits(rate[1]) : "", job.epoch, bytes(number(job.sent_bytes)), amount(number(job.retransmissions)), why]);
    made.className = `pick${picked?.kind === "job" && picked.id === job.job ? " picked" : ""}`;
    made.dataset.job = job.name;
    made.onclick = () => pick({ kind: "job", id: job.job });
    return made;
  });
  $("nothing").hidden = rows.length > 0;
  renew($("jobs"), table(names, rows));
}

function showEvents(state) {
  renew($("events"), [...state.events].reverse().map((event) => {
    const item = element("li");
    const kind = element("b", event.kind);
    kind.style.color = kindColour(event.kind);
    item.dataset.kind = event.kind;
    item.append(element("time", clock(event.date)), kind, event.text);
    return item;
  }));
}

function showSwitches(state) {
  const names = ["switch", "state", "packets", "sums", "duplicates", "stale", "injected loss", "slots held"];
  const rows = state.switches.map((each) => {
    const use = slotsOf(state, each.name);
    const condition = element("td", each.health ? `${each.state}, ${each.health}` : each.state);
    condition.className = !works(each) || each.health ? "bad" : each.state === "ready" ? "good" : "waits";
    const known = sums(each) !== undefined;
    const shown = (count) => count === undefined ? "–" : amount(count);
    const count = (name) => shown(known ? number(each.outcomes[name]) : undefined);
    const made = row("td", [element("td", labelOf(state, each.name)), condition, shown(packets(each)),
      shown(sums(each)), count("duplicate"), count("stale"), count("injected_loss"),
      use ? `${use.taken} of ${use.slots}` : "none"]);
    made.className = `pick${picked?.kind === "switch" && picked.id === each.name ? " picked" : ""}`;
    made.dataset.switch = each.name;
    made.onclick = () => pick({ kind: "switch", id: each.name });
    return made;
  });
  renew($("switches"), table(names, rows));
}

// -- Where states come from

function take(state) {
  connected({ on: true, why: "" });
  if (!following) return;
  // A recording says how its time is counted.
  if (!history.latest) lookForFrames();
  history.add(state);
  show();
}

function connected({ on = open, why = unavailable } = {}) {
  [open, unavailable] = [on, why];
  const problem = unavailable || noLayout || noFrame;
  const shown = $("connection");
  const kind = !open || problem ? "off" : following && live ? "on" : "replay";
  shown.textContent = !open ? "no connection" : problem || (kind === "on" ? "live" : "replay");
  shown.className = kind;
}

async function showFrame(number) {
  following = false;
  connected();
  $("frame").value = number;
  $("frame-time").textContent = `${(frames[number] - frames[0]).toFixed(2)} s, ${number + 1} of ${frames.length}`;
  const wanted = () => !following && Number($("frame").value) === number;
  await showFetched(fetchFrame(number), wanted);
}

// Show a state that was asked for, unless another is wanted by the time it is here.
async function showFetched(fetched, wanted) {
  try {
    const state = await fetched;
    noFrame = "";
    if (!wanted()) return;
    history.add(state);
    show();
  } catch (error) {
    noFrame = error.message;
  } finally {
    connected();
  }
}

async function lookForFrames() {
  try {
    ({ dates: frames, live } = await fetchFrames());
  } catch {
    return;  // the stream of states says it
  }
  if (frames.length && countFrom(frames[0])) show();
  if (open) connected();
  $("replay").hidden = frames.length === 0;
  $("frame").max = Math.max(0, frames.length - 1);
  if (following && frames.length) $("frame").value = frames.length - 1;
}

let playing = 0;
function play() {
  clearInterval(playing);
  if ($("play").textContent === "stop") {
    $("play").textContent = "play";
    return;
  }
  $("play").textContent = "stop";
  let next = Number($("frame").value) >= frames.length - 1 ? 0 : Number($("frame").value);
  playing = setInterval(async () => {
    if (next >= frames.length) return play();
    await showFrame(next++);
  }, 100);
}

$("frame").addEventListener("input", (event) => showFrame(Number(event.target.value)));
$("play").addEventListener("click", play);
$("latest").addEventListener("click", async () => {
  if ($("play").textContent === "stop") play();
  following = true;
  connected();
  $("frame-time").textContent = "";
  // A run that is over sends no more states.
  await showFetched(fetchState(), () => following);
});

follow(take, connected);
lookForFrames();
setInterval(lookForFrames, 2000);
