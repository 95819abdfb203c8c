"""A pool of trees within limits on height, for which the linear program chooses rates.

First come trees that are short under lengths that grow with each edge's load (multiplicative
weights: Young 2001), then column generation adds trees that are short under the program's duals,
until none improves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from time import monotonic

import numpy as np

from hopsum.planning.model.column_generation import Packing, PackingSolution, generate_columns
from hopsum.planning.spanning.low_trees import LowTrees
from hopsum.planning.spanning.spanning_trees import NumberedGraph, Tree
from hopsum.planning.spanning.tree_choice import exact_rates

SHARPNESS = 30.0
"""How fast lengths grow with the load of an edge, from the lightest loaded to the heaviest."""
ROOTS = 12
"""Roots tried for each set of duals."""
ROUNDS = 60
POOL_CELLS = 400_000
"""Rows times columns that the linear program starts with."""


class LowPacking:
    """A pool of trees within limits, and their best rates."""

    def __init__(self, numbered: NumberedGraph, low: LowTrees) -> None:
        self.numbered = numbered
        self.low = low
        self.pool: dict[Tree, None] = {}
        self._packing = Packing(numbered.shares)

    def add(self, tree: Tree) -> bool:
        """Add a tree; return whether it is new."""
        if tree in self.pool:
            return False
        self.pool[tree] = None
        self._packing.add(dict.fromkeys(tree, 1.0))
        return True

    def add_light_trees(self, deadline: float) -> None:
        """Add trees of lightly loaded edges, from all roots in turn."""
        edges = len(self.numbered.ends)
        load = np.zeros(edges)
        for number in range(min(2 * edges, max(50, POOL_CELLS // edges))):
            if monotonic() > deadline:
                return
            relative = load / self.numbered.shares
            spread = max(1.0, float(relative.max()))
            lengths = np.exp(SHARPNESS * (relative / spread - 1.0)) / self.numbered.shares
            tree = self.low.short_tree(lengths, self.low.roots[number % len(self.low.roots)])
            load[list(tree)] += 1.0
            self.add(tree)

    def generate(self, enough: Fraction, deadline: float) -> None:
        """Add trees that improve the program, up to `enough` throughput."""
        goal = float(enough / max(self.numbered.capacity))
        roots, rounds = self.low.roots, iter(range(ROUNDS))

        def price(packed: PackingSolution | None) -> bool:
            number = next(rounds, None)
            if number is None or packed is None or packed.total >= goal or monotonic() > deadline:
                return False
            added = False
            for root in range(number * ROOTS, number * ROOTS + min(ROOTS, len(roots))):
                tree = self.low.short_tree(packed.prices, roots[root % len(roots)])
                added |= float(packed.prices[list(tree)].sum()) < 1.0 - 1e-9 and self.add(tree)
            return added

        generate_columns(self._packing.solve, price)

    def rates(self) -> Mapping[Tree, Fraction]:
        """Return the best rates of the trees in the pool, without trees of rate 0."""
        return exact_rates(self.numbered, list(self.pool)) or {}
