"""The fastest N trees of one rate, and how many are worth it.

N trees of rate q fit if and only if the strength of the network with floor(c / q) copies of every
edge is N or more (Tutte and Nash-Williams 1961), so the largest q is found by bisection. The q in
question are c / j for some edge's capacity c and whole j up to N: only there a copy is lost.
"""

from __future__ import annotations

from fractions import Fraction
from time import monotonic

from controller.bounds.strength import strength
from controller.planners.graph import PlanningGraph
from controller.planners.spanning_trees import NumberedGraph, Tree
from controller.planners.tree_choice import exact_rates
from controller.planners.tree_packing import equal_trees

GRID = 4096
"""Candidates for a rate; where there would be more, so many evenly spaced ones."""
MANY = 4
"""Trees for an edge that are no longer few."""
PROGRAMME_CELLS = 400_000
"""Linear programmes of more rows times columns take longer than more trees do."""


def copies(numbered: NumberedGraph, rate: Fraction, count: int) -> list[int]:
    """How many trees of a rate each edge can carry, up to all of them."""
    return [min(count, int(capacity / rate)) for capacity in numbered.capacity]


def largest_rate(numbered: NumberedGraph, count: int, bound: Fraction) -> Fraction:
    """The largest rate of which there are `count` trees; `bound`: the strength of the network."""
    values = set(numbered.capacity)
    # At the least capacity's share every edge is good for all trees.
    least, most = min(values) / count, bound / count
    if len(values) * count <= GRID:
        rates = sorted({value / part for value in values for part in range(1, count + 1)})
    else:
        rates = [least, *(most * step / GRID for step in range(1, GRID + 1))]
    rates = [rate for rate in rates if rate == least or least < rate <= most]
    low, high = 0, len(rates) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if _fit(numbered, rates[middle], count):
            low = middle
        else:
            high = middle - 1
    return rates[low]


def _fit(numbered: NumberedGraph, rate: Fraction, count: int) -> bool:
    names = numbered.graph.nodes
    capacity = {
        (names[u], names[v]): Fraction(number)
        for (u, v), number in zip(numbered.ends, copies(numbered, rate, count), strict=True)
        if number
    }
    graph = PlanningGraph(
        numbered.graph.name,
        names,
        capacity,
        dict.fromkeys(capacity, 0.0),
        numbered.graph.workers,
        numbered.graph.combines,
    )
    return strength(graph).bound >= count


def trees_of_rate(
    numbered: NumberedGraph, rate: Fraction, count: int, *, seed: int, deadline: float
) -> dict[Tree, Fraction] | None:
    """`count` trees of a rate, equal ones taken together; None if not found before the deadline."""
    found = equal_trees(
        numbered, copies(numbered, rate, count), count, seed=seed, deadline=deadline
    )
    if found is None:
        return None
    rates: dict[Tree, Fraction] = {}
    for tree in found:
        rates[tree] = rates.get(tree, Fraction(0)) + rate
    return rates


def near_strength(
    numbered: NumberedGraph, bound: Fraction, gap: Fraction, *, seed: int, deadline: float
) -> dict[Tree, Fraction]:
    """Trees with rates that add up to (1 - gap) of the strength, or to the most until the deadline.

    If all capacities are multiples of a unit: the fewest trees of a rate that divides the unit.
    Else 1, 2, 4, ... trees of one rate, and their rates improved by a linear programme.
    """
    enough = bound * (1 - gap)
    unit = numbered.unit
    for parts in range(1, MANY * len(numbered.ends)):
        count = int(bound * parts / unit)
        if count > MANY * len(numbered.ends):
            break
        if count * unit / parts >= enough:
            rate = unit / parts
            rates = trees_of_rate(numbered, rate, count, seed=seed, deadline=deadline)
            if rates is not None:
                return rates
            break
    best: dict[Tree, Fraction] = {}
    count = 1
    while monotonic() < deadline:
        rate = largest_rate(numbered, count, bound)
        rates = trees_of_rate(numbered, rate, count, seed=seed, deadline=deadline) or {}
        if rates and len(numbered.ends) * len(rates) <= PROGRAMME_CELLS:
            rates = exact_rates(numbered, list(rates)) or rates
        if sum(rates.values(), Fraction(0)) > sum(best.values(), Fraction(0)):
            best = rates
        if sum(best.values(), Fraction(0)) >= enough:
            break
        count *= 2
    return best
