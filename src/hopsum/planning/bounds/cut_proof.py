"""Proofs by weighted cuts: the least load of any all-reduce on the links, for any trees.

Let y(u, v) be how often a unit of the data crosses the arc u -> v on its way from the roots to the
workers. The way up is the reverse: an all-reduce whose paths up and down differ is no faster than
the mean of both, because a link carries the same in each direction. For every set U of nodes that
contains a worker, the data start at a root in U or enter it: x(U) + y(into U) >= 1, and the roots'
parts x add up to 1. A node that only forwards sends exactly what it receives. Weighted with any
z(U) >= 0, and any potential p of the nodes that only forward, these inequalities add up to

    sum of l(u, v) y(u, v) >= sum of z - max over roots v of z(the sets with v in them) = D,

with l(u, v) = z(the sets that u -> v enters) + p(u) - p(v), or 0 if that is less. Bounds on rates,
totals and the hottest link follow for any z and p, so rounded values are a proof as well.

Where a link's two directions are counted together, one worker can stand for all roots: reversing
the data's path to it gives a y for that root with the same y(u, v) + y(v, u).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from hopsum.network.model import shorten
from hopsum.network.units import format_si
from hopsum.planning.model.forest import Certificate
from hopsum.planning.model.graph import Edge, PlanningGraph

Parts = tuple[tuple[str, ...], ...]


class CutDirections(Enum):
    """Directions of the data that a proof counts."""

    BOTH = "up and down"
    """A link's capacity is for y(u, v) + y(v, u): one of them on the way up, one down."""
    UP = "up"
    """Each direction's capacity is for one y: the way down is not bounded, since nodes that only
    forward may copy there."""


@dataclass(frozen=True, slots=True)
class CutWeights:
    """Sets of nodes with weights z, potentials p (0 where absent), and possible roots."""

    parts: Parts
    weights: tuple[Fraction, ...]
    potentials: Mapping[str, Fraction]
    roots: tuple[str, ...]
    ways: CutDirections = CutDirections.BOTH

    def lengths(self, graph: PlanningGraph) -> dict[Edge, Fraction]:
        """Return l of every arc (u, v) of the graph, in both directions of each edge."""
        lengths = {
            arc: self.potentials.get(arc[0], Fraction(0)) - self.potentials.get(arc[1], Fraction(0))
            for u, v in graph.capacity
            for arc in ((u, v), (v, u))
        }
        for part, weight in zip(self.parts, self.weights, strict=True):
            inside = frozenset(part)
            for v in part:
                for u in graph.neighbours[v]:
                    if u not in inside:
                        lengths[u, v] += weight
        return {arc: max(length, Fraction(0)) for arc, length in lengths.items()}

    @property
    def least(self) -> Fraction:
        """Return D: the least load of a unit of data on the arcs, weighted by their lengths."""
        at_root = dict.fromkeys(self.roots, Fraction(0))
        for part, weight in zip(self.parts, self.weights, strict=True):
            for node in at_root.keys() & frozenset(part):
                at_root[node] += weight
        return sum(self.weights, Fraction(0)) - max(at_root.values())

    def rate(self, graph: PlanningGraph) -> Fraction:
        """Return a bound on any all-reduce's rate, in units of the capacities: sum of c l / D."""
        return self._offered(graph, graph.capacity) / self.least

    def hottest(self, graph: PlanningGraph) -> Fraction:
        """Return a lower bound on the busiest link's share of the data in one direction.

        D / sum of l.
        """
        return self.least / self._offered(graph, dict.fromkeys(graph.capacity, Fraction(1)))

    def total(self, graph: PlanningGraph) -> Fraction:
        """Return a lower bound on the data that all links carry together, one way.

        D / greatest l.
        """
        return self.least / max(self.lengths(graph).values())

    def _offered(self, graph: PlanningGraph, capacity: Mapping[Edge, Fraction]) -> Fraction:
        lengths = self.lengths(graph)
        offered = Fraction(0)
        for (u, v), c in capacity.items():
            there, back = lengths[u, v], lengths[v, u]
            offered += c * (max(there, back) if self.ways is CutDirections.BOTH else there + back)
        return offered


@dataclass(frozen=True, slots=True)
class CutCertificate(Certificate):
    """A certificate that `weights.rate` confirms for the same graph; parts: the weighted sets."""

    weights: CutWeights


def rate_certificate(graph: PlanningGraph, weights: CutWeights) -> CutCertificate:
    """Return the certificate of the bound on the rate that weighted cuts prove."""
    bound = weights.rate(graph)
    count = len(weights.parts)
    sets = "one set" if count == 1 else f"{count} weighted sets"
    some = "; ".join("{" + shorten(part, 4) + "}" for part in weights.parts[:4])
    more = "; ..." if count > 4 else ""
    text = (
        f"{sets} of nodes that the data must enter, {some}{more}: a unit of the data puts "
        f"{weights.least} on the links around them, whose capacity is "
        f"{format_si(bound * weights.least)}: at most {format_si(bound)}"
    )
    return CutCertificate("linear program", bound, weights.parts, text, weights)
