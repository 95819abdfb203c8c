"""Bounds on the rate of at most K trees, which may be less than the strength.

**Bottleneck.** The slowest edge of any spanning tree is no faster than that of a maximum spanning
tree, so K trees are at most K times as fast.

**Determinant.** The best rates of given trees are a vertex of { r >= 0, A r <= c } with A of 0 and
1: those above 0, k <= K of them, solve k equations B r = c' with B of 0 and 1 and c' some of the
capacities. By Cramer's rule their sum is an integer multiple of unit / |det B|, where all
capacities are multiples of the unit, and a k x k matrix of 0 and 1 has a determinant of at most (k
+ 1)^((k + 1) / 2) / 2^k (Hadamard 1893; the true maxima for small k: OEIS A003432). So K trees
reach at most the largest multiple of unit / d, for some d up to this, that is at most the strength.
"""

from __future__ import annotations

import math
from fractions import Fraction

from hopsum.network.units import format_si
from hopsum.planning.bounds.minimum_cut import integer_capacities
from hopsum.planning.model.forest import Certificate
from hopsum.planning.model.graph import PlanningGraph

_LARGEST = (1, 1, 1, 2, 3, 5, 9, 32, 56, 144, 320)
"""Largest determinants of k x k matrices of 0 and 1, k = 0, 1, ... (A003432)."""


def bound_of_few(graph: PlanningGraph, count: int, strength: Certificate) -> Certificate:
    """Return the best known bound on at most `count` trees: `strength`, or a tighter one.

    `strength`: the result of the function of that name; the parts of another certificate are empty.
    Holds for trees of any height and any minimum rate.
    """
    _, unit = integer_capacities(graph)
    fastest, (u, v) = _bottleneck(graph)
    denominator = largest_determinant(count)
    reached = fractions_below(strength.bound / unit, denominator)[0] * unit
    return min(
        strength,
        Certificate(
            "bottleneck",
            count * fastest,
            (),
            f"no plan is faster than {format_si(count * fastest)}: a tree carries at most "
            f"{format_si(fastest)} (every tree crosses an edge no faster than {u}-{v}), and there "
            f"may be {count}",
        ),
        Certificate(
            "determinant",
            reached,
            (),
            f"no plan is faster than {format_si(reached)}: the best rates of {count} trees solve "
            f"equations with coefficients 0 and 1, whose determinant is at most {denominator}, so "
            f"that they add up to a multiple of {format_si(unit)} / d for a whole d up to that, "
            f"and this is the largest below the strength of {format_si(strength.bound)}",
        ),
        key=lambda certificate: certificate.bound,
    )


def largest_determinant(size: int) -> int:
    """Return a bound on the determinant of a 0-1 matrix, tight up to a size of 10."""
    if size < len(_LARGEST):
        return _LARGEST[size]
    return math.isqrt((size + 1) ** (size + 1)) >> size


def fractions_below(value: Fraction, denominator: int) -> list[Fraction]:
    """Return the largest fractions up to a value, one for each limit on the denominator.

    Limits up to the given one; each fraction once, the largest first. O(the smaller one of
    `denominator` and the value's own).
    """
    found: list[Fraction] = []
    for part in range(1, min(denominator, value.denominator) + 1):
        below = Fraction(math.floor(value * part), part)
        if not found or below > found[-1]:
            found.append(below)
    return found[::-1]


def _bottleneck(graph: PlanningGraph) -> tuple[Fraction, tuple[str, str]]:
    """Return the slowest edge of a maximum spanning tree, and its capacity (Kruskal 1956)."""
    above = {name: name for name in graph.nodes}

    def find(name: str) -> str:
        while above[name] != name:
            above[name] = above[above[name]]
            name = above[name]
        return name

    slowest = (Fraction(0), (graph.nodes[0], graph.nodes[0]))
    for edge in sorted(graph.capacity, key=lambda edge: -graph.capacity[edge]):
        u, v = map(find, edge)
        if u != v:
            above[u] = v
            slowest = (graph.capacity[edge], edge)
    return slowest
