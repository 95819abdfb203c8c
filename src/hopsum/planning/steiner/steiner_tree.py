"""Exact minimum trees that join terminals to a root: Dreyfus and Wagner (Networks 1, 1971).

The dynamic program runs over sets of terminals, one level of the tree's height after the other,
so that the height can be limited; it stops when more height gives no shorter tree. Lengths are
integers and all comparisons exact. Time O(3^k n + 2^k m) for each level of height, k terminals, n
nodes, m arcs; space O(2^k n) for each level.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

MAX_TERMINALS = 10
"""Above this number the tables grow too large."""
_FAR = np.int64(2**60)

Lengths = NDArray[np.int64]


@dataclass(frozen=True)
class Arcs:
    """Directed arcs between nodes 0..nodes-1, over which packets may go, and the nodes that add.

    `merges` (nodes,): flows that meet at such a node leave it as one; elsewhere every flow is
    forwarded separately and counts separately.
    """

    nodes: int
    tails: NDArray[np.intp]
    heads: NDArray[np.intp]
    merges: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Terminal:
    """A node that the tree must join, which already has `height` levels below it."""

    node: int
    height: int = 0


class SteinerTables:
    """The lengths of minimum trees that join each set of terminals to each node.

    `lengths`: of the arcs, 0 or more, their sum below 2^60. `max_height`: levels of a tree, in arcs
    from a terminal to the root plus the levels below the terminal; None: any.
    """

    def __init__(
        self,
        arcs: Arcs,
        lengths: Lengths,
        terminals: Sequence[Terminal],
        max_height: int | None = None,
    ) -> None:
        if not 1 <= len(terminals) <= MAX_TERMINALS:
            raise ValueError(f"{len(terminals)} terminals: expected 1 to {MAX_TERMINALS}")
        self._arcs = arcs
        self._lengths = lengths
        self._terminals = terminals
        order = np.argsort(arcs.heads, kind="stable")
        self._tails, self._heads = arcs.tails[order], arcs.heads[order]
        self._sorted_lengths = lengths[order]
        self._reached, self._starts = np.unique(self._heads, return_index=True)
        self._adders = np.flatnonzero(arcs.merges)
        self._levels: list[Lengths] = []
        self._fill(arcs.nodes + len(terminals) if max_height is None else max_height)

    def _fill(self, max_height: int) -> None:
        table = np.full((1 << len(self._terminals), self._arcs.nodes), _FAR)
        highest = max(terminal.height for terminal in self._terminals)
        for height in range(max_height + 1):
            before = table
            table = before.copy()
            if height:
                self._move(before, table)
            for i, terminal in enumerate(self._terminals):
                if terminal.height <= height:
                    table[1 << i, terminal.node] = 0
            self._merge(table)
            self._levels.append(table)
            if height > highest and np.array_equal(table, before):
                return

    def _move(self, before: Lengths, table: Lengths) -> None:
        """Extend every set of terminals over every arc."""
        if len(self._tails):
            over = before[:, self._tails] + self._sorted_lengths
            best = np.minimum.reduceat(over, self._starts, axis=1)
            table[:, self._reached] = np.minimum(table[:, self._reached], best)

    def _merge(self, table: Lengths) -> None:
        """Merge any two sets that meet at a node that adds."""
        for mask in range(1, len(table)):
            parts = _parts(mask)
            if len(parts):
                at = self._adders
                both = table[np.ix_(parts, at)] + table[np.ix_(mask ^ parts, at)]
                table[mask, at] = np.minimum(table[mask, at], both.min(axis=0))

    def length(self, root: int) -> int | None:
        """Return the length of a minimum tree that joins all terminals to `root`, if one exists.

        Where some nodes do not add, an arc counts once for each flow on it.
        """
        found = int(self._levels[-1][-1, root])
        return None if found >= _FAR else found

    def arcs(self, root: int) -> set[tuple[int, int]]:
        """Return the arcs (tail, head) of a minimum tree; LookupError if there is none."""
        if self.length(root) is None:
            raise LookupError(f"no tree gathers all terminals at node {root}")
        return set(self._walk(len(self._levels) - 1, len(self._levels[-1]) - 1, root))

    def _walk(self, height: int, mask: int, node: int) -> Iterator[tuple[int, int]]:
        todo = [(height, mask, node)]
        while todo:
            height, mask, node = todo.pop()
            while (
                height and self._levels[height - 1][mask, node] == self._levels[height][mask, node]
            ):
                height -= 1
            table = self._levels[height]
            value = table[mask, node]
            if not value and any(
                mask == 1 << i and terminal.node == node
                for i, terminal in enumerate(self._terminals)
            ):
                continue
            split = self._split(table, mask, node, int(value))
            if split is not None:
                todo += [(height, split, node), (height, mask ^ split, node)]
                continue
            tail = self._tail(self._levels[height - 1], mask, node, int(value))
            yield tail, node
            todo.append((height - 1, mask, tail))

    def _split(self, table: Lengths, mask: int, node: int, value: int) -> int | None:
        if not self._arcs.merges[node]:
            return None
        parts = _parts(mask)
        fits = np.flatnonzero(table[parts, node] + table[mask ^ parts, node] == value)
        return int(parts[fits[0]]) if len(fits) else None

    def _tail(self, before: Lengths, mask: int, node: int, value: int) -> int:
        first = int(np.searchsorted(self._heads, node, side="left"))
        last = int(np.searchsorted(self._heads, node, side="right"))
        reached = before[mask, self._tails[first:last]] + self._sorted_lengths[first:last]
        return int(self._tails[first + int(np.flatnonzero(reached == value)[0])])


@cache
def _parts(mask: int) -> NDArray[np.intp]:
    """Return the proper subsets of a set of bits that hold its lowest bit."""
    lowest = mask & -mask
    rest = mask ^ lowest
    subsets = []
    part = (rest - 1) & rest if rest else -1
    while part >= 0:
        subsets.append(part | lowest)
        if not part:
            break
        part = (part - 1) & rest
    return np.array(subsets, dtype=np.intp)
