"""`hopsum.plan`: trees as graphs, bytes, seconds, the bound; planners of one's own."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import pytest

import hopsum
from hopsum.collectives.plan import PlanError
from hopsum.planning.steiner.multi_hop import plan_multi_hop

NETWORK = hopsum.leaf_spine(2, 2, link_rate="10Mbit")


def test_a_plan_says_who_sums_what() -> None:
    plan = hopsum.plan(NETWORK, workers=["h1", "h2", "h3"], servers=["h4"], elements=100_000)
    assert (plan.planner, plan.rate, plan.bound, plan.gap) == ("multi-hop", 10e6, 10e6, 0.0)
    [tree] = plan.trees
    assert nx.is_arborescence(tree.reverse())
    assert tree.graph == {"root": "h4", "rate": 10e6}
    assert {node for node, role in tree.nodes(data="role") if role == "worker"} == {
        "h1", "h2", "h3",
    }  # fmt: skip
    sums = {node for node, role in tree.nodes(data="role") if role == "sums"}
    assert sums == {row["switch"] for row in plan.switches if row["sums"]}
    assert plan.bytes["h1", "l1"] == plan.bytes["h2", "l1"]
    assert plan.links[0]["bytes"] == max(plan.bytes.values())
    # The slowest link carries the tensor once; headers and latency come on top.
    assert plan.seconds == pytest.approx(32 * 100_000 / 10e6, rel=0.1)
    assert "multi-hop on leaf-spine:2x2" in str(plan)
    assert "<svg" in plan._repr_html_()


@pytest.mark.parametrize(
    ("dtype", "wire_bits", "bits"),
    [("bfloat16", 0, 16), ("int8", 0, 8), ("float32", 16, 16), ("int8", 32, 32)],
)
def test_a_plan_predicts_values_as_wide_as_they_are(dtype: str, wire_bits: int, bits: int) -> None:
    usual = hopsum.plan(NETWORK, elements=100_000, dtype="int32")
    plan = hopsum.plan(NETWORK, elements=100_000, dtype=dtype, wire_bits=wire_bits)
    for link, size in plan.bytes.items():
        assert size == pytest.approx(bits / 32 * usual.bytes[link], rel=0.01)


def test_values_that_hosts_cannot_sum_take_no_embedding() -> None:
    with pytest.raises(PlanError, match="embedding: only switches and servers can sum"):
        hopsum.plan(NETWORK, planner="embedding", dtype="int8")


def test_every_planner_by_name() -> None:
    for name in set(hopsum.planners()) - {"mtree"}:
        plan = hopsum.plan(NETWORK, planner=name)
        assert 0 < plan.rate <= plan.bound
    among_hosts = hopsum.plan(hopsum.complete(4, link_rate=1e6))
    assert (among_hosts.planner, among_hosts.job) == ("multi-tree", None)
    with pytest.raises(hopsum.InputError, match="no prediction"):
        _ = among_hosts.bytes
    with pytest.raises(hopsum.InputError, match="there is no planner 'none'"):
        hopsum.plan(NETWORK, planner="none")


def test_an_embedding_is_a_plan_too() -> None:
    plan = hopsum.plan(NETWORK, planner="embedding", elements=100_000, options={"penalty": 64})
    assert plan.planner == "embedding"
    assert plan.embedding is not None and plan.embedding.embedding.parts
    assert plan.seconds > 0 and 0 <= plan.gap < 1
    [tree] = plan.trees
    assert tree.graph["rate"] == plan.rate
    assert "1 topology" in str(plan)
    assert "<svg" in plan.svg()
    assert plan.explain()[0].startswith("the busiest decides")
    assert {row["table"] for row in plan.rules} >= {"admission"}
    with pytest.raises(hopsum.InputError, match="not trees with rates"):
        _ = plan.forest


def test_options_of_a_planner() -> None:
    network = hopsum.leaf_spine(2, 2, link_rate="10Mbit", uplink_rate="4Mbit")
    rates = [
        hopsum.plan(network, planner="multi-tree", options=options).rate
        for options in ({}, {"max-trees": 1}, {"max_trees": "1"})
    ]
    assert rates == [8e6, 4e6, 4e6]
    with pytest.raises(hopsum.InputError, match="no such option"):
        hopsum.plan(network, options={"max-trees": 1})
    with pytest.raises(hopsum.InputError, match="takes none"):
        hopsum.plan(network, planner=near_server, options={"gap": 0})
    rows = hopsum.planner_options("mtree")
    [keep] = [row for row in rows if row["option"] == "keep"]
    assert (keep["type"], keep["default"]) == ("SHARE", "0.95")


def test_a_plot_has_a_bar_for_each_link() -> None:
    pytest.importorskip("matplotlib")
    plan = hopsum.plan(NETWORK)
    axes = plan.plot()
    assert len(axes.patches) == len(plan.links)
    assert plan.plot(axes) is axes
    with pytest.raises(hopsum.InputError, match="no prediction"):
        hopsum.plan(hopsum.complete(4, link_rate=1e6)).plot()


def near_server(
    network: hopsum.Network, request: hopsum.PlanRequest, allocator: hopsum.Allocator
) -> hopsum.JobPlan:
    """Sum at the server's switch alone."""
    near = {network.access_switch(server) for server in request.servers}
    switches = {
        name: replace(switch, aggregates=name in near) for name, switch in network.switches.items()
    }
    return plan_multi_hop(replace(network, switches=switches), request, allocator)


def test_a_planner_of_one_s_own_is_compared_with_the_bound() -> None:
    own = hopsum.plan(NETWORK, planner=near_server)
    best = hopsum.plan(NETWORK)
    assert own.planner == "near_server"
    assert own.bound >= own.rate
    assert sum(own.bytes.values()) > sum(best.bytes.values())


def test_a_wrong_plan_of_one_s_own_is_refused() -> None:
    def forgets_a_worker(
        network: hopsum.Network, request: hopsum.PlanRequest, allocator: hopsum.Allocator
    ) -> hopsum.JobPlan:
        plan = near_server(network, request, allocator)
        tree = plan.trees[0]
        fewer = {node: parent for node, parent in tree.parents.items() if node != "h1"}
        return replace(plan, trees=(replace(tree, parents=fewer),))

    with pytest.raises(hopsum.InputError):
        hopsum.plan(NETWORK, planner=forgets_a_worker)


def test_without_rates_there_is_no_time() -> None:
    plan = hopsum.plan(hopsum.star(3, link_rate="1Mbit"))
    assert plan.seconds > 0
    unlimited = hopsum.load(hopsum.to_networkx(hopsum.star(3)))
    planned = hopsum.plan(unlimited)
    assert not planned.rated
    assert "1 link of at most 1 link" in str(planned)
    with pytest.raises(hopsum.InputError, match="without a rate"):
        _ = planned.seconds
