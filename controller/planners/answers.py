"""What a planner answers, whichever it is: trees with rates and a bound, and a job's plan if any.

The one way in for `hopsum plan`: planners of trees of switches and of trees of hosts alike.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from fractions import Fraction

from collectives.flows import tree_flows
from collectives.network import Network
from collectives.plan import JobPlan, PlanError, TreePlan
from controller.allocation import Allocator
from controller.planners import PLANNERS, make_plan
from controller.planners.forest import Certificate, Forest, RatedTree, Verdict
from controller.planners.graph import planning_graph
from controller.planners.mtree import plan_mtree
from controller.planners.multi_tree_in_network import pack_in_network, packing_problem, plan_of
from controller.planners.packing_bounds import cut_bound
from controller.planners.request import Algorithm, PlanRequest

HOST_PLANNERS = {"mtree": plan_mtree}
"""Planners for networks of hosts that all work and forward (000)."""
NAMES = tuple(dict.fromkeys((*PLANNERS, *HOST_PLANNERS)))


@dataclass(frozen=True, slots=True)
class Answer:
    """Trees and what bounds them. `plan`: what agents and switches run; `why_not`: why there is
    none.
    """

    forest: Forest
    plan: JobPlan | None
    why_not: str = ""


def answer(network: Network, request: PlanRequest, planner: str) -> Answer:
    """Ask a planner by name. `servers` may be empty where there are no switches.

    Every link needs a bandwidth. PlanError if no plan meets the request.
    """
    if planner not in NAMES:
        raise PlanError(f"there is no planner {planner!r}; planners: {', '.join(NAMES)}")
    if not network.switches:
        return _of_hosts(network, request, planner)
    if planner not in PLANNERS:
        raise PlanError(
            f"planner {planner} plans networks of hosts only, and {network.name} has switches; "
            f"planners for those: {', '.join(PLANNERS)}"
        )
    if planner == "multi-tree":
        allocator = Allocator(network)
        forest = pack_in_network(network, request, allocator)
        try:
            return Answer(forest, plan_of(network, request, forest, allocator))
        except PlanError as error:
            return Answer(forest, None, str(error))
    start = time.monotonic()
    plan = make_plan(network, request, planner=planner)
    return Answer(job_forest(network, request, plan, planner, time.monotonic() - start), plan)


def _of_hosts(network: Network, request: PlanRequest, planner: str) -> Answer:
    if planner not in HOST_PLANNERS:
        raise PlanError(
            f"planner {planner} needs switches, and {network.name} has none; planners for hosts "
            f"only: {', '.join(HOST_PLANNERS)}"
        )
    graph = planning_graph(network, request.workers)
    if not graph.every_node_works:
        raise PlanError(
            f"{len(request.workers)} workers of {len(network.hosts)} hosts in {network.name}: "
            "without switches every host takes part; leave --workers out"
        )
    forest = HOST_PLANNERS[planner](graph, request.forest)
    return Answer(forest, None, "agents do not yet sum for each other along trees of hosts")


def job_forest(
    network: Network, request: PlanRequest, plan: JobPlan, planner: str, seconds: float
) -> Forest:
    """The trees of a job's plan at the highest rates in proportion to their shares that fit."""
    loads: dict[tuple[str, str], Fraction] = {}
    rated: list[tuple[TreePlan, Fraction, dict[str, int]]] = []
    whole = sum((_share(tree) for tree in plan.trees), Fraction(0))
    for tree in plan.trees:
        flows = tree_flows(network, plan, tree)
        share = _share(tree) / whole
        for flow in flows.all():
            loads[flow.u, flow.v] = loads.get((flow.u, flow.v), Fraction(0)) + share
        several = {node: len(found) for node, found in flows.up.items() if len(found) != 1}
        rated.append((tree, share, several))
    capacity = {link: Fraction(str(network.link(*link).bandwidth)) for link in loads}
    rate = min(capacity[link] / load for link, load in loads.items())
    trees = tuple(
        RatedTree(tree.server, tree.parents, rate * share, several)
        for tree, share, several in rated
    )
    certificate = _certificate(network, request)
    verdict = Verdict.OPTIMAL if rate == certificate.bound else Verdict.FEASIBLE
    return Forest(planner, trees, certificate, verdict, seconds)


def _share(tree: TreePlan) -> Fraction:
    return Fraction(tree.share).limit_denominator(1_000_000)


def _certificate(network: Network, request: PlanRequest) -> Certificate:
    if request.algorithm is Algorithm.IN_NETWORK:
        return cut_bound(packing_problem(network, request))
    links = sum(
        (
            Fraction(str(network.link(server, network.access_switch(server)).bandwidth))
            for server in request.servers
        ),
        Fraction(0),
    )
    count = len(request.workers)
    return Certificate(
        "cut",
        links / count,
        (request.servers,),
        f"the flows of {count} workers, and as many results, cross the links of "
        f"{', '.join(request.servers)}, which carry {links} together: {links}/{count}",
    )
