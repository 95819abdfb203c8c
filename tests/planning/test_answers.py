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
from hopsum.planning import answers
from hopsum.planning import registry as planners
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.demand import Model
from hopsum.planning.model.forest import Forest, ForestOptions
from hopsum.planning.model.graph import PlanningGraph
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.model.routes import make_route
from hopsum.planning.registry import make_plan
from hopsum.planning.steiner.tree_problem import Chosen, TreeTask, build_model


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
    assert problem.fits([Chosen(parents, frozenset(range(4)))]) is fits


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


@pytest.mark.parametrize("planner", list(planners.PLANNERS))
def test_a_plan_that_does_not_hold_is_refused_and_reserves_nothing(
    planner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = planners.PLANNERS[planner]

    def forgetful(network: Network, request: PlanRequest, allocator: Allocator) -> JobPlan:
        plan = real(network, request, allocator)
        tree = plan.trees[0]
        return replace(plan, trees=(replace(tree, up=(tree.up[1], *tree.up[1:])),))

    asked = ASKED
    if planner == planners.EMBEDDING:
        models = frozenset({Model.IN_NETWORK})
        asked = replace(
            asked, servers=(), embedding=replace(asked.embedding, models=models, auxiliary=("h4",))
        )
    monkeypatch.setattr(planners, "PLANNERS", {planner: forgetful})
    allocator = Allocator(RING)
    with pytest.raises(PlanError, match="the plan does not hold"):
        make_plan(RING, asked, allocator, planner)
    assert not any(allocator.in_use(switch) for switch in RING.switches)


@pytest.mark.parametrize("planner", list(answers.HOST_PLANNERS))
def test_a_forest_that_does_not_hold_is_refused(
    planner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torus = load_network("torus:3x3", link_rate=1.0)
    real = answers.HOST_PLANNERS[planner]

    def boastful(graph: PlanningGraph, options: ForestOptions) -> Forest:
        forest = real(graph, options)
        first, *rest = forest.trees
        return replace(forest, trees=(replace(first, rate=first.rate + Fraction(5)), *rest))

    monkeypatch.setitem(answers.HOST_PLANNERS, planner, boastful)
    with pytest.raises(PlanError, match=rf"the trees of planner {planner} are not valid"):
        answers.answer(torus, PlanRequest(1, 1, tuple(torus.hosts), ()), planner)


def test_the_answer_of_any_planner_is_its_own_plan(monkeypatch: pytest.MonkeyPatch) -> None:
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
        return planners.PLANNERS["multi-hop"](network, request, allocator)

    monkeypatch.setattr(answers, "PLANNERS", {**planners.PLANNERS, "near": near})
    monkeypatch.setattr(answers, "NAMES", (*answers.NAMES, "near"))
    found = answers.answer(network, PlanRequest(1, 1, ("h1", "h2", "h3", "h4"), ("ps",)), "near")
    assert found.plan is not None
    sums = {
        name for tree in found.plan.trees for name, part in tree.parts.items() if part.aggregate
    }
    assert (found.forest.planner, sums) == ("near", {"s3"})
    assert found.forest.throughput == Fraction(1_000_000, 3)
    assert found.forest.throughput < found.forest.bound == 1_000_000
