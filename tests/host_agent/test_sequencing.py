"""Sequence numbers between neighbours: requests, and what a number identifies."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.host_agent.sequencing import HISTORY, NUMBERS, RETRY, Arrivals, SentLog


def take(arrivals: Arrivals, *numbers: int, repair: bool = False) -> list[int]:
    return arrivals.take(np.array(numbers), np.full(len(numbers), repair))[0]


def test_nothing_is_asked_for_while_nothing_is_missing() -> None:
    arrivals = Arrivals()
    assert take(arrivals, 0, 1, 2) == []
    assert take(arrivals, 3) == []


def test_a_gap_is_asked_for_once() -> None:
    arrivals = Arrivals()
    take(arrivals, 0)
    assert take(arrivals, 3) == [1, 2]
    assert take(arrivals, 4, 5) == []


def test_the_first_frames_can_be_missing_too() -> None:
    assert take(Arrivals(), 2) == [0, 1]


def test_missing_frames_are_requested_again() -> None:
    arrivals = Arrivals()
    take(arrivals, 0)
    assert take(arrivals, 2) == [1]
    assert take(arrivals, *range(3, 2 + RETRY)) == []
    assert take(arrivals, 2 + RETRY) == [1]


def test_a_repair_ends_it() -> None:
    arrivals = Arrivals()
    take(arrivals, 0, 2)
    take(arrivals, 1, repair=True)
    assert take(arrivals, *range(3, 3 * RETRY)) == []


def test_a_late_frame_ends_it() -> None:
    arrivals = Arrivals()
    take(arrivals, 0, 2)
    assert take(arrivals, 1) == []
    assert take(arrivals, *range(3, 3 * RETRY)) == []


def test_copies_are_distinguished_from_late_frames() -> None:
    arrivals = Arrivals()
    numbers = np.array([0, 1, 1, 4, 2, 2, 0, 3])
    asked, copies = arrivals.take(numbers, np.zeros(8, dtype=np.bool_))
    assert asked == [2, 3]
    assert copies == [2, 5, 6]


def test_frames_that_are_too_old_are_given_up() -> None:
    arrivals = Arrivals()
    take(arrivals, 0, 2)
    asked = take(arrivals, *range(3, 4 * HISTORY))
    assert set(asked) == {1}
    assert len(asked) == (HISTORY - 1) // RETRY


def test_a_neighbour_that_has_started_again_is_followed() -> None:
    arrivals = Arrivals()
    take(arrivals, *range(1000))
    assert take(arrivals, 0) == []
    assert take(arrivals, 2) == [1]


def test_a_host_does_not_start_again_within_an_epoch() -> None:
    arrivals = Arrivals()
    arrivals.restart(end_to_end=True)
    take(arrivals, *range(1000))
    assert take(arrivals, 0) == take(arrivals, 1000, 1001) == []
    assert take(arrivals, 1003) == [1002]
    arrivals.restart(end_to_end=True)
    assert take(arrivals, 0, 1) == []


def test_numbers_wrap_around() -> None:
    arrivals, log = Arrivals(), SentLog(64)
    for start in range(0, NUMBERS, 128):
        numbers = log.number(np.arange(start, start + 128))
        assert take(arrivals, *numbers.tolist()) == []
    assert log.number(np.array([7])).tolist() == [0]
    assert take(arrivals, 1) == [0]


@pytest.mark.slow
@given(st.integers(0, 2**32), st.sampled_from([0.02, 0.2]))
def test_every_frame_arrives_over_a_link_that_loses(seed: int, loss: float) -> None:
    """With enough frames behind it, as long as fewer requests in a row fail than are made."""
    rng = random.Random(seed)
    arrivals, log = Arrivals(), SentLog(64)
    here: set[int] = set()
    for fragment in range(400):
        waiting = [(int(log.number(np.array([fragment]))[0]), False)]
        while waiting:
            number, repair = waiting.pop()
            if repair or rng.random() >= loss:
                here.update(log.find(np.array([number]))[1].tolist())
                waiting += [(asked, True) for asked in take(arrivals, number, repair=repair)]
    assert here >= set(range(390))


@pytest.mark.parametrize("sent", [0, 1, 127, 128, 129, 1000])
def test_only_what_was_sent_lately_is_found(sent: int) -> None:
    log = SentLog(64)
    log.number(np.arange(sent) + 5000)
    numbers, fragments = log.find(np.arange(2000))
    assert numbers.tolist() == list(range(max(0, sent - 128), sent))
    assert fragments.tolist() == (numbers + 5000).tolist()
