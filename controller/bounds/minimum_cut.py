"""Minimum cuts of undirected networks in whole numbers, so that they are exact."""

from __future__ import annotations

from fractions import Fraction
from math import gcd, lcm

from controller.planners.graph import Edge, PlanningGraph


def integer_capacities(graph: PlanningGraph) -> tuple[dict[Edge, int], Fraction]:
    """Capacities as whole multiples of a unit, and the unit (the largest there is)."""
    scale = lcm(*(capacity.denominator for capacity in graph.capacity.values()))
    whole = {edge: int(capacity * scale) for edge, capacity in graph.capacity.items()}
    divisor = gcd(*whole.values()) or 1
    return {edge: value // divisor for edge, value in whole.items()}, Fraction(divisor, scale)
