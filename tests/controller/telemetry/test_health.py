"""When switches and links are planned around, and in again; in virtual time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.controller.telemetry.health import DampingPolicy, Health, link_element

POLICY = DampingPolicy(away=3.0, startup=10.0, stable=1.0, half_life=30.0)


def test_an_awaited_element_is_up_as_soon_as_it_is_reachable() -> None:
    health = Health(POLICY)
    for second, reachable in enumerate([True, False, False, False, False]):
        health.update({"s1": reachable, "s2": reachable}, float(second))
    assert health.out == {"s1", "s2"}
    health.update({"s1": True, "s2": True}, 5.0, awaited={"s1"})
    assert health.out == {"s2"}
    health.update({"s1": True, "s2": True}, 5.0 + POLICY.stable)
    assert not health.out


def test_only_an_element_that_is_away_without_a_break_is_out() -> None:
    health = Health(DampingPolicy(away=2.0, stable=0.0))
    health.update({"a": True, "b": True}, 0.0)
    health.update({"a": False, "b": True}, 0.0)
    health.update({"a": False, "b": False}, 1.5)
    assert not health.out
    health.update({"a": False, "b": False}, 2.0)
    assert health.out == {"a"}
    # While a switch takes its program, say, it is neither reachable nor unreachable.
    health.update({"b": False}, 2.5)
    assert health.out == {"a"}
    health.update({"a": True, "b": True}, 3.0)
    health.update({"a": False, "b": False}, 4.0)
    health.update({}, 5.5)
    assert not health.out


def test_returned_elements_are_planned_in_once_stable() -> None:
    health = Health(POLICY)
    link = link_element("s1", "l2")
    assert link == ("l2", "s1")
    health.update({link: True}, 0.0)
    health.update({link: False}, 10.0)
    health.update({link: False}, 13.0)
    assert health.out == health.unreachable() == {link}
    assert health.unreachable_for(link, 15.0) == 5.0
    health.update({link: True}, 20.0)
    assert health.out == {link}
    assert not health.unreachable()
    assert health.unreachable_for(link, 20.0) is None
    health.update({}, 21.0)
    assert not health.out


def test_an_element_never_in_reach_has_longer_and_no_penalty() -> None:
    health = Health(POLICY)
    health.update({"a": False}, 0.0)
    health.update({}, 9.9)
    assert not health.out
    health.update({}, 10.0)
    assert health.out == {"a"}
    for start in (20.0, 30.0):
        health.update({"a": True}, start)
        health.update({}, start + 1)
        assert not health.out
        health.update({"a": False}, start + 2)
        health.update({}, start + 5)
        assert health.out == {"a"}
    assert health.held_for("a", 35.0) == 0.0


def flap(health: Health, times: int) -> float:
    """Let element `a` fail every five seconds; gives the time of its last return."""
    now = 0.0
    health.update({"a": True}, now)
    for _ in range(times):
        health.update({"a": False}, now)
        health.update({}, now + 3)
        assert health.out == {"a"}
        now += 4
        health.update({"a": True}, now)
        now += 1
        health.update({}, now)
    return now


def test_an_element_that_flaps_is_held_down_for_a_while() -> None:
    health = Health(POLICY)
    now = flap(health, 2)
    assert not health.out
    now = flap(health, 4)
    assert health.out == health.held() == {"a"}
    left = health.held_for("a", now)
    assert 20.0 < left < 60.0
    health.update({}, now + left - 0.1)
    assert health.out == {"a"}
    health.update({}, now + left + 0.1)
    assert not health.out
    assert not health.held()


def test_a_released_element_returns_at_once() -> None:
    health = Health(POLICY)
    now = flap(health, 4)
    health.release(["a", "unknown"])
    assert health.held_for("a", now) == 0.0
    health.update({}, now)
    assert not health.out


@given(st.lists(st.tuples(st.booleans(), st.floats(0.05, 20.0)), min_size=1, max_size=60))
def test_an_element_never_changes_faster_than_the_policy_allows(
    history: list[tuple[bool, float]],
) -> None:
    """And once it stays reachable it is planned in after the longest hold-down at the latest."""
    health, now = Health(POLICY), 0.0
    health.update({"a": True}, now)
    reachable, since = True, now
    failures: list[float] = []
    was_out = False
    for state, seconds in history:
        if state is not reachable:
            reachable, since = state, now
        health.update({"a": state}, now)
        end = now + seconds
        while now < end:
            now = min(end, now + 0.25)
            health.update({}, now)
            out = bool(health.out)
            if out and not was_out:
                assert not reachable
                assert now - since >= POLICY.away
                failures.append(now)
            if was_out and not out:
                assert reachable
                assert now - since >= POLICY.stable
                recent = [at for at in failures if now - at < POLICY.half_life]
                # Each weighs at least half in the penalty of the last one.
                assert len(recent) <= 2 * POLICY.suppress
            was_out = out
    health.update({"a": True}, now)
    health.update({}, now + 61.0)
    assert not health.out


@pytest.mark.parametrize(
    "wrong",
    [
        {"away": -1.0},
        {"half_life": float("nan")},
        {"reuse": 3.0},
        {"ceiling": 1.0},
    ],
)
def test_invalid_damping_policies_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        DampingPolicy(**wrong)
