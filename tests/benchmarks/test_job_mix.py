"""Many jobs as fluid: cases worked out by hand, and the plans that become fluid."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.job_mix import FluidJob, JobMixError, fluid_job, simulate_jobs
from hopsum.controller.jobs.priorities import ONE_LEVEL, PriorityPolicy
from hopsum.network.loaders import load_network
from hopsum.planning.model.request import PlanRequest, SwitchRole
from hopsum.planning.registry import plan_job
from hopsum.protocol.wire import frame_bytes
from hopsum.timing.routes import LinkArrays

LAS = PriorityPolicy(early_iterations=0, thresholds=(10,), starved=None)
"""The first ten bytes go before the others."""


def job(start: float, size: float, *links: int, rounds: int = 1, **options: float) -> FluidJob:
    return FluidJob(start, size, rounds, tuple((link, 1.0) for link in links or (0,)), **options)


def ends(jobs: list[FluidJob], capacities: list[float], policy: PriorityPolicy) -> list[float]:
    times = simulate_jobs(jobs, np.array(capacities), policy, report_seconds=1.0)
    assert times.started.tolist() == [each.start for each in jobs]
    return [float(end) for end in times.ended]


def test_two_jobs_share_a_link_fairly() -> None:
    # Both at 5 until the short one is over at 4 s, having sent 20 each; then 20 at 10.
    assert ends([job(0, 40), job(0, 20)], [10], ONE_LEVEL) == [6, 4]
    # Alone for 1 s.
    assert ends([job(0, 30), job(1, 10)], [10], ONE_LEVEL) == [4, 3]


def test_a_job_that_has_sent_little_goes_first() -> None:
    # At 1 s the first has sent its ten; the second, that comes at 2 s, has the link for 1 s.
    assert ends([job(0, 40), job(2, 10)], [10], LAS) == [5, 3]
    assert ends([job(0, 40), job(2, 10)], [10], ONE_LEVEL) == [5, 4]


def test_levels_change_when_agents_report() -> None:
    # The second has sent ten bytes at 2.5 s, which is reported at 3 s; they share from then on.
    assert ends([job(0, 40), job(1.5, 20)], [10], LAS) == pytest.approx([6, 4])
    quick = simulate_jobs([job(0, 40), job(1.5, 20)], np.array([10.0]), LAS, report_seconds=0.5)
    assert quick.ended.tolist() == pytest.approx([6, 4.5])


def test_first_iterations_go_before_everything() -> None:
    # One byte a round, and twenty: the second is at level 0 until 5 s, then they share.
    jobs = [job(0, 60, rounds=60), job(1, 60, rounds=3)]
    early = PriorityPolicy(early_iterations=2, thresholds=(10,), starved=None)
    assert ends(jobs, [10], early) == pytest.approx([12, 9])
    assert ends(jobs, [10], LAS) == pytest.approx([12, 12])


def test_a_job_goes_as_fast_as_its_tightest_link_or_its_window() -> None:
    assert ends([job(0, 20, 0, 1)], [10, 4], ONE_LEVEL) == [5]
    assert ends([job(0, 20, 0, 1, limit=2.0)], [10, 4], ONE_LEVEL) == [10]
    twice = FluidJob(0, 20, 1, ((0, 2.0),))
    assert ends([twice], [10], ONE_LEVEL) == [4]


def test_bytes_of_frames_count_for_levels() -> None:
    # Ten bytes of frames are five of tensors: the first steps down at 1 s, when 5 s are left.
    heavy = [job(0, 60, sent=2.0), job(1, 10, sent=0.5)]
    assert ends(heavy, [10], LAS) == [7, 2]


def test_a_gap_without_jobs_is_skipped() -> None:
    assert ends([job(0, 10), job(1000.25, 10)], [10], LAS) == [1, 1001.25]
    assert ends([], [10], LAS) == []


def test_a_starved_job_gets_its_turn() -> None:
    starving = PriorityPolicy(early_iterations=0, thresholds=(10,), starved=5.0)
    # New jobs come whenever the one before is over: without the rule the first waits for all.
    stream = [job(1 + number, 10) for number in range(30)]
    first = ends([job(0, 20), *stream], [10], LAS)[0]
    assert first == 32
    assert ends([job(0, 20), *stream], [10], starving)[0] < first


def test_jobs_that_cannot_end_are_named() -> None:
    with pytest.raises(JobMixError, match="job 0 has no limit"):
        ends([job(0, 10)], [math.inf], ONE_LEVEL)
    with pytest.raises(JobMixError, match="job 1 never ends"):
        ends([job(0, 10), job(0, 10, 1)], [10, 0], ONE_LEVEL)


jobs_of_a_link = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 100)), min_size=1, max_size=8
)


@pytest.mark.slow
@given(jobs_of_a_link, st.sampled_from([ONE_LEVEL, LAS, PriorityPolicy(1, (5, 50), 3.0)]))
def test_a_link_works_while_there_is_work(
    chosen: list[tuple[int, int]], policy: PriorityPolicy
) -> None:
    """The last job on a link finishes at the same time under every order."""
    jobs = [job(start, size, rounds=4) for start, size in chosen]
    free = 0.0
    for start, size in sorted(chosen):
        free = max(free, start) + size / 10
    found = ends(jobs, [10], policy)
    assert max(found) == pytest.approx(free)
    assert all(
        end - start >= size / 10 - 1e-6 for end, (start, size) in zip(found, chosen, strict=True)
    )
    assert found == ends(jobs, [10], policy)


@pytest.mark.parametrize(
    ("algorithm", "copies"), [(SwitchRole.IN_NETWORK, 1), (SwitchRole.SERVER, 3)]
)
def test_a_plan_as_fluid(algorithm: SwitchRole, copies: int) -> None:
    network = load_network("star:4", link_rate="10Mbit")
    links = LinkArrays(network)
    request = PlanRequest(1, 1, ("h1", "h2", "h3"), ("h4",), algorithm=algorithm, window=64)
    plan = plan_job(network, request)
    fluid = fluid_job(links, plan, 2.0, 100_000, 5)
    assert (fluid.start, fluid.size, fluid.rounds) == (2.0, 2_000_000, 5)
    amounts = {links.pairs[link]: amount for link, amount in fluid.links}
    last = frame_bytes(plan.lanes, 1) / (4 * plan.lanes)
    assert amounts["s1", "h4"] == pytest.approx(copies * last)
    assert fluid.sent == max(amount for (u, _), amount in amounts.items() if u != "s1")
    seconds = float(simulate_jobs([fluid], links.capacities, ONE_LEVEL).completion[0])
    assert seconds == pytest.approx(fluid.size * max(amounts.values()) / 1.25e6)


def test_a_job_of_several_trees_is_refused() -> None:
    network = load_network("star:4", link_rate="10Mbit")
    plan = plan_job(network, PlanRequest(1, 1, ("h1", "h2"), ("h3", "h4")))
    with pytest.raises(JobMixError, match="job 1 has 2 trees"):
        fluid_job(LinkArrays(network), plan, 0.0, 1000, 1)
