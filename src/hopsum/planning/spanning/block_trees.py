"""At most K trees between the blocks of the tight partition: a bound, and initial trees.

Contract each block of a partition to a node: every spanning tree of the network contains a
spanning tree of the contracted network, so K trees of the former are no faster than the best K of
the latter. For the partition that proves the strength, the contracted network often has so few
trees that the best K can be found exactly. Inside the blocks capacity is not scarce: there a tree
continues over the edges with the largest residual capacity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from hopsum.planning.spanning.spanning_trees import NumberedEdges, NumberedGraph, Tree
from hopsum.planning.spanning.tree_choice import Choice, choose_trees
from hopsum.planning.spanning.tree_enumeration import all_trees, count_trees

NODES = 2000
"""Limit of branch and bound in steps, since a time limit would make results machine-dependent."""


class BlockTrees:
    """The trees between the blocks of a partition; `parts`: the nodes' names by block."""

    def __init__(self, numbered: NumberedGraph, parts: Sequence[Sequence[str]]) -> None:
        self.numbered = numbered
        index = numbered.graph.index
        block = {index[name]: number for number, part in enumerate(parts) for name in part}
        self._crossing = [edge for edge, (u, v) in enumerate(numbered.ends) if block[u] != block[v]]
        ends = [numbered.ends[edge] for edge in self._crossing]
        self.blocks = NumberedEdges(
            len(parts),
            [(block[u], block[v]) for u, v in ends],
            [numbered.capacity[edge] for edge in self._crossing],
        )

    @property
    def count(self) -> int:
        """Number of trees."""
        return round(count_trees(self.blocks))

    def choose(
        self, *, max_trees: int, min_rate: Fraction, gap: float, seed: int, deadline: float
    ) -> Choice:
        """Return the best `max_trees` of them, by branch and bound.

        Trees by the edges of the blocks.
        """
        return choose_trees(
            self.blocks,
            list(all_trees(self.blocks)),
            max_trees=max_trees,
            min_rate=min_rate,
            gap=gap,
            seed=seed,
            deadline=deadline,
            nodes=NODES,
        )

    def continued(self, rates: Mapping[Tree, Fraction]) -> list[Tree]:
        """Return spanning trees of the network that extend the given ones, the fastest first."""
        most = float(max(self.numbered.capacity))
        left = np.array([float(capacity) for capacity in self.numbered.capacity])
        found = []
        for tree in sorted(rates, key=lambda tree: (-rates[tree], tree)):
            # The tree's own edges first, then those inside blocks by residual, the others last.
            lengths = 1.0 / np.maximum(left / most, 1e-6)
            lengths[self._crossing] = 1e9
            lengths[[self._crossing[edge] for edge in tree]] = 0.0
            edges = self.numbered.minimum_tree(lengths)
            left[edges] -= float(rates[tree])
            found.append(tuple(edges.tolist()))
        return found
