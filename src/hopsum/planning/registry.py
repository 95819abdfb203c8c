"""All planners by name, and the one function that runs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from hopsum.collectives.choices import DEFAULT_PLANNER, EMBEDDING, MTREE, MULTI_TREE
from hopsum.collectives.flows import tree_flows
from hopsum.collectives.plan import JobPlan, PlanError, TreePlan
from hopsum.collectives.plan_checker import check_plans
from hopsum.network.model import Network
from hopsum.planning.embedding.job_planner import EmbeddedJob, embed, plan_job_embedding
from hopsum.planning.embedding.plan_builder import realise
from hopsum.planning.model import options as known
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.forest import Forest, ForestOptions, RatedTree, Verdict
from hopsum.planning.model.forest_checker import check_forest
from hopsum.planning.model.graph import Edge, PlanningGraph, planning_graph, without_forwarders
from hopsum.planning.model.job_plans import check_request
from hopsum.planning.model.options import PlannerOption, apply_options
from hopsum.planning.model.request import Planner, PlanRequest
from hopsum.planning.spanning.mtree import plan_mtree
from hopsum.planning.spanning.multi_tree import plan_multi_tree
from hopsum.planning.steiner.multi_hop import plan_of_routes, solve_multi_hop
from hopsum.planning.steiner.multi_hop_answer import MultiHopAnswer
from hopsum.planning.steiner.multi_tree_in_network import (
    pack_in_network,
    packing_problem,
    plan_of,
)
from hopsum.planning.steiner.packing_bounds import cut_bound

MULTI_HOP = DEFAULT_PLANNER


@dataclass(frozen=True)
class PlannerResult:
    """Result of a planner.

    `job`: the plan that agents and switches run; None for trees among hosts, which run as a
    schedule, and for trees that cannot be run: `why_not` then gives the reason. `find_forest`: the
    trees with their rates and bound, unchecked; None for an embedding, which has topologies and
    weights (`embedding`; None for its later epochs).
    """

    network: Network
    request: PlanRequest
    job: JobPlan | None
    find_forest: Callable[[], Forest] | None = None
    why_not: str = ""
    embedding: EmbeddedJob | None = None

    @property
    def runnable(self) -> JobPlan:
        """The plan that agents and switches run. Raises PlanError if there is none."""
        if self.job is None:
            raise PlanError(self.why_not or "trees among hosts run as a schedule, without switches")
        return self.job

    @cached_property
    def forest(self) -> Forest:
        """The trees with their rates and bound, checked. Raises PlanError for an embedding."""
        if self.find_forest is None:
            raise PlanError(
                f"planner {EMBEDDING}: it has topologies with weights, not trees with rates"
            )
        network, request = self.network, self.request
        forest = self.find_forest()
        graph = planning_graph(network, request.workers)
        adding = replace(graph, combines=graph.combines.union(request.servers))
        slots = {name: switch.slots // request.window for name, switch in network.switches.items()}
        check_forest(adding, forest, request.forest, slots)
        return forest


@dataclass(frozen=True, slots=True)
class PlannerEntry:
    """A planner: what it plans in networks with switches, and trees among hosts alone.

    `hosts`: it needs a graph of hosts that all forward ([000][]). `mixed`: `plan` may do without
    switches.
    """

    meaning: str
    options: tuple[PlannerOption, ...]
    plan: Callable[[Network, PlanRequest, Allocator], PlannerResult] | None = None
    hosts: Callable[[PlanningGraph, ForestOptions], Forest] | None = None
    mixed: bool = False


def make_plan(
    network: Network,
    request: PlanRequest,
    planner: str | Planner = MULTI_HOP,
    allocator: Allocator | None = None,
) -> PlannerResult:
    """Run a planner, by name or a function of one's own. PlanError if no plan meets the request.

    Every link needs a bandwidth for the bounds of trees. `allocator` keeps the slots and groups of
    several jobs; without it the job is alone. Every job's plan is checked, independently of the
    planner's reasoning, and the allocator changes only if the check passes.
    """
    free = Allocator(network) if allocator is None else allocator.copy()
    if not isinstance(planner, str):
        found = _of_function(network, request, free, planner)
    else:
        entry = find_planner(planner)
        if entry.hosts is not None and not network.switches:
            found = _of_hosts(network, request, planner)
        elif entry.plan is None:
            raise PlanError(
                f"planner {planner} plans networks of hosts only, and {network.name} has switches; "
                f"planners for those: {', '.join(SWITCH_PLANNERS)}"
            )
        elif not network.switches and not entry.mixed:
            raise PlanError(
                f"planner {planner} needs switches, and {network.name} has no switches; "
                f"planners for hosts only: {', '.join(HOST_PLANNERS)}"
            )
        else:
            found = entry.plan(network, request, free)
    if found.job is not None:
        check_plans(network, [found.job])
        if allocator is not None:
            allocator.take(found.job)
    return found


def plan_job(
    network: Network,
    request: PlanRequest,
    allocator: Allocator | None = None,
    planner: str = MULTI_HOP,
) -> JobPlan:
    """Return the plan that agents and switches run, as `make_plan`, whose errors it raises."""
    return make_plan(network, request, planner, allocator).runnable


def host_forest(graph: PlanningGraph, options: ForestOptions, planner: str) -> Forest:
    """Return the trees of a planner among hosts; PlanError for another one, or if there are none.

    Hosts that do not work have no part in them.
    """
    entry = PLANNERS.get(planner)
    if entry is None or entry.hosts is None:
        raise PlanError(
            f"planner {planner!r:.40} plans no trees of hosts; expected one of "
            f"{', '.join(HOST_PLANNERS)}"
        )
    return entry.hosts(without_forwarders(graph), options)


def find_planner(name: str) -> PlannerEntry:
    """Return a planner by name; PlanError lists those there are."""
    if name not in PLANNERS:
        raise PlanError(f"there is no planner {name!r:.40}; planners: {', '.join(PLANNERS)}")
    return PLANNERS[name]


def with_options(request: PlanRequest, planner: str, options: Mapping[str, object]) -> PlanRequest:
    """Return the request with options of a planner by name, as texts or numbers.

    Raises PlanError for one that the planner has not, or an invalid value.
    """

    def refuse(option: str) -> PlanError:
        others = [
            name for name, e in PLANNERS.items() if option in {each.name for each in e.options}
        ]
        having = f", but {' and '.join(others)} {'has' if len(others) == 1 else 'have'}"
        names = ", ".join(each.name for each in find_planner(planner).options)
        return PlanError(
            f"planner option {option!r:.40}: planner {planner} has no such option"
            f"{having if others else ''}; its options: {names}"
        )

    return apply_options(request, find_planner(planner).options, options, refuse)


def option_values(request: PlanRequest, planner: str) -> dict[str, str]:
    """Return all options of a planner with the values that a request has, as texts."""
    return {option.name: option.text(request) for option in find_planner(planner).options}


def _multi_hop(network: Network, request: PlanRequest, allocator: Allocator) -> PlannerResult:
    routes = solve_multi_hop(network, request, allocator)
    plan = plan_of_routes(network, request, routes, allocator)
    return PlannerResult(network, request, plan, lambda: _multi_hop_forest(network, plan, routes))


def _multi_hop_forest(network: Network, plan: JobPlan, found: MultiHopAnswer) -> Forest:
    """Return the trees of a plan by the planner multi-hop, each with its share of the rate."""
    trees = _rated_trees(network, plan, found.rate)
    return Forest(MULTI_HOP, trees, found.certificate, found.verdict, found.seconds)


def _multi_tree(network: Network, request: PlanRequest, allocator: Allocator) -> PlannerResult:
    why_not: PlanError | None = None
    try:
        check_request(network, request)
    except PlanError as error:
        why_not = error
    try:
        forest = pack_in_network(network, request, allocator)
    except PlanError as error:
        raise why_not or error from None
    try:
        if why_not is None:
            plan = plan_of(network, request, forest, allocator)
            return PlannerResult(network, request, plan, lambda: forest)
    except PlanError as error:
        why_not = error
    return PlannerResult(network, request, None, lambda: forest, str(why_not))


def _embedding(network: Network, request: PlanRequest, allocator: Allocator) -> PlannerResult:
    if request.before is not None:
        return PlannerResult(network, request, plan_job_embedding(network, request, allocator))
    found = embed(network, request, allocator)
    plan = realise(network, request, found.embedding, allocator)
    return PlannerResult(network, request, plan, embedding=found)


def _of_function(
    network: Network, request: PlanRequest, allocator: Allocator, planner: Planner
) -> PlannerResult:
    started = time.perf_counter()
    plan = planner(network, request, allocator)
    seconds = time.perf_counter() - started
    name = getattr(planner, "__name__", "own planner")
    return PlannerResult(
        network, request, plan, lambda: _plan_forest(network, request, plan, name, seconds)
    )


def _of_hosts(network: Network, request: PlanRequest, planner: str) -> PlannerResult:
    forest = host_forest(planning_graph(network, request.workers), request.forest, planner)
    return PlannerResult(network, request, None, lambda: forest)


def _plan_forest(
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


_LIMITS = (known.MAX_TREES, known.MAX_HEIGHT, known.MAX_DELAY, known.MIN_RATE)
PLANNERS: Mapping[str, PlannerEntry] = {
    MULTI_HOP: PlannerEntry(
        "A tree for each server, on which as little as possible crosses the busiest link.",
        (
            *(known.MAX_HEIGHT, known.MAX_AGGREGATING),
            *(known.METHOD, known.GAP, known.TIME_LIMIT),
        ),
        _multi_hop,
    ),
    MULTI_TREE: PlannerEntry(
        "Several trees that share the links, in switches or among hosts.",
        (*_LIMITS, known.GAP, known.TIME_LIMIT),
        _multi_tree,
        plan_multi_tree,
    ),
    EMBEDDING: PlannerEntry(
        "Over several logical topologies, of switches and of hosts, with weights ([002][]).",
        (
            *(known.WEIGHT_STEPS, known.PENALTY, known.MAX_TREES, known.METHOD),
            known.EMBEDDING_TIME,
        ),
        _embedding,
        mixed=True,
    ),
    MTREE: PlannerEntry(
        "Trees among hosts that grow link by link ([000][]).",
        (*_LIMITS, known.TREE_BANDWIDTH, known.KEEP, known.GAP, known.TIME_LIMIT),
        hosts=plan_mtree,
    ),
}
SWITCH_PLANNERS = tuple(name for name, entry in PLANNERS.items() if entry.plan is not None)
"""Planners of what switches and agents run."""
HOST_PLANNERS = tuple(name for name, entry in PLANNERS.items() if entry.hosts is not None)
"""Planners for networks in which all hosts work and forward ([000][])."""
