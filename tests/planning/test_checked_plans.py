"""No planner's answer gets past the checkers: trees, routes, plans and forests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import pytest

from hopsum.collectives.plan import JobPlan, PlanError
from hopsum.network.builder import NetworkBuilder
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning import registry as planners
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.demand import Model
from hopsum.planning.model.forest import Forest, ForestOptions
from hopsum.planning.model.graph import PlanningGraph
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.model.routes import make_route
from hopsum.planning.registry import PlannerResult, make_plan, plan_job
from hopsum.planning.steiner.multi_hop import plan_multi_hop
from hopsum.planning.steiner.tree_problem import NumberedTree, TreeTask, build_model


def ring_of_switches() -> Network:
    builder = NetworkBuilder("ring", 1e6)
    for i in range(1, 5):
        builder.link(builder.add_host(), builder.add_switch(f"s{i}"))
    for i in range(1, 5):
        builder.link(f"s{i}", f"s{i % 4 + 1}")
    return builder.build()


RING = ring_of_switches()
ASKED = PlanRequest(1, 1, ("h1", "h2", "h3"), ("h4",))


@pytest.mark.parametrize(
    ("parents", "fits"),
    [
        ({0: 1, 1: 2, 2: 3}, True),
        ({0: 3, 1: 2, 2: 3}, True),
        ({1: 2, 2: 3}, False),  # a worker's switch is missing
        ({0: 1, 2: 3}, False),  # its next hop leads nowhere
        ({0: 1, 1: 0, 2: 3}, False),  # a circle
        ({0: 2, 1: 2, 2: 3}, False),  # no such link
        ({0: 1, 1: 2, 2: 3, 3: 0}, False),  # the root has a parent
    ],
)
def test_only_trees_from_every_worker_fit(parents: dict[int, int], fits: bool) -> None:
    task = TreeTask("h4", ("h1", "h2", "h3"), frozenset(RING.switches))
    problem = build_model(RING, [task])
    assert problem.fits([NumberedTree(parents, frozenset(range(4)))]) is fits


@pytest.mark.parametrize(
    "parents",
    [
        {"h2": "s2", "h3": "s3", "s2": "s3", "s3": "s4", "s4": "h4"},
        {"h1": "s1", "h2": "s2", "h3": "s3", "s2": "s3", "s3": "s4", "s4": "h4"},
        {"h1": "s1", "s1": "s2", "h2": "s2", "s2": "s1", "h3": "s3", "s3": "s4", "s4": "h4"},
    ],
)
def test_a_route_without_a_way_for_a_worker_is_refused(parents: Mapping[str, str]) -> None:
    with pytest.raises(PlanError, match=r"server h4 is not a tree: .* h1"):
        make_route(RING, ASKED.workers, parents, "h4", frozenset(RING.switches))


@pytest.mark.parametrize("planner", planners.SWITCH_PLANNERS)
def test_a_plan_that_does_not_hold_is_refused_and_reserves_nothing(
    planner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = planners.PLANNERS[planner]
    real = entry.plan
    assert real is not None

    def forgetful(network: Network, request: PlanRequest, allocator: Allocator) -> PlannerResult:
        found = real(network, request, allocator)
        plan = found.runnable
        tree = plan.trees[0]
        lost = replace(plan, trees=(replace(tree, up=(tree.up[1], *tree.up[1:])),))
        return replace(found, job=lost)

    asked = ASKED
    if planner == planners.EMBEDDING:
        models = frozenset({Model.IN_NETWORK})
        asked = replace(
            asked, servers=(), embedding=replace(asked.embedding, models=models, auxiliary=("h4",))
        )
    monkeypatch.setattr(planners, "PLANNERS", {planner: replace(entry, plan=forgetful)})
    allocator = Allocator(RING)
    with pytest.raises(PlanError, match="the plan does not hold"):
        plan_job(RING, asked, allocator, planner)
    assert not any(allocator.in_use(switch) for switch in RING.switches)


@pytest.mark.parametrize("planner", planners.HOST_PLANNERS)
def test_a_forest_that_does_not_hold_is_refused(
    planner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torus = load_network("torus:3x3", link_rate=1.0)
    entry = planners.PLANNERS[planner]
    real = entry.hosts
    assert real is not None

    def boastful(graph: PlanningGraph, options: ForestOptions) -> Forest:
        forest = real(graph, options)
        first, *rest = forest.trees
        return replace(forest, trees=(replace(first, rate=first.rate + Fraction(5)), *rest))

    monkeypatch.setattr(planners, "PLANNERS", {planner: replace(entry, hosts=boastful)})
    with pytest.raises(PlanError, match=rf"the trees of planner {planner} are not valid"):
        _ = make_plan(torus, PlanRequest(1, 1, tuple(torus.hosts), ()), planner).forest


def test_the_answer_of_any_planner_is_its_own_plan() -> None:
    """One that sums at the server's switch alone: both flows of two workers take its last link."""
    chain = NetworkBuilder("chain", 1e6)
    for i in range(1, 4):
        chain.link(chain.add_host(), chain.add_switch(f"s{i}"))
    for host, switch in (("h4", "s1"), ("ps", "s3")):
        chain.link(chain.add_host(host), switch)
    chain.link("s1", "s2")
    chain.link("s2", "s3")
    network = chain.build()

    def near(network: Network, request: PlanRequest, allocator: Allocator) -> JobPlan:
        switches = {
            name: replace(switch, aggregates=name == "s3")
            for name, switch in network.switches.items()
        }
        network = replace(network, switches=switches)
        return plan_multi_hop(network, request, allocator)

    found = make_plan(network, PlanRequest(1, 1, ("h1", "h2", "h3", "h4"), ("ps",)), near)
    plan = found.runnable
    sums = {name for tree in plan.trees for name, part in tree.parts.items() if part.aggregate}
    assert (found.forest.planner, sums) == ("near", {"s3"})
    assert found.forest.throughput == Fraction(1_000_000, 3)
    assert found.forest.throughput < found.forest.bound == 1_000_000
