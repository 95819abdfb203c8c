"""Lower bounds on the bytes of an all-reduce on the links, however they are used."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from hopsum.planning.bounds.cut_program import CutProblem, heaviest_cuts
from hopsum.planning.bounds.cut_proof import CutDirections, CutWeights
from hopsum.planning.model.graph import PlanningGraph
from hopsum.planning.model.linear_program import INFINITY


@dataclass(frozen=True, slots=True)
class LinkBytes:
    """Lower bounds for data of `size` bytes at every worker, headers and repairs not counted.

    `total`: bytes over all links in both directions; `hottest`: bytes over some link in one
    direction. They are `size * (up.total(graph) + down.total(graph))` and
    `size * busiest.hottest(graph)`.
    """

    size: int
    total: Fraction
    hottest: Fraction
    up: CutWeights
    down: CutWeights
    busiest: CutWeights


def link_bytes(
    graph: PlanningGraph, size: int, root: str | None = None, time_limit: float = INFINITY
) -> LinkBytes:
    """The least bytes in all and on the hottest link, of trees with their roots at `root`.

    Without `root`, at any nodes that combine. Nodes that do not combine send on every flow of the
    way up by itself, and may copy results. The total is that of fractional Steiner trees, at most
    what the smallest Steiner tree carries; the hottest link is the relaxation of `bidirected_cut`
    on links of equal capacity. `time_limit`: seconds, of each of at most four searches.

    PlanError for an unknown root, or if there are no two nodes to join.
    """
    forwarding = frozenset(graph.nodes) - graph.combines - {root}
    equal = replace(graph, capacity=dict.fromkeys(graph.capacity, Fraction(1)))
    copying = CutProblem(equal, root, frozenset(), by_capacity=False, time_limit=time_limit)
    down = heaviest_cuts(copying)
    up = heaviest_cuts(replace(copying, forwarding=forwarding)) if forwarding else down
    both = replace(copying, by_capacity=True)
    busiest = [heaviest_cuts(both)]
    if forwarding:
        busiest.append(heaviest_cuts(replace(both, forwarding=forwarding, ways=CutDirections.UP)))
    most = max(busiest, key=lambda weights: weights.hottest(graph))
    return LinkBytes(
        size,
        size * (up.total(graph) + down.total(graph)),
        size * most.hottest(graph),
        up,
        down,
        most,
    )
