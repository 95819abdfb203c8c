"""Spanning trees by edge numbers: minimum trees, heights, roots, and when there can be none.

In [000][] every node is a worker. So it is here, except for helpers: nodes that combine, which
a tree may or may not contain. Edges are numbered in the order of their ends' numbers; a tree is the
sorted tuple of its edges.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hopsum.collectives.plan import PlanError
from hopsum.network.model import shorten
from hopsum.planning.model.forest import ForestOptions, RatedTree
from hopsum.planning.model.graph import PlanningGraph

Tree = tuple[int, ...]
Lengths = NDArray[np.float64]
TICKS = 10**12
"""Latencies are whole picoseconds, so that equal sums are equal ([000][]: quantised)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on a tree's height, in edges and in picoseconds; None: no limit."""

    height: int | None = None
    delay: int | None = None

    @property
    def none(self) -> bool:
        """Return whether every spanning tree is allowed."""
        return self.height is None and self.delay is None


def limits_of(options: ForestOptions) -> Limits:
    """Return the limits that the options set."""
    delay = options.max_delay
    return Limits(options.max_height, None if delay is None else round(delay * TICKS))


class NumberedEdges:
    """Nodes and edges by numbers, parallel edges allowed; at least one edge."""

    def __init__(
        self, size: int, ends: Sequence[tuple[int, int]], capacity: Sequence[Fraction]
    ) -> None:
        self.size = size
        self.ends = list(ends)
        self.capacity = list(capacity)
        largest = max(self.capacity)
        self.shares = np.array([float(capacity / largest) for capacity in self.capacity])
        """Capacities as floats, the largest 1."""

    @cached_property
    def unit(self) -> Fraction:
        """Return the largest rate of which all capacities are integer multiples."""
        scale = math.lcm(*(capacity.denominator for capacity in self.capacity))
        return Fraction(math.gcd(*(int(capacity * scale) for capacity in self.capacity)), scale)


class NumberedGraph(NumberedEdges):
    """A planning graph by numbers, of two workers or more.

    `terminals`: the numbers of the workers. PlanError for a node that is not a worker, unless it
    combines and `helpers` are allowed.
    """

    def __init__(self, graph: PlanningGraph, *, helpers: bool = False) -> None:
        allowed = graph.workers | graph.combines if helpers else graph.workers
        idle = [name for name in graph.nodes if name not in allowed]
        if idle:
            raise PlanError(
                f"{graph.name}: trees of hosts need every node to be a worker; these are none: "
                f"{shorten(idle)}"
            )
        self.terminals = [i for i, name in enumerate(graph.nodes) if name in graph.workers]
        if len(self.terminals) < 2:
            alone = graph.nodes[self.terminals[0]]
            raise PlanError(
                f"{graph.name}: {alone} is alone: an all-reduce needs two nodes or more"
            )
        self.graph = graph
        keys = sorted(graph.capacity, key=lambda edge: (graph.index[edge[0]], graph.index[edge[1]]))
        super().__init__(
            len(graph.nodes),
            [(graph.index[u], graph.index[v]) for u, v in keys],
            [graph.capacity[key] for key in keys],
        )
        self.delay = [round(graph.latency[key] * TICKS) for key in keys]
        self.tails = np.array([u for u, _ in self.ends], dtype=np.int64)
        self.heads = np.array([v for _, v in self.ends], dtype=np.int64)
        self._keys = self.tails * self.size + self.heads
        self._starts = np.searchsorted(self.tails, np.arange(self.size + 1)).astype(np.int32)

    @cached_property
    def links(self) -> list[list[tuple[int, int]]]:
        """Return the (edge, neighbour) pairs of every node."""
        return self.adjacency(range(len(self.ends)))

    def adjacency(self, edges: Iterable[int]) -> list[list[tuple[int, int]]]:
        """Return the (edge, neighbour) pairs of every node in a subgraph."""
        links: list[list[tuple[int, int]]] = [[] for _ in range(self.size)]
        for edge in edges:
            u, v = self.ends[edge]
            links[u].append((edge, v))
            links[v].append((edge, u))
        return links

    def minimum_tree(self, lengths: Lengths) -> NDArray[np.int64]:
        """Return the edges of a minimum spanning tree.

        Lengths are 0 or more, infinite ones last.
        """
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import minimum_spanning_tree

        # The routine reads 0 as 'no edge', and breaks ties by position: the shift keeps the order.
        shifted = lengths + (1e-12 + 1e-12 * float(lengths.max()))
        matrix = csr_matrix((shifted, self.heads, self._starts), shape=(self.size, self.size))
        found = minimum_spanning_tree(matrix).tocoo()
        keys = found.row.astype(np.int64) * self.size + found.col
        return np.sort(np.searchsorted(self._keys, keys))

    def order(self, edges: Sequence[int], root: int) -> list[tuple[int, int, int]]:
        """Return (edge, parent, child) of a tree's edges, from its root downwards."""
        links = self.adjacency(edges)
        found = []
        stack = [(root, -1)]
        for node, parent in stack:
            for edge, child in links[node]:
                if child != parent:
                    found.append((edge, node, child))
                    stack.append((child, node))
        return found

    def nodes_of(self, edges: Iterable[int]) -> list[int]:
        """Return the nodes of a tree, in order."""
        return sorted({node for edge in edges for node in self.ends[edge]})

    def joining(self, edges: Sequence[int]) -> Tree:
        """Return a tree without the branches that hold no worker."""
        if len(self.terminals) == self.size:
            return tuple(sorted(edges))
        links = self.adjacency(edges)
        degree = [len(near) for near in links]
        terminals, kept = set(self.terminals), set(edges)
        loose = [v for v in range(self.size) if degree[v] == 1 and v not in terminals]
        for node in loose:
            for edge, peer in links[node]:
                if edge in kept:
                    kept.remove(edge)
                    degree[peer] -= 1
                    if degree[peer] == 1 and peer not in terminals:
                        loose.append(peer)
        return tuple(sorted(kept))

    def eccentricities(self, edges: Sequence[int], weights: Sequence[int]) -> list[int]:
        """Return each node's distance to the farthest node of a tree; 0 for nodes outside it."""
        first = self._distances(edges, weights, self.ends[edges[0]][0])
        one = max(range(self.size), key=first.__getitem__)
        from_one = self._distances(edges, weights, one)
        other = max(range(self.size), key=from_one.__getitem__)
        from_other = self._distances(edges, weights, other)
        return [max(a, b) for a, b in zip(from_one, from_other, strict=True)]

    def _distances(self, edges: Sequence[int], weights: Sequence[int], root: int) -> list[int]:
        distance = [0] * self.size
        for edge, parent, child in self.order(edges, root):
            distance[child] = distance[parent] + weights[edge]
        return distance

    @cached_property
    def hops(self) -> list[int]:
        """Return the weights that count edges."""
        return [1] * len(self.ends)

    def best_root(self, edges: Sequence[int], limits: Limits) -> int | None:
        """Return the root that makes a tree lowest; None if none meets the limits.

        The first of several. Lowest in picoseconds where these are limited, else in edges.
        """
        heights = self.eccentricities(edges, self.hops)
        delays = self.eccentricities(edges, self.delay) if any(self.delay) else heights
        fits = [
            node
            for node in range(self.size)
            if (limits.height is None or heights[node] <= limits.height)
            and (limits.delay is None or not any(self.delay) or delays[node] <= limits.delay)
        ]
        if limits.delay is None:
            return min(fits, key=lambda node: (heights[node], delays[node], node), default=None)
        return min(fits, key=lambda node: (delays[node], heights[node], node), default=None)

    def rated(self, edges: Sequence[int], root: int, rate: Fraction) -> RatedTree:
        """Return a tree by names, with its rate."""
        names = self.graph.nodes
        parents = {names[child]: names[parent] for _, parent, child in self.order(edges, root)}
        return RatedTree(names[root], parents, rate, {})

    def shortest(self, root: int, weights: Sequence[int], usable: Sequence[bool]) -> list[float]:
        """Return distances from a node over usable edges, infinite where there is no path."""
        distance = [float("inf")] * self.size
        distance[root] = 0
        heap = [(0.0, root)]
        while heap:
            far, node = heapq.heappop(heap)
            if far > distance[node]:
                continue
            for edge, peer in self.links[node]:
                reached = far + weights[edge]
                if usable[edge] and reached < distance[peer]:
                    distance[peer] = reached
                    heapq.heappush(heap, (reached, peer))
        return distance


def check_possible(numbered: NumberedGraph, options: ForestOptions) -> list[int]:
    """Return the nodes that can be the root of a tree within the options.

    The tree must hold all workers; PlanError if there is no root. With both limits given, a listed
    node meets each of them, perhaps not both in one tree.
    """
    _check_options(options)
    graph, names = numbered.graph, numbered.graph.nodes
    usable = [capacity >= options.min_rate for capacity in numbered.capacity]
    terminals = numbered.terminals
    reached = numbered.shortest(terminals[0], numbered.hops, usable)
    inside = {node for node in range(numbered.size) if reached[node] < float("inf")}
    if not inside.issuperset(terminals):
        fastest = max(
            capacity
            for (u, v), capacity in zip(numbered.ends, numbered.capacity, strict=True)
            if (u in inside) != (v in inside)
        )
        smaller = min(inside, set(range(numbered.size)) - inside, key=lambda s: (len(s), min(s)))
        raise PlanError(
            f"{graph.name}: no tree has the rate {_number(options.min_rate)} asked for: the "
            f"fastest edge out of {{{shorten(names[node] for node in sorted(smaller))}}} has "
            f"{_number(fastest)}; ask for at most that (min_rate)"
        )
    limits = limits_of(options)
    roots = list(range(numbered.size))
    for limit, weights, what, scale in (
        (limits.height, numbered.hops, "edges", 1),
        (limits.delay, numbered.delay, "s", TICKS),
    ):
        if limit is None:
            continue
        far = []
        for root in range(numbered.size):
            distance = numbered.shortest(root, weights, usable)
            far.append(max(distance[node] for node in terminals))
        best = min(range(numbered.size), key=lambda root: (far[root], root))
        if far[best] > limit:
            raise PlanError(
                f"{graph.name}: no tree is as low as {limit / scale:g} {what}: the lowest"
                f"{' of that rate' if options.min_rate else ''} is rooted at {names[best]} and "
                f"has {far[best] / scale:g} {what}; ask for at least that"
            )
        roots = [root for root in roots if far[root] <= limit]
    if not roots:
        raise PlanError(
            f"{graph.name}: no node is within both {limits.height} edges and "
            f"{options.max_delay:g} s of all others; ask for more of one"
        )
    return roots


def _check_options(options: ForestOptions) -> None:
    """Raise PlanError for options that trees of hosts refuse beyond what `ForestOptions` does."""
    trees = options.max_trees
    for name, value, fits, wanted in (
        ("max_trees", trees, trees is None or trees >= 1, "1 or more"),
        ("keep", options.keep, 0 < options.keep <= 1, "above 0 to 1"),
        ("gap", options.gap, 0 <= options.gap < 1, "from 0 to below 1"),
        ("time_limit", options.time_limit, options.time_limit > 0, "above 0 s"),
    ):
        if not fits:
            raise PlanError(f"{name} {value}: expected {wanted}")


def _number(value: Fraction) -> str:
    return f"{float(value):g}"
