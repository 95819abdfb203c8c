"""Trees of equal rates, exactly: so many spanning trees that no edge is in more than its copies.

By Tutte and Nash-Williams (1961) there are N of them if and only if N is at most the strength of
the graph with those copies; they are found as a union of matroids (Edmonds 1968): start from N
light trees, then move one edge use at a time off an edge in too many trees, along a shortest
sequence of exchanges.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from controller.planners.spanning_trees import NumberedGraph, Tree

Uses = NDArray[np.int64]


class _Packing:
    """N spanning trees, and how often each edge is used."""

    def __init__(self, numbered: NumberedGraph, copies: Sequence[int], seed: int) -> None:
        self.numbered = numbered
        self.copies: Uses = np.array(copies, dtype=np.int64)
        self.uses: Uses = np.zeros(len(copies), dtype=np.int64)
        self.trees: list[set[int]] = []
        self._random = np.random.default_rng(seed)
        self._tours: dict[int, tuple[Uses, Uses]] = {}

    def add_light_tree(self) -> None:
        """Add a tree of the edges that are used least for their copies, ties at random."""
        shuffle = 1e-6 * self._random.random(len(self.copies))
        lengths = np.where(self.copies > 0, self.uses / np.maximum(self.copies, 1) + shuffle, 1e6)
        edges = self.numbered.minimum_tree(lengths)
        self.uses[edges] += 1
        self.trees.append(set(edges.tolist()))

    def overused(self) -> NDArray[np.int64]:
        """Edges in more trees than they have copies."""
        return np.flatnonzero(self.uses > self.copies)

    def relieve(self, edge: int) -> bool:
        """Take an edge out of one tree, by a shortest sequence of exchanges; whether there is one.

        Breadth first: an exchange in a tree puts an edge across the cut that the last one leaves.
        Along a shortest sequence all exchanges hold together, even several in one tree.
        """
        came: dict[int, tuple[int, int]] = {edge: (-1, -1)}
        queue = [edge]
        fresh = np.ones(len(self.copies), dtype=bool)
        fresh[edge] = False
        for leaving in queue:
            for number, tree in enumerate(self.trees):
                if leaving not in tree:
                    continue
                crossing = np.flatnonzero(self._crossing(number, leaving) & fresh)
                free = crossing[self.uses[crossing] < self.copies[crossing]]
                if len(free):
                    roomiest = np.argmax(1 - self.uses[free] / self.copies[free])
                    self._exchange(came, int(free[roomiest]), leaving, number)
                    return True
                fresh[crossing] = False
                for entering in crossing.tolist():
                    came[entering] = (leaving, number)
                    queue.append(entering)
        return False

    def _exchange(
        self, came: dict[int, tuple[int, int]], entering: int, leaving: int, number: int
    ) -> None:
        self.uses[entering] += 1
        while leaving >= 0:
            self.trees[number].remove(leaving)
            self.trees[number].add(entering)
            self._tours.pop(number, None)
            entering, (leaving, number) = leaving, came[leaving]
        self.uses[entering] -= 1

    def _crossing(self, number: int, edge: int) -> NDArray[np.bool_]:
        """Which edges join the two halves that a tree without one of its edges falls into."""
        if number not in self._tours:
            self._tours[number] = self._tour(number)
        first, last = self._tours[number]
        numbered = self.numbered
        u, v = numbered.ends[edge]
        below = v if first[v] > first[u] else u
        inside = (first >= first[below]) & (first <= last[below])
        crossing: NDArray[np.bool_] = inside[numbered.tails] != inside[numbered.heads]
        return crossing

    def _tour(self, number: int) -> tuple[Uses, Uses]:
        """When a depth-first tour of a tree enters each node, and the last one below it."""
        links = self.numbered.adjacency(self.trees[number])
        first = [-1] * self.numbered.size
        last = [0] * self.numbered.size
        stack, count = [0], 0
        while stack:
            node = stack[-1]
            if first[node] < 0:
                first[node] = count
                count += 1
                stack += [peer for _, peer in links[node] if first[peer] < 0]
            else:
                last[stack.pop()] = count - 1
        return np.array(first), np.array(last)


def equal_trees(
    numbered: NumberedGraph, copies: Sequence[int], count: int, *, seed: int, deadline: float
) -> list[Tree] | None:
    """`count` spanning trees, each edge in at most as many as it has copies.

    None if there are none, or not before the deadline (`time.monotonic`). O(count * n * m) for
    each exchange at worst; light trees leave few to do.
    """
    packing = _Packing(numbered, copies, seed)
    for _ in range(count):
        packing.add_light_tree()
        if monotonic() > deadline:
            return None
    while len(over := packing.overused()):
        if monotonic() > deadline or not any(packing.relieve(edge) for edge in over.tolist()):
            return None
    return [tuple(sorted(tree)) for tree in packing.trees]
