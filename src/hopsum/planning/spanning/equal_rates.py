"""The fastest N trees of equal rate, and the choice of N.

N trees of rate q fit if and only if the strength of the network with floor(c / q) copies of every
edge is N or more (Tutte and Nash-Williams 1961), so the largest q is found by bisection. It is
c / j for some edge's capacity c and an integer j up to N: only there does an edge lose a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from hopsum.planning.bounds.strength import strength_of_whole
from hopsum.planning.spanning.spanning_trees import NumberedGraph, Tree
from hopsum.planning.spanning.tree_packing import TreePacking, equal_trees

GRID = 1000
"""Maximum number of candidates for a rate; if there are more, evenly spaced ones are used."""
MANY = 4
"""Number of trees per edge above which their number no longer counts as small."""


def copies(numbered: NumberedGraph, rate: Fraction) -> list[int]:
    """Return how many trees of a rate each edge can carry."""
    part, whole = rate.numerator, rate.denominator
    return [c.numerator * whole // (c.denominator * part) for c in numbered.capacity]


def largest_rate(numbered: NumberedGraph, count: int, bound: Fraction) -> Fraction:
    """Return the largest rate at which `count` trees fit.

    `bound`: the strength of the network.
    """
    values = set(numbered.capacity)
    # At 1/`count` of the smallest capacity every edge can carry all trees.
    least, most = min(values) / count, bound / count
    if len(values) * count <= GRID:
        rates = {value / part for value in values for part in range(1, count + 1)}
    else:
        rates = {most * step / GRID for step in range(1, GRID + 1)}
    ordered = [least, *sorted(rate for rate in rates if least < rate <= most)]
    low, high = 0, len(ordered) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if _most_trees(numbered, copies(numbered, ordered[middle])) >= count:
            low = middle
        else:
            high = middle - 1
    return ordered[low]


def _most_trees(numbered: NumberedGraph, room: Sequence[int]) -> int:
    """Return how many trees fit into the given copies of each edge."""
    used = {ends: number for ends, number in zip(numbered.ends, room, strict=True) if number}
    return int(strength_of_whole(numbered.size, used))


def trees_of_rate(
    numbered: NumberedGraph, rate: Fraction, count: int, *, seed: int, deadline: float
) -> dict[Tree, Fraction] | None:
    """Return `count` trees of a rate, equal ones merged; None if not found before the deadline."""
    found = equal_trees(numbered, copies(numbered, rate), count, seed=seed, deadline=deadline)
    return None if found is None else {tree: number * rate for tree, number in found.items()}


def unit_rates(
    numbered: NumberedGraph, bound: Fraction, gap: Fraction, *, seed: int, deadline: float
) -> dict[Tree, Fraction] | None:
    """Return the fewest trees of equal rate that reach (1 - gap) of `bound`.

    The rate divides the unit of all capacities. `bound`: the strength. None if they are too many,
    or not found before the deadline.
    """
    unit = numbered.unit
    for parts in range(1, MANY * len(numbered.ends)):
        count = int(bound * parts / unit)
        if count > MANY * len(numbered.ends):
            return None
        if count * unit / parts >= bound * (1 - gap):
            return trees_of_rate(numbered, unit / parts, count, seed=seed, deadline=deadline)
    return None


def halved_rates(
    numbered: NumberedGraph, bound: Fraction, gap: Fraction, *, seed: int, deadline: float
) -> dict[Tree, Fraction]:
    """Pack trees of a rate, then trees of half the rate into the rest, and so on.

    The capacity that rounding leaves unused halves each time, and so does the gap to the strength
    (`bound`), until it is at most `gap` or the deadline passes.
    """
    best: dict[Tree, Fraction] = {}
    packing, rate = TreePacking(numbered, seed), bound
    while True:
        room = copies(numbered, rate)
        if not packing.fill(room, _most_trees(numbered, room), deadline):
            return best
        best = {tree: number * rate for tree, number in packing.numbers.items()}
        if packing.count * rate >= bound * (1 - gap):
            return best
        packing.double()
        rate /= 2
