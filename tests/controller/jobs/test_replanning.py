"""When plans are looked at, and when a new one is worth an epoch."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.controller.jobs.replanning import Cause, Replanner, ReplanningPolicy

POLICY = ReplanningPolicy(every=50, band=0.2, hold=3.0, pause=10.0, gain=0.1)
UP, DOWN = ("a", "b"), ("b", "a")


def replanner(policy: ReplanningPolicy = POLICY) -> Replanner:
    return Replanner(policy, 0, {UP: 0.8, DOWN: 0.5}, 0.0)


def test_every_so_many_iterations() -> None:
    job = replanner()
    same = {UP: 0.8, DOWN: 0.5}
    assert job.due(49, same, 100.0) is None
    assert job.due(50, same, 100.0) is Cause.ITERATIONS
    job.looked(52, same, 100.0)
    assert job.due(101, same, 200.0) is None
    assert job.due(102, same, 200.0) is Cause.ITERATIONS


def test_on_change_subscriptions_send_only_changes() -> None:
    job = replanner(ReplanningPolicy(every=0))
    assert job.due(10**9, {UP: 0.8}, 1e9) is None


def test_epochs_without_an_iteration_come_ever_later() -> None:
    job = replanner(ReplanningPolicy(every=0, hold=0.0, pause=10.0))
    epochs = []
    busy = 0.1
    for second in range(1, 200):
        if job.due(3, {UP: busy}, second) is not None:
            job.looked(3, {UP: busy}, second)
            job.replaced(3)
            epochs.append(second)
            busy = 1.0 - busy
    assert epochs == [10, 30, 70, 150]
    # It has got further.
    assert job.due(4, {UP: busy}, 160.0) is Cause.CHANGE
    job.looked(4, {UP: busy}, 160.0)
    job.replaced(4)
    assert job.due(5, {UP: 1.0 - busy}, 170.0) is Cause.CHANGE


def test_a_change_counts_when_it_lasts() -> None:
    job = replanner()
    changed = {UP: 0.5, DOWN: 0.5}
    assert job.due(0, changed, 20.0) is None
    assert job.due(0, changed, 22.9) is None
    assert job.due(0, changed, 23.0) is Cause.CHANGE


def test_a_burst_does_not_count_as_a_change() -> None:
    job = replanner()
    assert job.due(0, {UP: 0.1}, 20.0) is None
    assert job.due(0, {UP: 0.8}, 22.0) is None
    assert job.due(0, {UP: 0.1}, 24.0) is None
    assert job.due(0, {UP: 0.1}, 26.0) is None
    assert job.due(0, {UP: 0.1}, 27.0) is Cause.CHANGE


def test_changes_inside_the_band_are_ignored() -> None:
    job = replanner()
    assert job.changed({UP: 0.61, DOWN: 0.69}) == []
    assert job.changed({UP: 0.59, DOWN: 0.9}) == [DOWN, UP]
    # A link that was not there counts as free before.
    assert job.changed({("a", "c"): 0.7}) == [("a", "c")]


def test_evaluations_keep_their_distance() -> None:
    job = replanner()
    assert job.due(60, {UP: 0.0}, 9.9) is None
    assert job.due(60, {UP: 0.0}, 10.0) is Cause.ITERATIONS
    job.looked(60, {UP: 0.0}, 10.0)
    assert job.due(61, {UP: 0.8}, 13.0) is None
    assert job.due(61, {UP: 0.8}, 16.0) is None
    assert job.due(61, {UP: 0.8}, 20.0) is Cause.CHANGE


def test_an_evaluation_that_keeps_the_plan_is_the_new_reference() -> None:
    job = replanner()
    job.looked(0, {UP: 0.3}, 10.0)
    assert job.due(0, {UP: 0.3}, 100.0) is None


@given(st.lists(st.floats(0.61, 0.99), min_size=1, max_size=50))
def test_a_load_that_swings_inside_the_band_causes_no_evaluation(shares: list[float]) -> None:
    job = replanner(ReplanningPolicy(every=0))
    for second, share in enumerate(shares):
        assert job.due(0, {UP: share}, float(second)) is None


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 3), st.floats(0, 1)), max_size=200))
def test_evaluations_of_plans_are_bounded(steps: list[tuple[int, int, float]]) -> None:
    job = replanner()
    ticks, iteration, looks = 0, 0, []
    for more, iterations, share in steps:
        ticks, iteration = ticks + more, iteration + iterations
        if job.due(iteration, {UP: share}, ticks / 100):
            job.looked(iteration, {UP: share}, ticks / 100)
            looks.append(ticks)
    assert all(later - earlier >= 1000 for earlier, later in zip([0, *looks], looks, strict=False))


def test_a_new_plan_must_be_faster_by_a_margin() -> None:
    job = replanner()
    assert not job.policy.worth(1.0, 1.0)
    assert not job.policy.worth(1.0, 0.9)
    assert job.policy.worth(1.0, 0.89)
    assert job.policy.worth(math.inf, 5.0)
    assert not job.policy.worth(math.inf, math.inf)
    assert not job.policy.worth(1.0, math.inf)
    for wrong in (-1.0, math.nan):
        with pytest.raises(ValueError, match="expected 0 s or more"):
            job.policy.worth(wrong, 1.0)


def test_two_plans_never_replace_each_other_in_one_state() -> None:
    job = replanner()
    for a, b in ((1.0, 0.95), (1.0, 0.5), (0.0, 0.0)):
        assert not (job.policy.worth(a, b) and job.policy.worth(b, a))


@pytest.mark.parametrize(
    "wrong", [{"every": -1}, {"band": 1.0}, {"gain": -0.1}, {"hold": -1.0}, {"pause": math.inf}]
)
def test_invalid_policies_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        ReplanningPolicy(**wrong)  # type: ignore[arg-type]
