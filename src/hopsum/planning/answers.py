"""Answers of all planners in one form: trees with rates, a bound, and a job's plan if any.

`hopsum plan` calls all planners through this module, for trees of switches and of hosts alike.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from fractions import Fraction

from hopsum.collectives.choices import EMBEDDING, MTREE, MULTI_TREE
from hopsum.collectives.flows import tree_flows
from hopsum.collectives.plan import JobPlan, PlanError, TreePlan
from hopsum.collectives.plan_checker import check_plans
from hopsum.network.model import Network
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.forest import KEEP, Forest, ForestOptions, RatedTree, Verdict
from hopsum.planning.model.forest_checker import check_forest
from hopsum.planning.model.graph import Edge, PlanningGraph, planning_graph, without_forwarders
from hopsum.planning.model.request import DEFAULT_WEIGHTS, PlanRequest, WeightSteps
from hopsum.planning.registry import MULTI_HOP, PLANNERS
from hopsum.planning.spanning.mtree import plan_mtree
from hopsum.planning.spanning.multi_tree import plan_multi_tree
from hopsum.planning.steiner.multi_hop import plan_of_routes, solve_multi_hop
from hopsum.planning.steiner.multi_hop_answer import MultiHopAnswer
from hopsum.planning.steiner.multi_tree_in_network import pack_in_network, packing_problem, plan_of
from hopsum.planning.steiner.packing_bounds import cut_bound

HOST_PLANNERS = {MULTI_TREE: plan_multi_tree, MTREE: plan_mtree}
"""Planners for networks in which all hosts work and forward ([000][])."""
NAMES = tuple(dict.fromkeys((*PLANNERS, *HOST_PLANNERS)))


@dataclass(frozen=True, slots=True)
class Answer:
    """Trees and the bound on their rate.

    `plan`: what agents and switches run; None for trees of hosts, which run as a schedule, and for
    trees that cannot be run: `why_not` then gives the reason.
    """

    forest: Forest
    plan: JobPlan | None
    why_not: str = ""


def answer(network: Network, request: PlanRequest, planner: str) -> Answer:
    """Run a planner by name. `servers` may be empty if there are no switches.

    Every link needs a bandwidth. The answer has passed the checkers of forests and of plans,
    which do not rely on the planner's reasoning. PlanError if no plan meets the request.
    """
    found = _answer(network, request, planner)
    graph = planning_graph(network, request.workers)
    adding = replace(graph, combines=graph.combines.union(request.servers))
    slots = {name: switch.slots // request.window for name, switch in network.switches.items()}
    check_forest(adding, found.forest, request.forest, slots)
    if found.plan is not None:
        check_plans(network, [found.plan])
    return found


def _answer(network: Network, request: PlanRequest, planner: str) -> Answer:
    if planner not in NAMES:
        raise PlanError(f"there is no planner {planner!r}; planners: {', '.join(NAMES)}")
    if not network.switches:
        return _of_hosts(network, request, planner)
    if planner not in PLANNERS:
        raise PlanError(
            f"planner {planner} plans networks of hosts only, and {network.name} has switches; "
            f"planners for those: {', '.join(PLANNERS)}"
        )
    check_without_mtree(request.forest, planner)
    allocator = Allocator(network)
    if planner == MULTI_HOP:
        _check_for_multi_hop(request)
        routes = solve_multi_hop(network, request, allocator)
        plan = plan_of_routes(network, request, routes, allocator)
        return Answer(job_forest(network, plan, routes), plan)
    if planner == MULTI_TREE:
        forest = pack_in_network(network, request, allocator)
        try:
            return Answer(forest, plan_of(network, request, forest, allocator))
        except PlanError as error:
            return Answer(forest, None, str(error))
    if planner == EMBEDDING:
        raise PlanError(
            f"planner {planner} answers with weighted topologies, not with trees; use "
            "hopsum.planning.registry.make_plan"
        )
    started = time.perf_counter()
    plan = PLANNERS[planner](network, request, allocator)
    seconds = time.perf_counter() - started
    return Answer(plan_forest(network, request, plan, planner, seconds), plan)


def check_without_mtree(options: ForestOptions, planner: str) -> None:
    """Raise PlanError for an option of mtree with another planner."""
    if options.tree_bandwidth is not None or options.keep != KEEP:
        name = "keep" if options.tree_bandwidth is None else "tree_bandwidth"
        raise PlanError(
            f"{name}: an option of the planner mtree, not of {planner}; use --planner mtree, or "
            "omit it"
        )


def check_weights(weights: WeightSteps, planner: str) -> None:
    """Raise PlanError for weights of an embedding with another planner."""
    if weights != DEFAULT_WEIGHTS and planner != EMBEDDING:
        name = "penalty" if weights.penalty != 1 else "weight-steps"
        raise PlanError(
            f"{name}: an option of the planner {EMBEDDING}, not of {planner}; use --planner "
            f"{EMBEDDING}, or omit it"
        )


def _check_for_multi_hop(request: PlanRequest) -> None:
    """Raise PlanError for a limit on trees that multi-hop does not support."""
    options = request.forest
    if options.max_delay is not None:
        raise PlanError(
            f"max_delay {options.max_delay:g} s: planner multi-hop ignores the links' latency; "
            "use the planner multi-tree, or --max-height"
        )
    if options.min_rate:
        raise PlanError(
            f"min_rate {options.min_rate}: planner multi-hop takes the fastest trees it finds; "
            "only multi-tree and mtree support a minimum rate"
        )
    if options.max_trees is not None and options.max_trees < len(request.servers):
        raise PlanError(
            f"max_trees {options.max_trees}: planner multi-hop makes a tree for each of the "
            f"{len(request.servers)} servers; ask for fewer servers"
        )


def _of_hosts(network: Network, request: PlanRequest, planner: str) -> Answer:
    if planner in PLANNERS and planner not in HOST_PLANNERS:
        raise PlanError(
            f"planner {planner} needs switches, and {network.name} has none; planners for hosts "
            f"only: {', '.join(HOST_PLANNERS)}"
        )
    graph = planning_graph(network, request.workers)
    return Answer(host_forest(graph, request.forest, planner), None)


def host_forest(graph: PlanningGraph, options: ForestOptions, planner: str) -> Forest:
    """Return the trees of a planner for hosts; PlanError for another one, or if it has no plan.

    Hosts that do not work have no part in them.
    """
    if planner not in HOST_PLANNERS:
        raise PlanError(
            f"planner {planner!r} plans no trees of hosts; expected one of "
            f"{', '.join(HOST_PLANNERS)}"
        )
    if planner != MTREE:
        check_without_mtree(options, planner)
    return HOST_PLANNERS[planner](without_forwarders(graph), options)


def job_forest(network: Network, plan: JobPlan, found: MultiHopAnswer) -> Forest:
    """Return the trees of a plan by the planner multi-hop, each with its share of the rate."""
    trees = _rated_trees(network, plan, found.rate)
    return Forest(MULTI_HOP, trees, found.certificate, found.verdict, found.seconds)


def plan_forest(
    network: Network, request: PlanRequest, plan: JobPlan, planner: str, seconds: float
) -> Forest:
    """Return the trees of a plan at the rate that the links allow, with the bound of cuts.

    For planners that return a plan alone. `seconds`: how long this one took.
    """
    graph = planning_graph(network, request.workers)
    loads: dict[Edge, Fraction] = {}
    trees = _rated_trees(network, plan, Fraction(1))
    for tree in trees:
        for edge, load in tree.loads(graph).items():
            loads[edge] = loads.get(edge, Fraction(0)) + load
    rate = min(graph.capacity[edge] / load for edge, load in loads.items())
    bound = cut_bound(packing_problem(network, request))
    trees = tuple(replace(tree, rate=tree.rate * rate) for tree in trees)
    return Forest(planner, trees, bound, Verdict.FEASIBLE, seconds)


def _rated_trees(network: Network, plan: JobPlan, rate: Fraction) -> tuple[RatedTree, ...]:
    """Return the trees of a plan, which share a rate."""
    whole = sum((_share(tree) for tree in plan.trees), Fraction(0))
    trees = []
    for tree in plan.trees:
        up = tree_flows(network, plan, tree).up
        several = {node: len(flows) for node, flows in up.items() if len(flows) != 1}
        trees.append(RatedTree(tree.server, tree.parents, rate * _share(tree) / whole, several))
    return tuple(trees)


def _share(tree: TreePlan) -> Fraction:
    return Fraction(tree.share).limit_denominator(1_000_000)
