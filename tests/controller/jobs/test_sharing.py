"""Slots among jobs: quotas, and who gives way to whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.collectives.plan import JobPlan, PlanError
from hopsum.collectives.plan_checker import check_plans
from hopsum.controller.jobs.sharing import SharingPolicy, bypassing, preempt
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import plan_job

WINDOW = 8


def network_of(slots: int) -> Network:
    return load_network("leaf-spine:2x4x1", link_rate=1e8, workers=6, slots=slots)


def request_of(network: Network, job: int, window: int = WINDOW) -> PlanRequest:
    """Workers under both leaves; every job has the same ones."""
    hosts = [name for name in network.hosts if name.startswith("h")]
    return PlanRequest(job, 1, tuple(hosts[:5]), (hosts[-1],), lanes=32, window=window)


def sums_at(plan: JobPlan) -> set[str]:
    return {name for tree in plan.trees for name, part in tree.parts.items() if part.aggregate}


def fill(network: Network, windows: Mapping[int, int]) -> tuple[Allocator, dict[int, JobPlan]]:
    """Jobs planned one after the other, each with its window."""
    allocator = Allocator(network)
    return allocator, {
        job: plan_job(network, request_of(network, job, window), allocator)
        for job, window in windows.items()
    }


def give_way(
    network: Network,
    allocator: Allocator,
    plans: dict[int, JobPlan],
    victims: Mapping[int, frozenset[str]],
) -> None:
    """Apply the result of `preempt`, as a manager does."""
    for job, switches in victims.items():
        old = plans[job]
        request = replace(request_of(network, job, old.window), epoch=old.epoch + 1)
        plans[job] = plan_job(bypassing(network, switches), request, allocator)
        check_plans(network, plans.values())
        allocator.release_at(job, switches)


# -- quotas


def test_a_job_of_more_trees_than_its_quota_has_slots_is_refused() -> None:
    request = replace(request_of(network_of(64), 1, 1), servers=("ps",) * 33)
    with pytest.raises(PlanError, match="33 trees of a job do not fit into its quota of 32 slots"):
        SharingPolicy(Fraction(1, 2)).check(network_of(64), request)


def test_a_job_beyond_its_quota_is_refused_with_what_would_fit() -> None:
    network = network_of(64)
    policy = SharingPolicy(Fraction(1, 4))
    policy.check(network, request_of(network, 1, 16))
    with pytest.raises(PlanError, match=r"its quota at switch \w+ is 16 of 64; use a window of 16"):
        policy.check(network, request_of(network, 1, 32))
    for wrong in (Fraction(0), Fraction(3, 2)):
        with pytest.raises(ValueError, match="expected above 0"):
            SharingPolicy(wrong)


# -- pre-emption


def test_a_job_that_finds_room_disturbs_no_other() -> None:
    network = network_of(2 * WINDOW)
    allocator, _ = fill(network, {1: WINDOW})
    assert preempt(network, request_of(network, 2), allocator, {1: 7, 2: 0}).victims == {}


def test_the_lowest_gives_way_where_the_new_one_sums_and_both_plans_hold() -> None:
    network = network_of(2 * WINDOW)
    allocator, plans = fill(network, {1: WINDOW, 2: WINDOW})
    before = allocator.copy()
    request = request_of(network, 3)
    victims = preempt(network, request, allocator, {1: 2, 2: 5, 3: 1}).victims
    assert set(victims) == {2}
    assert all(allocator.in_use(s) == before.in_use(s) for s in network.switches)
    give_way(network, allocator, plans, victims)
    plans[3] = plan_job(network, request, allocator)
    check_plans(network, plans.values())
    assert sums_at(plans[3]) == victims[2]
    assert not sums_at(plans[2]) & victims[2]
    assert sums_at(plans[1]) == sums_at(plans[3])


@pytest.mark.parametrize("level", [3, 4])
def test_equal_and_higher_priorities_give_no_way(level: int) -> None:
    network = network_of(WINDOW)
    allocator, _ = fill(network, {1: WINDOW})
    request = request_of(network, 2)
    with pytest.raises(PlanError, match="8 of 8 are in use"):
        preempt(network, request, allocator, {1: 3, 2: level})
    assert set(preempt(network, request, allocator, {1: 3, 2: 2}).victims) == {1}


def test_no_job_is_preempted_in_vain() -> None:
    """16 slots in a row are needed; job 2, in the middle, is of high priority."""
    network = network_of(24)
    allocator, plans = fill(network, {1: 8, 2: 8, 3: 8})
    leaf = sorted(sums_at(plans[2]))[0]
    assert sums_at(plans[2]) > {leaf}
    allocator.release_at(2, sums_at(plans[2]) - {leaf})
    wide = request_of(network, 4, 16)
    victims = preempt(network, wide, allocator, {1: 7, 2: 0, 3: 7, 4: 1}).victims
    assert leaf not in frozenset().union(*victims.values())
    assert victims
    everywhere = preempt(network, wide, allocator, {1: 0, 2: 7, 3: 7, 4: 1}).victims
    assert set(everywhere) == {2, 3}


def test_as_few_jobs_as_possible_are_preempted() -> None:
    """The lowest, job 1, is not in the way once the larger one has gone."""
    network = network_of(24)
    allocator, _ = fill(network, {1: 4, 2: 4, 3: 16})
    wide = request_of(network, 4, 16)
    assert set(preempt(network, wide, allocator, {1: 7, 2: 7, 3: 6, 4: 1}).victims) == {3}


def test_a_job_without_a_level_is_named() -> None:
    network = network_of(WINDOW)
    allocator, _ = fill(network, {1: WINDOW})
    with pytest.raises(PlanError, match="job 1 has no level"):
        preempt(network, request_of(network, 2), allocator, {2: 0})


def test_groups_stay_when_slots_go() -> None:
    network = network_of(2 * WINDOW)
    allocator, plans = fill(network, {1: WINDOW})
    [switch] = list(sums_at(plans[1]))[:1]
    group = plans[1].trees[0].parts[switch].group
    allocator.release_at(1, [switch])
    assert allocator.in_use(switch) == {}
    other = plan_job(network, request_of(network, 2), allocator)
    assert other.trees[0].parts[switch].group != group


@pytest.mark.slow
@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from([2, 4, 8]), st.integers(0, 7)), min_size=1, max_size=7))
def test_slots_are_never_shared(jobs: list[tuple[int, int]]) -> None:
    network = network_of(16)
    allocator = Allocator(network)
    plans: dict[int, JobPlan] = {}
    levels: dict[int, int] = {}
    for job, (window, level) in enumerate(jobs, start=1):
        levels[job] = level
        request = request_of(network, job, window)
        try:
            victims = preempt(network, request, allocator, levels).victims
        except PlanError:
            continue
        assert all(levels[victim] > level for victim in victims)
        give_way(network, allocator, plans, victims)
        plans[job] = plan_job(network, request, allocator)
        check_plans(network, plans.values())
