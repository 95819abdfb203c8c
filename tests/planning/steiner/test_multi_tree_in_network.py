from __future__ import annotations

import asyncio
from dataclasses import replace
from fractions import Fraction

import pytest

from hopsum.collectives.plan import JobPlan, PlanError, Results
from hopsum.collectives.plan_checker import check_plans
from hopsum.host_agent.plan_checks import check_same_job
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.forest import ForestOptions
from hopsum.planning.model.placement import place
from hopsum.planning.model.request import PlanRequest, SwitchRole
from hopsum.planning.registry import plan_job
from hopsum.planning.steiner.multi_tree_in_network import pack_in_network, spread
from tests.support.jobs import job_of
from tests.support.manager import Manager


def job(
    spec: str = "leaf-spine:4x2", *, uplink: float = 0.25, servers: int = 1, **choices: object
) -> tuple[Network, PlanRequest]:
    network = load_network(spec, link_rate=1.0, uplink_rate=uplink, servers=servers)
    placement = place(network, None, servers)
    request = PlanRequest(1, 1, placement.workers, placement.servers, **choices)  # type: ignore[arg-type]
    return network, request


def test_trees_share_a_server_and_have_slots_of_their_own() -> None:
    network, request = job()
    plan = plan_job(network, request, planner="multi-tree")
    check_plans(network, [plan])
    assert [tree.server for tree in plan.trees] == ["ps"] * 4
    assert [tree.share for tree in plan.trees] == [0.25] * 4
    assert {tree.parents["l1"] for tree in plan.trees} == {"ps"}
    assert {tree.parents["l2"] for tree in plan.trees} == {"s1", "s2", "s3", "s4"}
    assert len({tree.parts["l1"].slot_base for tree in plan.trees}) == 4
    assert len({tree.parts["l1"].group for tree in plan.trees}) == 4


def test_shares_follow_the_rates() -> None:
    network, request = job("leaf-spine:2x1x2")
    rates = {frozenset(("l1", "s1")): 0.75, frozenset(("l2", "s1")): 0.75}
    network = replace(
        network,
        links=tuple(
            replace(li, bandwidth=rates.get(frozenset((li.a, li.b)), li.bandwidth))
            for li in network.links
        ),
    )
    plan = plan_job(network, request, planner="multi-tree")
    check_plans(network, [plan])
    assert [tree.share for tree in plan.trees] == [0.75, 0.25]


def test_slots_that_other_jobs_hold_leave_fewer_trees() -> None:
    network, request = job(window=1024)
    allocator = Allocator(network)
    other = replace(request, job=2, forest=ForestOptions(max_trees=2))
    first = plan_job(network, other, allocator, "multi-tree")
    second = plan_job(network, request, allocator, "multi-tree")
    check_plans(network, [first, second])
    assert len(first.trees) == len(second.trees) == 2
    with pytest.raises(PlanError, match="every tree sums at l1, which has no free slots"):
        plan_job(network, replace(request, job=3), allocator, "multi-tree")


def test_a_new_epoch_keeps_shares_and_slots() -> None:
    network, request = job()
    allocator = Allocator(network)
    before = plan_job(network, request, allocator, "multi-tree")
    shares = tuple(tree.share for tree in before.trees)
    without = network.without(["s2"])
    after = plan_job(without, replace(request, epoch=2, shares=shares), allocator, "multi-tree")
    check_plans(without, [after])
    check_same_job(before, after)
    assert all("s2" not in tree.parts for tree in after.trees)
    spines = [tree.parents["l2"] for tree in after.trees]
    assert sorted(spines.count(name) for name in ("s1", "s3", "s4")) == [1, 1, 2]
    for old, new in zip(before.trees, after.trees, strict=True):
        assert old.parts["l1"].slot_base == new.parts["l1"].slot_base


def test_shares_go_where_they_end_soonest() -> None:
    rates = [Fraction(2), Fraction(1)]
    assert spread(rates, (0.5, 0.25, 0.25)) == [0, 1, 0]
    assert spread(rates, (0.2, 0.8)) == [1, 0]


def test_plain_spines_pass_every_flow() -> None:
    network = load_network("leaf-spine:3x1x2", link_rate=8.0, uplink_rate=4.0, plain=("s1", "s2"))
    placement = place(network)
    request = PlanRequest(1, 1, placement.workers, placement.servers)
    plan = plan_job(network, request, planner="multi-tree")
    check_plans(network, [plan])
    forest = pack_in_network(network, request)
    # Two leaves' sums cross each spine's one link to l1, so that the spines give 4/2 each.
    assert forest.throughput == 4
    assert all(tree.flows == {name: 2} for tree in forest.trees for name in tree.flows)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"algorithm": SwitchRole.SERVER}, "use --algorithm in-network"),
        ({"results": Results.UNICAST}, "replicated results"),
        ({"forest": ForestOptions(max_height=3)}, "no tree is of height 3 or less: some worker"),
        ({"servers": ("h1",)}, "host 'h1' cannot be worker and server"),
    ],
)
def test_impossible_requests_are_refused(choices: dict[str, object], message: str) -> None:
    network, request = job()
    with pytest.raises(PlanError, match=message):
        plan_job(network, replace(request, **choices), planner="multi-tree")  # type: ignore[arg-type]


def test_links_need_rates() -> None:
    network = load_network("leaf-spine:2x2")
    placement = place(network)
    with pytest.raises(PlanError, match="link h1-l1 has no bandwidth"):
        plan_job(
            network, PlanRequest(1, 1, placement.workers, placement.servers), planner="multi-tree"
        )


def test_the_manager_plans_around_a_spine_with_the_same_shares() -> None:
    network, request = job()

    async def install(rules: object) -> None:
        """Switches take everything at once."""

    async def lose_a_spine() -> tuple[JobPlan, JobPlan]:
        manager = Manager(network, install)
        before = await manager.submit(job_of(request, planner="multi-tree"))
        (after,) = await manager.fail(["s3"])
        return before, after

    before, after = asyncio.run(lose_a_spine())
    check_same_job(before, after)
    assert after.epoch == 2
    assert len(after.trees) == 4
    assert all("s3" not in tree.parts for tree in after.trees)
