"""Exact packing of trees of equal rate: no edge is in more trees than it has copies.

By Tutte and Nash-Williams (1961) N spanning trees fit if and only if N is at most the strength of
the graph with those copies; they are found as a union of matroids (Edmonds 1968): start from N
trees of lightly used edges, then relieve edges that are in too many trees, one use at a time, along
a shortest sequence of exchanges.

Trees of half the rate start from two of each tree found before (scaling, as in Gabow and Westermann
1992): only the few that now fit in addition are new. Equal trees are kept once, with a count.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from hopsum.planning.spanning.spanning_trees import NumberedGraph, Tree

Whole = NDArray[np.int64]
Flags = NDArray[np.bool_]


class TreePacking:
    """Spanning trees with multiplicities, and how often each edge is used."""

    def __init__(self, numbered: NumberedGraph, seed: int) -> None:
        self.numbered = numbered
        self._random = np.random.default_rng(seed)
        self._copies: Whole = np.zeros(len(numbered.ends), dtype=np.int64)
        self._uses: Whole = np.zeros(len(numbered.ends), dtype=np.int64)
        self._trees: list[Whole] = []
        self._number: list[int] = []
        self._tours: dict[int, tuple[Whole, Whole, Whole]] = {}

    @property
    def numbers(self) -> dict[Tree, int]:
        """Return the multiplicity of each tree."""
        found: dict[Tree, int] = {}
        for edges, number in zip(self._trees, self._number, strict=True):
            tree = tuple(sorted(edges.tolist()))
            found[tree] = found.get(tree, 0) + number
        return found

    @property
    def count(self) -> int:
        """Return the number of trees, with multiplicity."""
        return sum(self._number)

    def double(self) -> None:
        """Double the multiplicity of every tree."""
        self._number = [2 * number for number in self._number]
        self._uses *= 2

    def fill(self, copies: Sequence[int], count: int, deadline: float) -> bool:
        """Grow to `count` trees, each edge in at most as many of them as it has copies.

        False if no such trees exist, or none are found before the deadline (`time.monotonic`): the
        packing is unusable then. O(n m) for each exchange and distinct tree at worst; trees of
        lightly used edges leave few exchanges to do.
        """
        self._copies = np.array(copies, dtype=np.int64)
        for _ in range(count - self.count):
            self._add_light_tree()
            if monotonic() > deadline:
                return False
        while len(over := np.flatnonzero(self._uses > self._copies)):
            for edge in over.tolist():
                if monotonic() > deadline:
                    return False
                if self._uses[edge] > self._copies[edge] and not self._relieve(edge):
                    return False
        return True

    def _add_light_tree(self) -> None:
        """Add a tree of the edges used least relative to their copies, ties broken at random."""
        shuffle = 1e-6 * self._random.random(len(self._copies))
        used = self._uses / np.maximum(self._copies, 1)
        edges = self.numbered.minimum_tree(np.where(self._copies > 0, used + shuffle, 1e6))
        self._uses[edges] += 1
        self._trees.append(edges)
        self._number.append(1)

    def _relieve(self, edge: int) -> bool:
        """Remove an edge from a tree by a shortest sequence of exchanges; False if none exists.

        Breadth first: an exchange in a tree adds an edge across the cut that removing another one
        leaves. Along a shortest sequence all exchanges are valid together, even several in one
        tree.
        """
        came: dict[int, tuple[int, int]] = {edge: (-1, -1)}
        fresh = np.delete(np.arange(len(self._copies)), edge)
        level = [edge]
        # Single trees first: an exchange in one of several copies splits it off.
        order = sorted(range(len(self._trees)), key=self._number.__getitem__)
        while level and len(fresh):
            wanted = np.zeros(len(self._copies), dtype=np.bool_)
            wanted[level] = True
            level = []
            for tree in order:
                leaving = self._trees[tree][wanted[self._trees[tree]]]
                if not len(leaving):
                    continue
                crossing = self._crossing(tree, leaving, fresh)
                reached = crossing.any(axis=0)
                entering = fresh[reached]
                if not len(entering):
                    continue
                before = leaving[crossing.argmax(axis=0)[reached]]
                for new, old in zip(entering.tolist(), before.tolist(), strict=True):
                    came[new] = (old, tree)
                room = self._copies[entering] - self._uses[entering]
                if room.max() > 0:
                    roomiest = np.argmax(room / np.maximum(self._copies[entering], 1))
                    self._exchange(came, int(entering[roomiest]))
                    return True
                level += entering.tolist()
                fresh = fresh[~reached]
        return False

    def _exchange(self, came: dict[int, tuple[int, int]], last: int) -> None:
        """Carry out a sequence of exchanges in as many trees as it holds for."""
        steps: list[tuple[int, int, int]] = []
        edge = last
        while (before := came[edge])[0] >= 0:
            steps.append((before[1], before[0], edge))
            edge = before[0]
        times = min(
            int(self._copies[last] - self._uses[last]),
            int(self._uses[edge] - self._copies[edge]),
            *(self._number[tree] for tree, _, _ in steps),
        )
        self._uses[last] += times
        self._uses[edge] -= times
        changed: dict[int, int] = {}
        for tree, leaving, entering in steps:
            if tree not in changed:
                changed[tree] = self._part(tree, times)
            edges = self._trees[changed[tree]]
            edges[edges == leaving] = entering

    def _part(self, tree: int, number: int) -> int:
        """Split off some copies of a tree, to be changed."""
        if self._number[tree] == number:
            self._tours.pop(tree, None)
            return tree
        self._number[tree] -= number
        self._trees.append(self._trees[tree].copy())
        self._number.append(number)
        return len(self._trees) - 1

    def _crossing(self, tree: int, edges: Whole, others: Whole) -> Flags:
        """Return, for each tree edge, the other edges that reconnect the halves it separates."""
        if tree not in self._tours:
            self._tours[tree] = self._tour(tree)
        first, last, below = self._tours[tree]
        root = below[edges][:, np.newaxis]
        tails, heads = first[self.numbered.tails[others]], first[self.numbered.heads[others]]
        start, end = first[root], last[root]
        crossing: Flags = ((tails >= start) & (tails <= end)) != ((heads >= start) & (heads <= end))
        return crossing

    def _tour(self, tree: int) -> tuple[Whole, Whole, Whole]:
        """Return each node's entry time in a depth-first tour, the last below it, and lower ends.

        Lower ends are by edge number, and meaningless for edges outside the tree.
        """
        numbered = self.numbered
        links = numbered.adjacency(self._trees[tree].tolist())
        first = np.full(numbered.size, -1, dtype=np.int64)
        last = np.zeros(numbered.size, dtype=np.int64)
        below = np.zeros(len(numbered.ends), dtype=np.int64)
        stack, count = [(0, -1)], 0
        while stack:
            node, above = stack[-1]
            if first[node] < 0:
                first[node] = count
                count += 1
                for edge, peer in links[node]:
                    if edge != above:
                        below[edge] = peer
                        stack.append((peer, edge))
            else:
                last[node] = count - 1
                stack.pop()
        return first, last, below


def equal_trees(
    numbered: NumberedGraph, copies: Sequence[int], count: int, *, seed: int, deadline: float
) -> dict[Tree, int] | None:
    """Return `count` spanning trees with multiplicities, each edge in at most its copies of them.

    None if there are none, or none are found before the deadline (`time.monotonic`).
    """
    packing = TreePacking(numbered, seed)
    return packing.numbers if packing.fill(copies, count, deadline) else None
