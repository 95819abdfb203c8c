"""The bidirected-cut bound: all-reduce where switches sum and copy."""

from __future__ import annotations

from hopsum.planning.bounds.cut_program import CutProblem, heaviest_cuts
from hopsum.planning.bounds.cut_proof import CutDirections, rate_certificate
from hopsum.planning.bounds.strength import strength
from hopsum.planning.model.forest import Certificate
from hopsum.planning.model.graph import PlanningGraph
from hopsum.planning.model.linear_program import INFINITY


def bidirected_cut(
    graph: PlanningGraph, root: str | None = None, time_limit: float = INFINITY
) -> Certificate:
    """Return the bidirected-cut relaxation of packing Steiner trees: at most the Steiner cut.

    In units of the graph's capacities. All trees have their root at `root` or, without one, each at
    any node that combines. On the way up, nodes that do not combine, other than the root, forward
    every flow separately; they may copy results. The certificate is exact and within 1e-7 of the
    relaxation's optimum, unless `time_limit` (seconds) or HiGHS, which occasionally gives up, ends
    the search earlier. Where every node works, the bound is the strength for any root.

    PlanError for an unknown root, or if there are no two nodes to join.
    """
    if graph.every_node_works and (root is None or root in graph.index):
        return strength(graph)
    everyone = heaviest_cuts(CutProblem(graph, root, frozenset(), time_limit=time_limit))
    bounds = [rate_certificate(graph, everyone)]
    forwarding = frozenset(graph.nodes) - graph.combines - {root}
    if forwarding:
        upwards = CutProblem(graph, root, forwarding, ways=CutDirections.UP, time_limit=time_limit)
        bounds.append(rate_certificate(graph, heaviest_cuts(upwards)))
    return min(bounds, key=lambda certificate: certificate.bound)
