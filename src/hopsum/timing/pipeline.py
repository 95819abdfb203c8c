"""Trees of a plan in closed form: bytes on every link, and the packets of a window in time.

Bytes are of whole Ethernet frames without FCS and exact for a run without retransmissions.
Seconds come from a store-and-forward recurrence over the packets, without queue limits and
without the time that hosts and switches compute: every link sends its frames in order of arrival at
its bandwidth, a sum leaves a switch when its last child is there, and a worker sends fragment f + W
when it has the result of f. Trees that share a link are given its bandwidth in proportion to
their bytes on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hopsum.collectives.flows import Flow, TreeFlows, tree_flows
from hopsum.collectives.operation import (
    Fragments,
    Lanes,
    fragments_of,
    lanes_of,
    prologue_lanes_of,
)
from hopsum.collectives.plan import JobPlan, Results, TreePlan
from hopsum.network.model import Network
from hopsum.protocol.wire import frame_bytes
from hopsum.timing.work import DirectedLink, PlanWork, SwitchLoad

Times = NDArray[np.float64]

_SAME = 1e-9


def pipeline(network: Network, work: PlanWork) -> tuple[dict[DirectedLink, int], float]:
    """Return bytes on each directed link, and seconds, of one round of a plan's trees.

    The tensors of a round are submitted together. Links without any bytes are left out.
    """
    plan = work.plan
    flows = [tree_flows(network, plan, tree) for tree in plan.trees]
    counts = _fragments(work)
    whole, bare_lanes = lanes_of(plan, work.collective), prologue_lanes_of(plan)
    by_tree: list[dict[DirectedLink, int]] = []
    for tree, fragments in zip(flows, counts, strict=True):
        links: dict[DirectedLink, int] = {}
        bare, full = (sum(counts) for counts in zip(*fragments, strict=True))
        for groups, lanes, few in zip((tree.up, tree.down), whole, bare_lanes, strict=True):
            for flow in (flow for flows in groups.values() for flow in flows):
                size = frame_bytes(lanes, flow.hops) * full
                size += frame_bytes(few, flow.hops) * bare
                links[flow.u, flow.v] = links.get((flow.u, flow.v), 0) + size
        by_tree.append(links)
    total: dict[DirectedLink, int] = {}
    for links in by_tree:
        for link, size in links.items():
            if size:
                total[link] = total.get(link, 0) + size
    seconds = 0.0
    for tree, tree_plan, fragments, links in zip(flows, plan.trees, counts, by_tree, strict=True):
        shares = {link: size / total[link] for link, size in links.items() if size}
        packets = _Pipeline(network, plan, tree_plan, tree, shares, whole)
        seconds = max(seconds, packets.run(fragments))
    return total, seconds


def switch_loads(network: Network, work: PlanWork) -> dict[str, SwitchLoad]:
    """Return the load of a plan's trees at each of their switches, over all rounds.

    Exact for a run without retransmissions, as the bytes of `pipeline`.
    """
    plan, loads = work.plan, dict[str, SwitchLoad]()
    for tree, fragments in zip(plan.trees, _fragments(work), strict=True):
        flows = tree_flows(network, plan, tree)
        count = work.rounds * sum(each.total for each in fragments)
        entering = Counter(flow.v for flow in flows.all())
        for name, part in tree.parts.items():
            before = loads.get(name, SwitchLoad())
            loads[name] = SwitchLoad(
                before.packets + count * entering[name],
                before.sums + (count if flows.summed[name] else 0),
                before.slots + (plan.window if part.aggregate else 0),
            )
    return loads


def _fragments(work: PlanWork) -> list[list[Fragments]]:
    """Return the fragments of each tensor, by tree."""
    of_tensors = [
        fragments_of(work.plan, work.collective, *tensor, work.wire_bits) for tensor in work.tensors
    ]
    return [[counts[number] for counts in of_tensors] for number in range(len(work.plan.trees))]


def round_trips(
    network: Network,
    plan: JobPlan,
    tree: TreePlan,
    flows: TreeFlows,
    first: Lanes,
    second: Lanes,
) -> tuple[float, float]:
    """Return the seconds of a fragment's round trip on idle links, and until the next one's end.

    A worker sends the next when it has the result, which may be earlier for some than for others.
    """
    whole = {(flow.u, flow.v): 1.0 for flow in flows.all()}
    done = np.zeros((len(plan.workers), 1))
    ends = []
    for size in (first, second):
        done = _Pipeline(network, plan, tree, flows, whole, size).send(done)
        ends.append(float(done.max()))
    return ends[0], ends[1]


@dataclass(slots=True)
class _Wire:
    """One direction of a link: `free` is when its queue is empty."""

    seconds_a_byte: float
    latency: float
    free: float = 0.0

    def send(self, arrivals: Times, sizes: Times) -> Times:
        """Return when frames (n,) that arrive here at `arrivals` reach the other end."""
        if not self.seconds_a_byte:
            return arrivals + self.latency
        order = np.argsort(arrivals, kind="stable")
        spent = np.cumsum(sizes[order]) * self.seconds_a_byte
        before = np.concatenate(([0.0], spent[:-1]))
        start = np.maximum(arrivals[order], self.free)
        sent = np.empty_like(arrivals)
        sent[order] = spent + np.maximum.accumulate(start - before)
        self.free = float(sent[order[-1]])
        return sent + self.latency


@dataclass
class _Pipeline:
    """The packets of one tree in time, a window of fragments at once."""

    network: Network
    plan: JobPlan
    tree: TreePlan
    flows: TreeFlows
    shares: dict[DirectedLink, float]
    lanes: Lanes
    wires: dict[DirectedLink, _Wire] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for u, v in self.shares:
            link = self.network.link(u, v)
            byte = 8 / (link.bandwidth * self.shares[u, v]) if link.bandwidth else 0.0
            self.wires[u, v] = _Wire(byte, link.latency)

    def run(self, fragments: Sequence[Fragments]) -> float:
        """Return the seconds until all workers have the results of tensors of some fragments."""
        workers, window = len(self.plan.workers), self.plan.in_flight
        done = np.zeros((workers, window))
        first = 0
        for prologues, data in fragments:
            if prologues:
                slots = (first + np.arange(prologues)) % window
                done[:, slots] = self.send(done[:, slots], prologue_lanes_of(self.plan))
                scale = done[:, slots].max(axis=1)
                first += prologues
                head = min(window, data)
                slots = (first + np.arange(head)) % window
                done[:, slots] = self.send(np.maximum(done[:, slots], scale[:, None]))
                first, data = first + head, data - head
            self._many(done, first, data)
            first += data
        return float(done.max())

    def _many(self, done: Times, first: int, count: int) -> None:
        """Send `count` fragments, each when its slot is free; skips ahead once time repeats."""
        window = self.plan.in_flight
        slots = (first + np.arange(window)) % window
        step_before: Times | None = None
        while count >= window:
            before = done[:, slots]
            done[:, slots] = self.send(before)
            count -= window
            step = done[:, slots] - before
            if step_before is not None and float(np.ptp([step, step_before])) <= _SAME * max(
                float(step.max()), 1e-30
            ):
                skipped = (count // window) * float(step.mean())
                done += skipped
                for wire in self.wires.values():
                    wire.free += skipped
                count %= window
            step_before = step
        if count:
            rest = slots[:count]
            done[:, rest] = self.send(done[:, rest])

    def send(self, ready: Times, lanes: Lanes | None = None) -> Times:
        """Return when workers have the results (workers, n) of fragments sent at `ready`.

        `lanes`: of their packets, instead of the usual ones.
        """
        lanes = self.lanes if lanes is None else lanes
        arrived: dict[str, list[Times]] = {name: [] for name in self.flows.inputs}
        for node, flows in self.flows.up.items():
            if node in self.tree.parts:
                merged = self.flows.summed[node]
                times = arrived[node]
                leaving = [np.maximum.reduce([times[i] for i in merged])] if merged else []
                leaving += [times[i] for i in range(len(times)) if i not in merged]
            else:
                leaving = [ready[flow.workers[0]] for flow in flows]
            for flow, sent in zip(flows, self._send(flows, leaving, lanes.up), strict=True):
                arrived[flow.v].append(sent)
        results = np.empty_like(ready)
        total = np.maximum.reduce(arrived[self.tree.server])
        if self.tree.server in self.plan.workers:
            own = self.plan.workers.index(self.tree.server)
            total = results[own] = np.maximum(total, ready[own])
        here: dict[tuple[str, tuple[int, ...]], Times] = {}
        copied = self.plan.results is Results.REPLICATED
        for node, flows in self.flows.down.items():
            leaving = [
                total if node == self.tree.server else here[node, () if copied else flow.workers]
                for flow in flows
            ]
            by_next: dict[str, list[int]] = {}
            for i, flow in enumerate(flows):
                by_next.setdefault(flow.v, []).append(i)
            for numbers in by_next.values():
                group = [flows[i] for i in numbers]
                times = self._send(group, [leaving[i] for i in numbers], lanes.down)
                for flow, sent in zip(group, times, strict=True):
                    here[flow.v, () if copied else flow.workers] = sent
                    if flow.v not in self.tree.parts:
                        results[flow.workers[0]] = sent
        return results

    def _send(self, flows: Sequence[Flow], leaving: Sequence[Times], lanes: int) -> list[Times]:
        """Send flows of one link, fragment by fragment in order of time."""
        if not flows:
            return []
        wire = self.wires[flows[0].u, flows[0].v]
        sizes = [float(frame_bytes(lanes, flow.hops)) for flow in flows]
        stacked = np.stack(leaving, axis=1)
        length, width = stacked.shape
        sent = wire.send(stacked.ravel(), np.tile(sizes, length)).reshape(length, width)
        return [sent[:, i] for i in range(width)]
