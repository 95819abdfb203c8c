"""Levels of jobs: early iterations first, then by bytes sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.controller.jobs.priorities import (
    ONE_LEVEL,
    FeedbackQueue,
    PriorityError,
    PriorityPolicy,
    geometric,
    suitable_policy,
)
from hopsum.network.loaders import load_network
from hopsum.protocol.tos import LEVELS, LevelError, level_of_tos, tos_of_level

POLICY = PriorityPolicy(early_iterations=3, thresholds=(100, 1000))


def test_thresholds_grow_geometrically_and_leave_a_level_for_each() -> None:
    assert geometric(10, 10) == (10, 100, 1000, 10**4, 10**5, 10**6)
    assert len(PriorityPolicy().thresholds) == LEVELS - 2
    assert PriorityPolicy().level(10, 10**18) == LEVELS - 1


@pytest.mark.parametrize(
    ("iteration", "sent", "level"),
    [(0, 0, 0), (2, 10**9, 0), (3, 0, 1), (3, 99, 1), (3, 100, 2), (9, 999, 2), (9, 1000, 3)],
)
def test_level(iteration: int, sent: int, level: int) -> None:
    assert POLICY.level(iteration, sent) == level


def test_thresholds_suit_the_slowest_link() -> None:
    network = load_network("leaf-spine:2x2", link_rate="100Mbit", uplink_rate="10Mbit")
    policy = suitable_policy(network)
    assert policy.thresholds[:3] == (1_250_000, 5_000_000, 20_000_000)
    assert policy.early_iterations == PriorityPolicy().early_iterations
    assert suitable_policy(load_network("star:2")) == PriorityPolicy()


def test_without_priorities_there_is_one_level() -> None:
    queue = FeedbackQueue(ONE_LEVEL)
    level = queue.add(1, 0.0)
    queue.add(2, 0.0)
    queue.report(1, "h1", 1000, 10**15, 0.0)
    assert queue.update(1e6) == {}
    assert queue.levels() == {1: level, 2: level}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400)), max_size=30))
def test_a_job_only_goes_down(steps: list[tuple[int, int]]) -> None:
    queue = FeedbackQueue(POLICY)
    level = queue.add(1, 0.0)
    later = POLICY.later(0)
    iteration = sent = 0
    for more_iterations, more_bytes in steps:
        iteration, sent = iteration + more_iterations, sent + more_bytes
        queue.report(1, "h1", iteration, sent, 0.0)
        changed = queue.update(0.0)
        assert queue.levels()[1] >= level
        before, (level, later) = (level, later), queue.job_level(1) or (0, 0)
        assert level == queue.levels()[1] in (0, later)
        assert changed == ({} if before == (level, later) else {1: (level, later)})


def test_the_slowest_host_tells_the_iteration_and_the_busiest_the_bytes() -> None:
    queue = FeedbackQueue(POLICY)
    queue.add(1, 0.0)
    queue.report(1, "h1", 5, 10, 0.0)
    queue.report(1, "h2", 2, 20, 0.0)
    assert queue.update(0.0) == {}
    queue.report(1, "h2", 3, 30, 0.0)
    assert queue.update(0.0) == {1: (1, 1)}
    queue.sent_only(1, "server", 1000, 0.0)
    assert queue.update(0.0) == {1: (3, 3)}


def test_an_unknown_worker_is_at_the_first_iteration() -> None:
    queue = FeedbackQueue(POLICY)
    assert queue.add(1, 0.0, ("h1", "h2")) == 0
    queue.report(1, "h1", 5, 10, 0.0)
    queue.sent_only(1, "h3", 500, 0.0)
    assert queue.update(0.0) == {1: (0, 2)}
    queue.report(1, "h2", 3, 10, 0.0)
    assert queue.update(0.0) == {1: (2, 2)}


def test_sixteen_workers_make_a_job_no_longer_than_two() -> None:
    queue = FeedbackQueue(POLICY)
    for job, hosts in ((1, 2), (2, 16)):
        queue.add(job, 0.0)
        for host in range(hosts):
            queue.report(job, f"h{host}", 3, 90, 0.0)
    queue.update(0.0)
    assert queue.levels() == {1: 1, 2: 1}


def test_an_agent_that_was_restarted_counts_on() -> None:
    queue = FeedbackQueue(POLICY)
    queue.add(1, 0.0)
    for sent in (90, 5, 9):
        queue.report(1, "h1", 3, sent, 0.0)
    assert queue.update(0.0) == {1: (1, 1)}
    queue.report(1, "h1", 3, 10, 0.0)
    assert queue.update(0.0) == {1: (2, 2)}


def test_a_starved_job_is_raised_until_it_has_sent() -> None:
    queue = FeedbackQueue(PriorityPolicy(0, (100, 1000), starved=60.0))
    queue.add(1, 0.0)
    queue.report(1, "h1", 1, 5000, 10.0)
    assert queue.update(10.0) == {1: (3, 3)}
    queue.report(1, "h1", 1, 5000, 69.0)
    assert queue.update(69.0) == {}
    assert queue.update(70.0) == {1: (1, 1)}
    queue.report(1, "h1", 1, 5001, 71.0)
    assert queue.update(71.0) == {1: (3, 3)}


def test_short_jobs_pass_long_ones_and_the_mean_falls() -> None:
    """One link, jobs that send 10 bytes a step in turns: by levels, and all alike."""
    sizes = {1: 2000, 2: 400, 3: 50, 4: 50}
    begins = {1: 0, 2: 100, 3: 110, 4: 115}

    def mean_completion(policy: PriorityPolicy) -> float:
        queue = FeedbackQueue(policy)
        waiting: list[int] = []
        sent = dict.fromkeys(sizes, 0)
        took: dict[int, int] = {}
        step = 0
        while len(took) < len(sizes):
            for job in (job for job, begin in begins.items() if begin == step):
                queue.add(job, step)
                waiting.append(job)
            step += 1
            # The first of the best level, and then it is the others' turn.
            job = min(waiting, key=lambda job: queue.levels()[job])
            waiting.remove(job)
            sent[job] += 10
            queue.report(job, "h1", 0, sent[job], step)
            queue.update(step)
            if sent[job] < sizes[job]:
                waiting.append(job)
            else:
                took[job] = step - begins[job]
        assert step == sum(sizes.values()) // 10
        return sum(took.values()) / len(took)

    alike = mean_completion(PriorityPolicy(0, (), starved=None))
    assert mean_completion(PriorityPolicy(0, (60, 600), starved=None)) < 0.85 * alike


def test_impossible_reports_change_nothing() -> None:
    queue = FeedbackQueue(POLICY)
    queue.add(1, 0.0)
    with pytest.raises(PriorityError, match="job 2; jobs: 1"):
        queue.report(2, "h1", 0, 0, 0.0)
    with pytest.raises(PriorityError, match="iteration -1"):
        queue.report(1, "h1", -1, 0, 0.0)
    with pytest.raises(PriorityError, match="sent bytes -5"):
        queue.report(1, "h1", 7, -5, 0.0)
    assert queue.update(0.0) == {}
    queue.remove(1)
    assert queue.levels() == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"early_iterations": -1},
        {"thresholds": (5, 5)},
        {"thresholds": (0,)},
        {"thresholds": tuple(range(1, LEVELS))},
        {"starved": 0.0},
    ],
)
def test_invalid_policies_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected"):
        PriorityPolicy(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected"):
        geometric(0, 10)


def test_levels_on_the_wire() -> None:
    assert [tos_of_level(level) for level in range(LEVELS)] == [
        0xE0, 0xC0, 0xA0, 0x80, 0x60, 0x40, 0x20, 0x00,
    ]  # fmt: skip
    for tos in range(256):
        assert tos_of_level(level_of_tos(tos)) == tos & 0xE0
    for level in (-1, LEVELS):
        with pytest.raises(LevelError, match="expected 0 "):
            tos_of_level(level)


def test_without_priorities_jobs_have_the_level_of_other_traffic() -> None:
    assert {ONE_LEVEL.level(iteration, sent) for iteration in (0, 99) for sent in (0, 1 << 40)} == {
        LEVELS - 1
    }
    assert tos_of_level(LEVELS - 1) == 0
