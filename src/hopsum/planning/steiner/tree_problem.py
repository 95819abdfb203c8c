"""In-network trees on numbered switches: the model of the exact planner, heuristic and bounds.

Allowed routes. Only switches forward; hosts are leaves. Each switch of a tree has one next hop, so
all flows that enter a switch leave it by the same link, and every worker's flow ends at the server.
Any such tree is allowed, even with valleys (leaf - spine - leaf - spine - leaf): up-down routing is
not required, since packets are source-routed. At most `max_switches` switches lie on a worker's
path. A switch that sums makes one flow of up to `max_children` and forwards the rest, so of q >= 2
flows max(1, q - max_children + 1) leave it; one that does not sum forwards all. At most `max_flows`
flows may reach the server.

The time of a fragment is that of its busiest link: frames on it in one direction over its
bandwidth. The objective is to minimise it; the job's rate is its inverse. Upwards every flow
counts; downwards results are one frame per link of the tree (replicated) or per worker below
(unicast).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

from hopsum.collectives.plan import Results
from hopsum.network.model import Network
from hopsum.planning.model.routes import Route, link_loads, make_route
from hopsum.planning.steiner.candidate_trees import Parents
from hopsum.protocol.wire import HOPS_DEFAULT, MAX_CHILDREN

SLACK = 1e-9
"""Relative difference up to which times count as equal."""
_NO_SHARE = 1e-9


@dataclass(frozen=True, slots=True)
class TreeTask:
    """A requested tree: the server, which may be a worker, at its root, the workers at its leaves.

    `sums`: switches that can sum for it. `share`: frames of this tree per fragment of the job.
    `max_flows`: number of flows that may reach the server from the network, None: any. `homes`:
    the switches that hosts are attached to in this tree, where it is not `Network.access_switch`.
    """

    server: str
    workers: tuple[str, ...]
    sums: frozenset[str]
    share: Fraction = Fraction(1)
    results: Results = Results.REPLICATED
    max_flows: int | None = MAX_CHILDREN
    homes: Mapping[str, str] = field(default_factory=dict)

    def access(self, network: Network, host: str) -> str:
        """Return the switch that a host is attached to in this tree.

        NetworkError if the host has no link.
        """
        return self.homes.get(host) or network.access_switch(host)

    @property
    def remote(self) -> tuple[str, ...]:
        """The workers whose packets cross the network: all but one that is the server."""
        return tuple(worker for worker in self.workers if worker != self.server)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on all trees together.

    `max_summing`: number of switches that may sum, over all trees (None: all that can). `ranges`:
    number of trees each switch has slots for; a switch that is not listed has enough.
    `max_switches`: on a path; below `max_hops`, the entries of a packet's stack.
    """

    max_summing: int | None = None
    ranges: Mapping[str, int] = field(default_factory=dict)
    max_children: int = MAX_CHILDREN
    max_switches: int = HOPS_DEFAULT - 1
    max_hops: int = HOPS_DEFAULT


@dataclass(frozen=True, slots=True)
class NumberedTask:
    """A task on switches by number. `local[v]`: workers attached; `exit`: the arc to the server."""

    root: int
    exit: int
    local: tuple[int, ...]
    can_sum: tuple[bool, ...]
    share: float
    unicast: bool
    max_flows: int
    workers: int


@dataclass(frozen=True, slots=True)
class NumberedTree:
    """A solution tree: switch -> next one towards the root, and the switches that may sum."""

    parents: Parents
    summing: frozenset[int]


@dataclass(frozen=True)
class Problem:
    """A problem of finding several trees together. Switches are 0..n-1 in the network's order.

    Arcs are links in one direction, between switches, and from a switch to a server (`head` is -1
    there). Arc a leads from `tail[a]` to `head[a]`, `back[a]` is the other direction (-1: none);
    it carries `capacity[a]` frames per unit of time, and `load[a]` frames of others are on it.
    No trees take less than `floor`, because of the links of hosts.
    """

    switches: tuple[str, ...]
    tail: tuple[int, ...]
    head: tuple[int, ...]
    back: tuple[int, ...]
    capacity: tuple[float, ...]
    load: tuple[float, ...]
    tasks: tuple[NumberedTask, ...]
    ranges: tuple[int, ...]
    floor: float
    limits: Limits

    @cached_property
    def leaving(self) -> tuple[tuple[int, ...], ...]:
        """Return the arcs from each switch to other switches."""
        arcs: list[list[int]] = [[] for _ in self.switches]
        for arc, (v, u) in enumerate(zip(self.tail, self.head, strict=True)):
            if u >= 0:
                arcs[v].append(arc)
        return tuple(tuple(found) for found in arcs)

    @cached_property
    def arc(self) -> Mapping[tuple[int, int], int]:
        """Return the arc between two switches."""
        return {
            (v, u): arc
            for arc, (v, u) in enumerate(zip(self.tail, self.head, strict=True))
            if u >= 0
        }

    def leaves_on(self, flows: int, sums: bool) -> int:
        """Return how many of the flows that meet at a switch leave it."""
        if not sums or flows < 2:
            return flows
        return max(1, flows - self.limits.max_children + 1)

    def outflows(self, task: NumberedTask, chosen: NumberedTree) -> dict[int, int]:
        """Return the flows that leave each switch of a tree, including the root."""
        return {
            v: self.leaves_on(flows, v in chosen.summing)
            for v, flows in self.inflows(task, chosen).items()
        }

    def inflows(self, task: NumberedTask, chosen: NumberedTree) -> dict[int, int]:
        """Return the flows that meet at each switch of a tree, from the leaves upwards."""
        waiting = dict.fromkeys((*chosen.parents, task.root), 0)
        for parent in chosen.parents.values():
            waiting[parent] += 1
        meet = {v: task.local[v] for v in waiting}
        done: dict[int, int] = {}
        ready = [v for v, count in waiting.items() if not count]
        for v in ready:
            done[v] = meet[v]
            if v != task.root:
                parent = chosen.parents[v]
                meet[parent] += self.leaves_on(meet[v], v in chosen.summing)
                waiting[parent] -= 1
                if not waiting[parent]:
                    ready.append(parent)
        return done

    def used(self, task: NumberedTask, chosen: NumberedTree) -> frozenset[int]:
        """Return the switches of a tree at which flows are summed."""
        meet = self.inflows(task, chosen)
        return frozenset(v for v in chosen.summing if meet.get(v, 0) > 1)

    def loads(self, task: NumberedTask, chosen: NumberedTree) -> dict[int, float]:
        """Return the frames of one tree on each arc for one fragment of the job."""
        loads: dict[int, float] = {}
        out = self.outflows(task, chosen)
        below = (
            self.outflows(task, NumberedTree(chosen.parents, frozenset())) if task.unicast else {}
        )
        for v, parent in chosen.parents.items():
            arc = self.arc[v, parent]
            loads[arc] = loads.get(arc, 0.0) + task.share * out[v]
            down = self.back[arc]
            loads[down] = loads.get(down, 0.0) + task.share * below.get(v, 1)
        loads[task.exit] = task.share * out[task.root]
        return loads

    def time(self, chosen: Sequence[NumberedTree]) -> float:
        """Return the time of the busiest link under trees, one per task."""
        total: dict[int, float] = {}
        for task, one in zip(self.tasks, chosen, strict=True):
            for arc, load in self.loads(task, one).items():
                total[arc] = total.get(arc, self.load[arc]) + load
        return max(self.floor, max(load / self.capacity[arc] for arc, load in total.items()), 0.0)

    def levels(self, task: NumberedTask, parents: Parents) -> dict[int, int]:
        """Return the number of switches from each switch of a tree to its root, including both."""
        levels = {task.root: 1}
        for v in parents:
            way = []
            while v not in levels:
                way.append(v)
                v = parents[v]
            for node in reversed(way):
                levels[node] = levels[parents[node]] + 1
        return levels

    def pruned(self, task: NumberedTask, parents: Parents) -> Parents:
        """Return the part of a tree that leads from workers to the root."""
        kept: Parents = {}
        for v, count in enumerate(task.local):
            if count:
                while v != task.root and v not in kept:
                    kept[v] = parents[v]
                    v = parents[v]
        return kept

    def joins(self, task: NumberedTask, parents: Parents) -> bool:
        """Return whether every worker's switch has one path to the root, over existing links."""
        if any(pair not in self.arc for pair in parents.items()):
            return False
        joined = {task.root}
        for v in (*parents, *(v for v, count in enumerate(task.local) if count)):
            way = {v}
            while v not in joined:
                if v not in parents or parents[v] in way:
                    return False
                v = parents[v]
                way.add(v)
            joined |= way
        return task.root not in parents

    def fits(self, chosen: Sequence[NumberedTree]) -> bool:
        """Return whether these are trees within the limits on depth, flows, slots and summing."""
        summing: set[int] = set()
        taken = [0] * len(self.switches)
        for task, one in zip(self.tasks, chosen, strict=True):
            if not self.joins(task, one.parents):
                return False
            out = self.outflows(task, one)
            if out[task.root] > task.max_flows:
                return False
            if max(self.levels(task, one.parents).values()) > self.limits.max_switches:
                return False
            for v in self.used(task, one):
                if not task.can_sum[v]:
                    return False
                summing.add(v)
                taken[v] += 1
        most = self.limits.max_summing
        return (most is None or len(summing) <= most) and all(
            count <= ranges for count, ranges in zip(taken, self.ranges, strict=True)
        )

    def variant(
        self,
        tasks: tuple[NumberedTask, ...],
        more: Mapping[int, float] | None = None,
        limits: Limits | None = None,
    ) -> Problem:
        """Return a problem of other tasks on these switches, with `more` frames on some arcs."""
        load = list(self.load)
        for arc, frames in (more or {}).items():
            load[arc] += frames
        problem = replace(self, tasks=tasks, load=tuple(load), limits=limits or self.limits)
        # Both depend only on the arcs and are costly to recompute for every tree.
        problem.__dict__.update(leaving=self.leaving, arc=self.arc)
        return problem


def build_model(
    network: Network,
    tasks: Sequence[TreeTask],
    limits: Limits | None = None,
) -> Problem:
    """Return tasks on numbered switches.

    Links without a bandwidth count as unlimited, or all as 1 if none has one. NetworkError if a
    host has no link.
    """
    limits = limits or Limits()
    number = {name: v for v, name in enumerate(network.switches)}
    capacity_of = _Capacities(network)
    fixed: dict[tuple[str, str], float] = {}
    for task in tasks:
        share = float(task.share)
        down = share * (len(task.remote) if task.results is Results.UNICAST else 1)
        root = task.access(network, task.server)
        _add(fixed, (task.server, root), down)
        for worker in task.remote:
            switch = task.access(network, worker)
            _add(fixed, (worker, switch), share)
            _add(fixed, (switch, worker), share)
    arcs = [pair for pair in network.directed_links() if number.keys() >= set(pair)]
    index = {pair: arc for arc, pair in enumerate(arcs)}
    for exit_ in dict.fromkeys((task.access(network, task.server), task.server) for task in tasks):
        index[exit_] = len(arcs)
        arcs.append(exit_)
    return Problem(
        switches=tuple(network.switches),
        tail=tuple(number[v] for v, _ in arcs),
        head=tuple(number.get(u, -1) for _, u in arcs),
        back=tuple(index.get((u, v), -1) for v, u in arcs),
        capacity=tuple(capacity_of(*pair) for pair in arcs),
        load=tuple(fixed.get(pair, 0.0) for pair in arcs),
        tasks=tuple(
            _numbered(network, task, number, index[task.access(network, task.server), task.server])
            for task in tasks
        ),
        ranges=tuple(limits.ranges.get(name, len(tasks)) for name in network.switches),
        floor=max((load / capacity_of(*pair) for pair, load in fixed.items() if load), default=0.0),
        limits=limits,
    )


def _add(loads: dict[tuple[str, str], float], pair: tuple[str, str], more: float) -> None:
    loads[pair] = loads.get(pair, 0.0) + more


class _Capacities:
    def __init__(self, network: Network) -> None:
        self.network = network
        self.unlimited = all(link.bandwidth is None for link in network.links)

    def __call__(self, u: str, v: str) -> float:
        bandwidth = self.network.link(u, v).bandwidth
        if bandwidth is not None:
            return bandwidth
        return 1.0 if self.unlimited else float("inf")


def _numbered(
    network: Network, task: TreeTask, number: Mapping[str, int], leaving: int
) -> NumberedTask:
    local = [0] * len(number)
    for worker in task.remote:
        local[number[task.access(network, worker)]] += 1
    return NumberedTask(
        root=number[task.access(network, task.server)],
        exit=leaving,
        local=tuple(local),
        can_sum=tuple(name in task.sums for name in network.switches),
        # A tree without a share still needs paths; it hardly loads links.
        share=float(task.share) or _NO_SHARE,
        unicast=task.results is Results.UNICAST,
        max_flows=len(task.remote) if task.max_flows is None else task.max_flows,
        workers=len(task.remote),
    )


def route_of(
    network: Network, problem: Problem, number: int, task: TreeTask, found: NumberedTree
) -> Route:
    """Return the route of the tree of task `number`."""
    names = problem.switches
    parents = {worker: task.access(network, worker) for worker in task.remote}
    for v in sorted(found.parents):
        parents[names[v]] = names[found.parents[v]]
    parents[names[problem.tasks[number].root]] = task.server
    sums = {names[v] for v in found.summing}
    return make_route(
        network, task.workers, parents, task.server, sums, problem.limits.max_children
    )


def exact_time(network: Network, pairs: Iterable[tuple[TreeTask, Route]]) -> Fraction:
    """Return the time of the busiest link under routes, without rounding: frames over bit/s."""
    return max(link_times(network, pairs), default=Fraction(0))


def link_times(network: Network, pairs: Iterable[tuple[TreeTask, Route]]) -> tuple[Fraction, ...]:
    """Return the times of all links under routes, as `exact_time`, the longest first."""
    total: dict[tuple[str, str], Fraction] = {}
    for task, route in pairs:
        for link, load in link_loads(route, task.results).items():
            total[link] = total.get(link, Fraction(0)) + task.share * int(load)
    unlimited = all(link.bandwidth is None for link in network.links)
    times = []
    for (u, v), frames in total.items():
        bandwidth = network.link(u, v).bandwidth
        if bandwidth is not None or unlimited:
            times.append(frames / Fraction(str(bandwidth or 1)))
    return tuple(sorted(times, reverse=True))
