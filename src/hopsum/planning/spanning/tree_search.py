"""Local search for a better set of at most K trees; finding the best one is NP-hard.

The best rates of given trees are the solution of a linear program. A move changes one tree: it is
regrown where the others leave capacity, or one of its full edges is exchanged for one with residual
capacity, or a tree is added that is short under the program's duals (the pricing of column
generation). Moves that lose nothing are kept, and so are some that lose a little, as in simulated
annealing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import monotonic

import numpy as np

from hopsum.planning.model.column_generation import Packing
from hopsum.planning.spanning.spanning_trees import Lengths, NumberedGraph, Tree

COOLNESS = (400.0, 100.0)
"""A move that loses 1/COOLNESS is kept with probability 1/e; one value per half of the search."""
_ROOM = 1e-9

Grow = Callable[[Lengths], Tree]
"""A short tree that meets the limits."""


@dataclass(frozen=True)
class _State:
    """A set of trees with its best rates, in shares of the largest capacity."""

    trees: tuple[Tree, ...]
    throughput: float
    rates: Lengths
    duals: Lengths
    room: Lengths


class TreeSearch:
    """Searches for sets of `most` trees, each of rate `least` or more (of the largest capacity).

    `grow` makes trees within the limits, `fits` returns whether a tree is within them.
    """

    def __init__(
        self,
        numbered: NumberedGraph,
        *,
        most: int,
        least: float,
        grow: Grow,
        fits: Callable[[Tree], bool],
        seed: int,
    ) -> None:
        self.numbered = numbered
        self.most = most
        self.least = least
        self.grow = grow
        self.fits = fits
        self._random = random.Random(seed)
        self.visited: dict[Tree, None] = {}
        """The trees of all sets that were kept, latest last."""

    def improve(
        self, start: Iterable[Tree], *, enough: float, moves: int, deadline: float
    ) -> tuple[Tree, ...]:
        """Return the best set found from an initial one by some moves.

        The search ends early with `enough` throughput. A seed gives the same moves on every
        machine; a deadline may cut them off.
        """
        now = self._state(tuple(start))
        if now is None:
            return ()
        best = now
        for number in range(moves):
            coolness = COOLNESS[number * len(COOLNESS) // moves]
            if best.throughput >= enough or monotonic() > deadline:
                break
            trees = self._move(now)
            after = self._state(trees) if trees is not None else None
            if after is None:
                continue
            lost = (now.throughput - after.throughput) / now.throughput
            if lost <= _ROOM or self._random.random() < math.exp(-lost * coolness):
                now = after
                self.visited.update(dict.fromkeys(now.trees))
            if now.throughput > best.throughput + _ROOM:
                best = now
        return best.trees

    def _state(self, trees: tuple[Tree, ...]) -> _State | None:
        """Return the best rates of a set of trees; None if they do not fit."""
        numbered = self.numbered
        packed = Packing(numbered.shares, trees, self.least).solve()
        if packed is None:
            return None
        room = numbered.shares.copy()
        for tree, rate in zip(trees, packed.rates, strict=True):
            room[list(tree)] -= rate
        return _State(trees, packed.total, packed.rates, packed.prices, room)

    def _move(self, state: _State) -> tuple[Tree, ...] | None:
        """Return a changed set of trees; None if the move is not possible."""
        choose = self._random
        trees = state.trees
        if len(trees) < self.most:
            fresh = self.grow(state.duals * self._noise(0.3) + 1e-3 * choose.random())
            return None if fresh in trees else (*trees, fresh)
        changed = choose.randrange(len(trees))
        if choose.random() < 0.3:
            changed = int(np.argmin(state.rates))
        if choose.random() < 0.5:
            room = np.maximum(state.room, 0.0)
            room[list(trees[changed])] += state.rates[changed]
            fresh = self.grow(self._noise(0.2) / (room + 1e-3))
        else:
            exchanged = self._exchange(trees[changed], state.room)
            if exchanged is None:
                return None
            fresh = exchanged
        if fresh in trees:
            return None
        return (*trees[:changed], fresh, *trees[changed + 1 :])

    def _noise(self, spread: float) -> Lengths:
        """Return random factors around 1."""
        return np.exp([self._random.gauss(0.0, spread) for _ in self.numbered.ends])

    def _exchange(self, tree: Tree, room: Lengths) -> Tree | None:
        """Return the tree with one full edge exchanged, preferably for one with capacity."""
        full = [edge for edge in tree if room[edge] < _ROOM]
        if not full:
            return None
        leaving = self._random.choice(full)
        kept = [edge for edge in tree if edge != leaving]
        below = self._side(kept, self.numbered.ends[leaving][0])
        crossing = [
            edge
            for edge, (u, v) in enumerate(self.numbered.ends)
            if edge != leaving and (u in below) != (v in below)
        ]
        if not crossing:
            return None
        weights = [max(0.0, float(room[edge])) + 1e-3 for edge in crossing]
        entering = self._random.choices(crossing, weights)[0]
        fresh = tuple(sorted((*kept, entering)))
        return fresh if self.fits(fresh) else None

    def _side(self, edges: Sequence[int], node: int) -> set[int]:
        return {node, *(child for _, _, child in self.numbered.order(edges, node))}


def moves_for(numbered: NumberedGraph) -> int:
    """Return how many moves are worth their time: each solves a linear program, a row an edge."""
    return max(50, min(2000, 45_000 // len(numbered.ends)))
