// The state document (ClusterState of src/hopsum/protocol/hopsum.proto, as JSON) and how it is kept up to date.

// None of them is like one of the scale of loads.
export const TREE_COLOURS = ["#0b7285", "#5f3dc4", "#2b8a3e", "#7f5539", "#e64980", "#212529"];
const KEPT = 300;  // states, for what has changed over time

export const jobColour = (job) => TREE_COLOURS[(Number(job) - 1) % TREE_COLOURS.length];

// 64-bit integers are strings in proto3's JSON.
export const number = (value) => Number(value ?? 0);

// Totals of a switch; undefined where its counters are not known.
const known = (count) => count === undefined ? undefined : number(count);
export const sums = (s) => known(s?.sums);
export const packets = (s) => known(s?.packets);
export const amount = (count) => count === undefined ? "unknown" : count.toLocaleString("en");

export function bits(rate) {
  for (const [unit, size] of [["Gbit/s", 1e9], ["Mbit/s", 1e6], ["kbit/s", 1e3]])
    if (rate >= size) return `${(rate / size).toFixed(rate >= 100 * size ? 0 : 1)} ${unit}`;
  return `${rate.toFixed(0)} bit/s`;
}
export function bytes(count) {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])
    if (count >= size) return `${(count / size).toFixed(1)} ${unit}`;
  return `${count} B`;
}
export const perSecond = (rate) => `${rate >= 100 ? Math.round(rate).toLocaleString("en") : rate.toFixed(1)}/s`;

// A recording counts from its first frame, as its slider does: virtual time has no date.
let origin;
export function countFrom(date) {
  const changed = origin !== date;
  origin = date;
  return changed;
}
export const clock = (date) => origin === undefined
  ? new Date(date * 1000).toISOString().slice(11, 22) : `${Math.max(0, date - origin).toFixed(2)} s`;
export const clockName = () => origin === undefined ? "UTC" : "since the start";

export class History {
  constructor() { this.states = []; }

  get latest() { return this.states.at(-1); }

  add(state) {
    // A slider that goes back, or another controller, perhaps of another network.
    if (this.latest?.network.name !== state.network.name) this.states = [];
    while (this.states.length && this.latest.date >= state.date) this.states.pop();
    this.states.push(state);
    if (this.states.length > KEPT) this.states.shift();
  }

  // [date, value] of every state.
  series(value) { return this.states.map((state) => [state.date, value(state)]); }

  // [date, growth a second] of a counter, from each state that has it to the next that has it.
  rates(counter) {
    const known = this.series(counter).filter(([, count]) => count !== undefined);
    return known.slice(1).map(([date, count], i) => {
      const [before, counted] = known[i];
      return [date, Math.max(0, count - counted) / (date - before)];
    });
  }

  // How fast a counter has grown, over the last two states; 0 where it is not known.
  rate(counter) {
    const last = new History();
    last.states = this.states.slice(-2);
    return last.rates(counter)[0]?.[1] ?? 0;
  }
}

// [date, bit/s] of the tensors whose sums a worker of a running job has: means of up to WINDOW seconds, since large tensors
// are not done every second.
export const WINDOW = 5;
export function goodput(history, id) {
  const counts = history.series((state) => jobOf(state, id)).filter(([, job]) => job?.started && !job.over)
    .map(([date, job]) => [date, 8 * number(job.summed_bytes)]);
  return counts.slice(1).map(([date, count], i) => {
    const [then, before] = counts.slice(0, i + 1).find(([each]) => each >= date - WINDOW) ?? counts[i];
    return [date, (count - before) / (date - then)];
  });
}

export const short = (name, most) => name.length > most ? `${name.slice(0, most - 1)}…` : name;

// A node's name for people.
export const labelOf = (state, name) => [...state.network.hosts, ...state.network.switches]
  .find((each) => each.name === name)?.label || name;
export const switchOf = (state, name) => state.switches.find((each) => each.name === name);
export const linkOf = (state, u, v) => state.links.find((each) => each.sender === u && each.receiver === v);
export const jobOf = (state, id) => state.jobs.find((each) => each.job === id);
// A plan that changes is no outage.
export const works = (found) => ["ready", "writing rules"].includes(found.state);
export const slotsOf = (state, name) => state.slots.find((each) => each.switch === name);

// Whether an agent at an end of the link reports what it carries in that direction.
export const measured = (use) => use?.age !== undefined;

// The part of its rate that the busier direction of a link uses; null where the rate is not limited,
// or nobody measures.
export function load(state, link) {
  const uses = [[link.a, link.b], [link.b, link.a]].map(([u, v]) => linkOf(state, u, v)).filter(measured);
  if (!link.bandwidth || !uses.length) return null;
  return Math.min(1, Math.max(...uses.map((use) => use.used)) / link.bandwidth);
}

export const pause = (seconds) => new Promise((wake) => setTimeout(wake, 1000 * seconds));

// A request that fails in the browser, as while interfaces come and go, is made again.
async function json(url) {
  let answer;
  for (let tries = 3; !answer; tries--) {
    try {
      answer = await fetch(url);
    } catch {
      if (tries === 1) throw new Error("no connection");
      await pause(1);
    }
  }
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer.json();
}
export const fetchLayout = () => json("layout.json");
export const fetchState = () => json("state.json");
export const fetchFrames = () => json("frames.json");
export const fetchFrame = (frame) => json(`state.json?frame=${frame}`);
export const fetchSlot = (name, slot) => json(`slot.json?switch=${encodeURIComponent(name)}&slot=${slot}`);
export const fetchMissing = (job) => json(`missing.json?job=${job}`);

// Give what the server streams. It speaks every second: a stream that falls silent is opened again.
const SILENCE = 10;  // seconds

export function follow(take, connected) {
  const stream = new EventSource("events");
  let heard = Date.now();
  const on = (kind, act) => stream.addEventListener(kind, (event) => {
    heard = Date.now();
    act(event.data);
  });
  on("open", () => connected({ on: true }));
  on("same", () => connected({ on: true }));
  on("unavailable", (why) => connected({ on: true, why }));
  on("state", (state) => take(JSON.parse(state)));
  // Where the connection is lost the browser tries again, where the server refuses it does not.
  stream.onerror = () => connected({ on: false, why: "" });
  const watch = setInterval(() => {
    if (Date.now() - heard < 1000 * SILENCE) return;
    clearInterval(watch);
    stream.close();
    connected({ on: false, why: "" });
    follow(take, connected);
  }, 1000);
}
