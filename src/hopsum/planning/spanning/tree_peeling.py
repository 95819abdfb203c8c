"""Peeling: take trees off a network one after another without loss, each as fast as possible.

By Tutte and Nash-Williams (1961) trees of a total rate R fit a network if and only if its strength
is R or more. So a tree T may take a rate r, and the others still reach R - r, if and only if the
strength of what is left is R - r or more: for every partition P, with T(P) the edges of T that
cross it, r (T(P) - |P| + 1) <= c(P) - R (|P| - 1). The largest such r is found by Newton's method,
each step of which takes the most violated partition. Of some short trees the one with the largest r
is taken, and the same is repeated on the residual network: where all links are equal, the rates
come out as in Euclid's algorithm (strength 21/13: 8, 5, 3, 2, 1, 1 and 1 of 13).

R may be the strength; where that takes too many trees, a smaller R may take fewer.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from fractions import Fraction
from time import monotonic

import numpy as np

from hopsum.planning.bounds.strength import weakest_blocks
from hopsum.planning.spanning.spanning_trees import NumberedGraph, Tree
from hopsum.planning.spanning.tree_search import Grow

TRIES = 15
"""Trees tried for each one taken."""
SPREAD = 0.3
"""Amplitude of the noise on lengths that makes the trees differ."""
LONGER = 2.0
"""Factor by which edges become longer that kept a tree from a larger rate."""


@dataclass
class ResidualNetwork:
    """Residual capacities and the rate still to be carried, in integer multiples of `unit`.

    Their strength is never below that rate.
    """

    capacity: list[int]
    rate: int
    unit: Fraction

    @classmethod
    def of(cls, numbered: NumberedGraph, rate: Fraction) -> ResidualNetwork:
        """Return the whole network with the rate it must carry, at most its strength."""
        scale = math.lcm(rate.denominator, *(c.denominator for c in numbered.capacity))
        whole = [int(capacity * scale) for capacity in numbered.capacity]
        return cls(whole, int(rate * scale), Fraction(1, scale))

    def take(self, tree: Tree, rate: Fraction) -> None:
        """Subtract a rate (in units) from every edge of a tree."""
        self.capacity = [value * rate.denominator for value in self.capacity]
        for edge in tree:
            self.capacity[edge] -= rate.numerator
        self.rate = self.rate * rate.denominator - rate.numerator
        common = math.gcd(self.rate, *self.capacity) or 1
        self.capacity = [value // common for value in self.capacity]
        self.rate //= common
        self.unit = self.unit / rate.denominator * common


def largest_share(
    numbered: NumberedGraph, rest: ResidualNetwork, tree: Tree, above: Fraction = Fraction(0)
) -> tuple[Fraction, list[int]]:
    """Return the largest rate, in units, that a tree may take, and the edges that limit it.

    These are the tree's slowest edges, or those across the violated partition, which the tree
    crosses more often than necessary. A rate that is not above `above` may come from any
    intermediate step. A few steps of n incremental maximum flows each (`strength`).
    """
    inside = set(tree)
    share = Fraction(min(rest.rate, *(rest.capacity[edge] for edge in tree)))
    limiting = [edge for edge in tree if rest.capacity[edge] == share]
    while share > above:
        part, whole = share.numerator, share.denominator
        wanted = rest.rate * whole - part
        if not wanted:
            break
        left = {
            ends: amount
            for edge, (ends, capacity) in enumerate(zip(numbered.ends, rest.capacity, strict=True))
            if (amount := capacity * whole - (part if edge in inside else 0))
        }
        blocks = weakest_blocks(numbered.size, left, wanted)
        least = len(set(blocks)) - 1
        crossing = [edge for edge, (u, v) in enumerate(numbered.ends) if blocks[u] != blocks[v]]
        spare = sum(rest.capacity[edge] for edge in crossing) - rest.rate * least
        excess = sum(edge in inside for edge in crossing) - least
        if excess * share <= spare:
            break
        share, limiting = Fraction(spare, excess), crossing
    return share, limiting


class Peeling:
    """Takes trees off a network, at most `most` (None: any number), each of `least`.

    `grow` makes candidate trees.
    """

    def __init__(
        self, numbered: NumberedGraph, *, most: int | None, least: Fraction, grow: Grow, seed: int
    ) -> None:
        self.numbered = numbered
        self.most = most
        self.least = least
        self.grow = grow
        self._random = random.Random(seed)

    def trees(self, rate: Fraction, deadline: float) -> dict[Tree, Fraction]:
        """Return trees that add up to a rate, or to less if they would be too many or too slow.

        `rate`: at most the strength. At the deadline (`time.monotonic`) no more are taken.
        """
        rest = ResidualNetwork.of(self.numbered, rate)
        rates: dict[Tree, Fraction] = {}
        while rest.rate and (self.most is None or len(rates) < self.most):
            tree, share = self._fastest(rest, deadline)
            if share * rest.unit < self.least or not share:
                break
            rates[tree] = rates.get(tree, Fraction(0)) + share * rest.unit
            rest.take(tree, share)
        return rates

    def _fastest(self, rest: ResidualNetwork, deadline: float) -> tuple[Tree, Fraction]:
        """Return the tree with the largest share, of some that prefer edges with much capacity.

        Edges that limit a tree become longer for the next ones.
        """
        best: Tree = ()
        share = Fraction(0)
        most = max(rest.capacity)
        lengths = np.array([1.0 / max(value / most, 1e-6) for value in rest.capacity])
        for _ in range(TRIES):
            if monotonic() > deadline:
                break
            noise = [math.exp(self._random.gauss(0.0, SPREAD)) for _ in rest.capacity]
            tree = self.grow(lengths * noise)
            found, limiting = largest_share(self.numbered, rest, tree, share)
            if found > share:
                best, share = tree, found
            lengths[limiting] *= LONGER
        return best, share
