"""The relay bound: all-reduce by workers over switches that only forward."""

from __future__ import annotations

from hopsum.planning.bounds.cut_program import CutProblem, heaviest_cuts
from hopsum.planning.bounds.cut_proof import rate_certificate
from hopsum.planning.bounds.strength import strength
from hopsum.planning.model.forest import Certificate
from hopsum.planning.model.graph import PlanningGraph
from hopsum.planning.model.linear_program import INFINITY


def relay_bound(graph: PlanningGraph, time_limit: float = INFINITY) -> Certificate:
    """Return the best rate of trees where nodes that do not combine only forward.

    They neither sum nor copy. In units of the graph's capacities. Trees may have their roots at all
    nodes that combine. Without helpers, nodes that combine and do not work, trees reach it (by
    splitting off the edges of forwarding nodes: Bang-Jensen, Frank and Jackson 1995; ForestColl,
    arXiv 2402.06787); with them it is a bound. Where every node works it is the strength. The
    certificate is exact and within 1e-7 of the optimum, unless `time_limit` (seconds) or HiGHS,
    which occasionally gives up, ends the search earlier.

    PlanError if there is only one worker.
    """
    if graph.every_node_works:
        return strength(graph)
    forwarding = frozenset(graph.nodes) - graph.combines
    weights = heaviest_cuts(CutProblem(graph, None, forwarding, time_limit=time_limit))
    return rate_certificate(graph, weights)
