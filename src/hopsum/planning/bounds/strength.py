"""The strength of a graph: the optimum of an all-reduce in which every node computes.

Contract the blocks of a partition P: with any algorithm, |P| super-nodes that all need the sum of a
vector move it at least |P| - 1 times in each direction over the edges between the blocks (Patarasuk
and Yuan, JPDC 2009), so the rate is at most c(P) / (|P| - 1). The least of these ratios, the
strength, is reached by spanning trees with fractional rates (Tutte and Nash-Williams, 1961).

Found by Newton's method on the ratio (Cunningham, JACM 1985). One step, at rate r, grows the
largest x <= c with x(E[S]) <= r (|S| - 1) for every set S of nodes: the pebble game of Lee and
Streinu (2008) with amounts in place of pebbles. Where x stops growing, a set is tight. Tight sets
that meet merge, and between those that are left every edge is full: they are the partition that
minimises c(P) - r (|P| - 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from hopsum.collectives.plan import PlanError
from hopsum.network.units import format_si
from hopsum.planning.bounds.minimum_cut import integer_capacities
from hopsum.planning.model.forest import Certificate
from hopsum.planning.model.graph import PlanningGraph

_Capacities = Mapping[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class _Partition:
    blocks: list[int]
    """Number of each node's block."""
    count: int
    crossing: int
    """Total capacity between blocks."""

    @property
    def ratio(self) -> Fraction:
        return Fraction(self.crossing, self.count - 1)


def strength(graph: PlanningGraph) -> Certificate:
    """Return the strength of a network, min over partitions P of c(P) / (|P| - 1).

    In units of the graph's capacities; exact. The parts are the blocks of the best partition. Zero
    for a network in pieces. At most n steps of n incremental maximum flows; a few steps in
    practice, each on the network of the last one's blocks.

    PlanError if some node is not a worker (the strength is then no bound) or there is only one.
    """
    if not graph.every_node_works:
        idle = next(name for name in graph.nodes if name not in graph.workers)
        raise PlanError(
            f"{graph.name}: {idle} is not a worker: the strength bounds networks in which every "
            "node works; take the relay or the bidirected-cut bound"
        )
    if len(graph.nodes) < 2:
        raise PlanError(
            f"{graph.name}: one node has no other node to sum with: expected at least two"
        )
    whole, unit = integer_capacities(graph)
    capacities = {(graph.index[u], graph.index[v]): c for (u, v), c in whole.items()}
    best = _weakest(len(graph.nodes), capacities)
    parts: list[list[str]] = [[] for _ in range(best.count)]
    for name, block in zip(graph.nodes, best.blocks, strict=True):
        parts[block].append(name)
    crossing = best.crossing * unit
    return Certificate(
        kind="partition",
        bound=best.ratio * unit,
        parts=tuple(map(tuple, parts)),
        text=(
            f"{best.count} groups of nodes have {format_si(crossing)} of bandwidth between them in "
            f"each direction, and every all-reduce carries its data {best.count - 1} times over "
            f"it: at most {format_si(crossing)} / {best.count - 1} = {format_si(best.ratio * unit)}"
        ),
    )


def strength_of_whole(count: int, capacities: _Capacities) -> Fraction:
    """Return the strength of `count` (>= 2) nodes with integer capacities, without a proof.

    `capacities`: (lower node, higher node) -> above 0.
    """
    return _weakest(count, capacities).ratio


def weakest_blocks(count: int, capacities: _Capacities, rate: int) -> list[int]:
    """Return a partition P that minimises c(P) - rate (|P| - 1).

    That is, for each of `count` nodes its block. The strength is below the rate if and only if this
    is below 0. `capacities`: (lower node, higher node) -> above 0.
    """
    return _Growth(count, capacities, rate).blocks()


def _weakest(count: int, capacities: _Capacities) -> _Partition:
    """Return the partition of least ratio.

    For a lower rate the minimising partitions are coarser: blocks never split again, so each step
    may contract them.
    """
    best = min(_obvious(count, capacities), key=lambda partition: partition.ratio)
    blocks, nodes, edges = list(range(count)), count, capacities
    while True:
        ratio = best.ratio
        scaled = {edge: c * ratio.denominator for edge, c in edges.items()}
        found = weakest_blocks(nodes, scaled, ratio.numerator)
        step = _partition(found, edges)
        if step.count == 1 or step.ratio >= ratio:
            return best
        blocks = [step.blocks[block] for block in blocks]
        nodes, edges = step.count, _contracted(step.blocks, edges)
        best = _Partition(blocks, nodes, step.crossing)


def _obvious(count: int, capacities: _Capacities) -> list[_Partition]:
    """Yield the partition into single nodes, and the node of least capacity against the rest."""
    degree = [0] * count
    for (u, v), capacity in capacities.items():
        degree[u] += capacity
        degree[v] += capacity
    weakest = min(range(count), key=degree.__getitem__)
    return [
        _partition(list(range(count)), capacities),
        _partition([int(node == weakest) for node in range(count)], capacities),
    ]


def _partition(labels: list[int], capacities: _Capacities) -> _Partition:
    """Return a partition from arbitrary block labels; blocks are numbered as they appear."""
    numbers: dict[int, int] = {}
    blocks = [numbers.setdefault(label, len(numbers)) for label in labels]
    crossing = sum(c for (u, v), c in capacities.items() if blocks[u] != blocks[v])
    return _Partition(blocks, len(numbers), crossing)


def _contracted(blocks: list[int], capacities: _Capacities) -> dict[tuple[int, int], int]:
    between: dict[tuple[int, int], int] = {}
    for (u, v), capacity in capacities.items():
        a, b = sorted((blocks[u], blocks[v]))
        if a != b:
            between[a, b] = between.get((a, b), 0) + capacity
    return between


class _Growth:
    """Grows x, node by node, up to `rate` (|S| - 1) in every set S of nodes.

    Every node has a budget of `rate`. One end of an edge pays for its amount in x: `paid[v][w]` is
    what v pays, `payers[w]` are the v that pay for an edge to w, and `free[v]` is what v has left.
    A node w with budget left can take over what v pays for v-w. An edge u-v may grow while u has
    `rate` free (else a set with both in it would exceed its limit), and v pays.
    """

    def __init__(self, count: int, capacities: _Capacities, rate: int) -> None:
        self._adjacent: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        for (u, v), capacity in capacities.items():
            self._adjacent[max(u, v)].append((min(u, v), capacity))
        self._label = list(range(count))
        self._free = [rate] * count
        self._paid: list[dict[int, int]] = [{} for _ in range(count)]
        self._payers: list[set[int]] = [set() for _ in range(count)]

    def blocks(self) -> list[int]:
        """Grow all edges; return a label for each node, equal within a tight set."""
        for node, edges in enumerate(self._adjacent):
            # A new node pays for nothing, so its whole budget is and stays free: the other end
            # pays. A set that becomes tight merges into the node.
            capacity: dict[int, int] = {}
            for peer, amount in edges:
                peer = self._find(peer)
                capacity[peer] = capacity.get(peer, 0) + amount
            for peer, amount in capacity.items():
                if self._find(peer) != node:
                    self._grow(node, peer, amount)
        return [self._find(node) for node in range(len(self._label))]

    def _find(self, node: int) -> int:
        label = self._label
        while label[node] != node:
            label[node] = label[label[node]]
            node = label[node]
        return node

    def _grow(self, node: int, peer: int, amount: int) -> None:
        while self._free[peer] < amount:
            reached, back = self._search(peer, avoid=node)
            giver = reached[-1]
            if giver == peer or not self._free[giver]:
                self._merge(node, reached)
                return
            self._shift(giver, peer, back, amount - self._free[peer])
        self._free[peer] -= amount
        self._pay(peer, node, amount)

    def _search(self, start: int, avoid: int) -> tuple[list[int], dict[int, int]]:
        """Search breadth-first along payments for the first node with budget left."""
        back = {start: start, avoid: avoid}
        queue = [start]
        for node in queue:
            for peer in self._paid[node]:
                if peer not in back:
                    back[peer] = node
                    queue.append(peer)
                    if self._free[peer]:
                        return queue, back
        return queue, back

    def _shift(self, end: int, start: int, back: dict[int, int], wanted: int) -> None:
        """Let every node on the path take over from the previous one."""
        path = [end]
        while path[-1] != start:
            path.append(back[path[-1]])
        path.reverse()
        steps = list(pairwise(path))
        amount = min(wanted, self._free[end], *(self._paid[v][w] for v, w in steps))
        self._free[end] -= amount
        self._free[start] += amount
        for v, w in steps:
            if self._paid[v][w] == amount:
                del self._paid[v][w]
                self._payers[w].discard(v)
            else:
                self._paid[v][w] -= amount
            self._pay(w, v, amount)

    def _pay(self, payer: int, peer: int, amount: int) -> None:
        self._paid[payer][peer] = self._paid[payer].get(peer, 0) + amount
        self._payers[peer].add(payer)

    def _merge(self, node: int, tight: list[int]) -> None:
        """Contract a tight set into `node`: together they have a budget of `rate`, all of it free.

        Nodes outside pay for nothing inside the set, or the search would have reached them.
        """
        inside = {node, *tight}
        for member in tight:
            self._label[member] = node
            for payer in self._payers[member] - inside:
                self._pay(payer, node, self._paid[payer].pop(member))
            self._payers[node].discard(member)
            self._paid[member].clear()
            self._payers[member].clear()
