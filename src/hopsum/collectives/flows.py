"""Packets of a plan on each link: one flow per link and stream of fragments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hopsum.collectives.plan import JobPlan, Results, TreePlan
from hopsum.network.model import Network


@dataclass(frozen=True, slots=True)
class Flow:
    """One packet a fragment from node `u` to its neighbour `v`.

    `workers`: those it sums (up) or goes to (down). `hops`: entries of its stack on this link.
    """

    u: str
    v: str
    workers: tuple[int, ...]
    hops: int


@dataclass(frozen=True, slots=True)
class TreeFlows:
    """All flows of a tree.

    `up`: grouped by the node they leave, leaves first; a switch's first flow out is the sum if
    `summed[switch]` (the indices of the flows in that it sums) is not empty, then those that pass,
    in the order they came in. `down`: likewise grouped, server first.
    """

    up: dict[str, tuple[Flow, ...]]
    inputs: dict[str, tuple[Flow, ...]]
    summed: dict[str, tuple[int, ...]]
    down: dict[str, tuple[Flow, ...]]

    def all(self) -> Iterator[Flow]:
        """Yield every flow, upwards and downwards."""
        for flows in (*self.up.values(), *self.down.values()):
            yield from flows


def tree_flows(network: Network, plan: JobPlan, tree: TreePlan) -> TreeFlows:
    """Follow a tree's stacks up, and its results down. The plan must hold (`plan_checker`)."""
    depth = {tree.server: 0}

    def depth_of(node: str) -> int:
        if node not in depth:
            depth[node] = depth_of(tree.parents[node]) + 1
        return depth[node]

    order = sorted(tree.parts, key=lambda name: -depth_of(name))
    up: dict[str, tuple[Flow, ...]] = {}
    inputs: dict[str, list[Flow]] = {name: [] for name in (*order, tree.server)}
    for w, worker in enumerate(plan.workers):
        if worker == tree.server:
            continue  # its part reaches the server without a packet
        first = Flow(worker, tree.parents[worker], (w,), len(tree.up[w]))
        up[worker] = (first,)
        inputs[first.v].append(first)
    summed: dict[str, tuple[int, ...]] = {}
    for name in order:
        merged: list[int] = []
        passing: list[int] = []
        for i, flow in enumerate(inputs[name]):
            stack = tree.up[flow.workers[0]]
            entry = stack[len(stack) - flow.hops]
            (merged if entry.aggregate else passing).append(i)
        summed[name] = tuple(merged)
        parent = tree.parents[name]
        leaving = []
        if merged:
            workers = tuple(sorted(w for i in merged for w in inputs[name][i].workers))
            leaving.append(Flow(name, parent, workers, inputs[name][merged[0]].hops - 1))
        for i in passing:
            flow = inputs[name][i]
            leaving.append(Flow(name, parent, flow.workers, flow.hops - 1))
        up[name] = tuple(leaving)
        inputs[parent] += leaving
    return TreeFlows(
        up=up,
        inputs={name: tuple(flows) for name, flows in inputs.items()},
        summed=summed,
        down=_down(network, plan, tree, order[::-1]),
    )


def _down(
    network: Network, plan: JobPlan, tree: TreePlan, order: list[str]
) -> dict[str, tuple[Flow, ...]]:
    """Return flows of results: one a link if switches copy them, else one a link and worker."""
    root = tree.root
    workers = {name: w for w, name in enumerate(plan.workers)}
    beneath: dict[str, list[int]] = {name: [] for name in order}
    remote = [w for w, worker in enumerate(plan.workers) if worker != tree.server]
    for w in remote:
        node = tree.parents[plan.workers[w]]
        while node != tree.server:
            beneath[node].append(w)
            node = tree.parents[node]
    down: dict[str, tuple[Flow, ...]] = {}
    if plan.results is Results.REPLICATED:
        down[tree.server] = (Flow(tree.server, root, tuple(beneath[root]), 0),)
        for name in order:
            peers = [network.neighbour(name, port) for port in tree.parts[name].ports_down]
            down[name] = tuple(
                Flow(
                    name,
                    peer,
                    (workers[peer],) if peer in workers else tuple(beneath[peer]),
                    0,
                )
                for peer in peers
            )
        return down
    down[tree.server] = tuple(Flow(tree.server, root, (w,), len(tree.down[w])) for w in remote)
    left = {w: len(stack) for w, stack in enumerate(tree.down)}
    for name in order:
        flows = []
        for w in beneath[name]:
            entry = tree.down[w][len(tree.down[w]) - left[w]]
            left[w] -= 1
            flows.append(Flow(name, network.neighbour(name, entry.port), (w,), left[w]))
        down[name] = tuple(flows)
    return down
