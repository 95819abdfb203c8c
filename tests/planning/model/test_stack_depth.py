"""Hop stacks: how deep switches are compiled for, and plans on longer paths than ten switches."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import pytest

from hopsum.collectives.choices import EMBEDDING
from hopsum.collectives.plan import PlanError
from hopsum.experiment.description import Experiment
from hopsum.experiment.runner import run_experiment
from hopsum.network.loaders import load_network
from hopsum.planning.model.demand import Model
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.model.stack_depth import stack_depth
from hopsum.planning.registry import SWITCH_PLANNERS, plan_job
from hopsum.protocol.wire import HOPS_DEFAULT, most_hops

DEEP = load_network("line:16x1", link_rate=1e6, servers=0)
ENDS = PlanRequest(1, 1, ("h1", "h2", "h9"), ("h16",), max_hops=17)


@pytest.mark.parametrize(
    "spec", ["star:4", "leaf-spine:4x4", "fat-tree:4", "fat-tree:8", "dragonfly:2", "line:9x1"]
)
def test_common_networks_do_with_the_default(spec: str) -> None:
    assert stack_depth(load_network(spec), 256) == HOPS_DEFAULT


@pytest.mark.parametrize("spec", ["line:10x1", "line:16x1", "line:60x1"])
def test_deep_networks_get_what_their_shortest_paths_need(spec: str) -> None:
    network = load_network(spec)
    longest = nx.diameter(network.graph.subgraph(network.switches)) + 1
    assert longest < stack_depth(network, 256) <= len(network.switches) + 1


def test_no_more_than_the_lanes_leave_room_for() -> None:
    assert stack_depth(load_network("line:60x1"), 352) == most_hops(352) == 11
    assert stack_depth(load_network("star:4"), 256, 60) == 60
    for asked in (1, most_hops(256) + 1):
        with pytest.raises(PlanError, match=r"max-hops: .* expected 2 to 107 with 256 lanes"):
            stack_depth(DEEP, 256, asked)


@pytest.mark.parametrize("planner", SWITCH_PLANNERS)
def test_plans_are_as_deep_as_the_stack_allows(planner: str) -> None:
    asked = ENDS
    if planner == EMBEDDING:
        switches = replace(
            asked.embedding, models=frozenset({Model.IN_NETWORK}), auxiliary=("h16",)
        )
        asked = replace(asked, servers=(), embedding=switches)
    plan = plan_job(DEEP, asked, planner=planner)
    assert max(len(stack) for tree in plan.trees for stack in tree.up) == 17
    with pytest.raises(PlanError, match="max-hops" if planner == "multi-hop" else None):
        plan_job(DEEP, replace(asked, max_hops=16), planner=planner)


@pytest.mark.slow
def test_a_run_over_fourteen_switches_is_exact_to_the_byte() -> None:
    experiment = Experiment(
        "line:14x1", workers=14, elements=600, rounds=1, lanes=32, window=4, link_rate=25e6
    )
    report = run_experiment(experiment)
    assert not report.problems
    assert report.experiment.max_hops == 15
    with pytest.raises(PlanError, match="use --max-hops 15"):
        run_experiment(replace(experiment, max_hops=14))
