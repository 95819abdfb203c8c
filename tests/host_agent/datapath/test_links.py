"""Sequence numbers between neighbours: requests, and what a number identifies."""

from __future__ import annotations

import ctypes
import random
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.host_agent.datapath.library import Arrivals, SentLog, compiled, program
from tests.oracles import reference_links
from tests.oracles.reference_links import AGAIN, KEPT, NUMBERS

EXPORTED = """
void restart_numbers(struct arrivals *a) { restart_arrivals(a); }
int take_one(struct arrivals *a, int64_t number, int repair, int64_t past, int64_t *requests,
             int *count)
{
    return take_number(a, number, repair, past, requests, count);
}
int64_t number_one(struct sent_log *log, int64_t fragment) { return next_number(log, fragment); }
int64_t find_one(struct sent_log *log, int64_t number) { return find_number(log, number); }
"""
"""What is within the data path, for tests."""


@cache
def links() -> Any:
    loaded = compiled(program() + EXPORTED)
    loaded.number_one.restype = loaded.find_one.restype = ctypes.c_int64
    return loaded


class Taken:
    """`struct arrivals`."""

    def __init__(self, *, window: int = 0) -> None:
        self._asked = np.zeros(KEPT, np.int64)
        self._state = Arrivals(asked=self._asked.ctypes.data)
        self._window = ctypes.c_int64(window)
        self.restart()

    def restart(self) -> None:
        links().restart_numbers(ctypes.byref(self._state))

    def take(self, number: int, *, repair: bool = False) -> tuple[bool, list[int]]:
        """Whether a number had come before, and which to request."""
        requests, count = (ctypes.c_int64 * KEPT)(), ctypes.c_int()
        copy = links().take_one(
            *(ctypes.byref(self._state), ctypes.c_int64(number), repair, self._window),
            *(requests, ctypes.byref(count)),
        )
        return bool(copy), list(requests[: count.value])

    def __call__(self, *numbers: int, repair: bool = False) -> list[int]:
        """Which numbers to request."""
        return [asked for number in numbers for asked in self.take(number, repair=repair)[1]]


class Log:
    """`struct sent_log`."""

    def __init__(self, size: int) -> None:
        self._fragments = np.zeros(size, np.int64)
        self._state = SentLog(fragments=self._fragments.ctypes.data, size=size)

    def number(self, fragment: int) -> int:
        found: int = links().number_one(ctypes.byref(self._state), ctypes.c_int64(fragment))
        return found

    def find(self, number: int) -> int:
        found: int = links().find_one(ctypes.byref(self._state), ctypes.c_int64(number))
        return found


def test_nothing_is_asked_for_while_nothing_is_missing() -> None:
    take = Taken()
    assert take(0, 1, 2) == []
    assert take(3) == []


def test_a_gap_is_asked_for_once() -> None:
    take = Taken()
    take(0)
    assert take(3) == [1, 2]
    assert take(4, 5) == []


def test_the_first_frames_can_be_missing_too() -> None:
    assert Taken()(2) == [0, 1]


def test_missing_frames_are_requested_again() -> None:
    take = Taken()
    take(0)
    assert take(2) == [1]
    assert take(*range(3, 2 + AGAIN)) == []
    assert take(2 + AGAIN) == [1]


@pytest.mark.parametrize("repair", [False, True])
def test_a_repair_or_a_late_frame_ends_it(repair: bool) -> None:
    take = Taken()
    take(0, 2)
    assert take(1, repair=repair) == []
    assert take(*range(3, 3 * AGAIN)) == []


def test_copies_are_distinguished_from_late_frames() -> None:
    take = Taken()
    taken = [take.take(number) for number in (0, 1, 1, 4, 2, 2, 0, 3)]
    assert [row for row, (copy, _) in enumerate(taken) if copy] == [2, 5, 6]
    assert [asked for _, asked in taken if asked] == [[2, 3]]


def test_frames_that_are_too_old_are_given_up() -> None:
    take = Taken()
    take(0, 2)
    asked = take(*range(3, 4 * KEPT))
    assert set(asked) == {1}
    assert len(asked) == (KEPT - 1) // AGAIN


def test_a_neighbour_that_has_started_again_is_followed() -> None:
    take = Taken()
    take(*range(1000))
    assert take(0) == []
    assert take(2) == [1]


def test_a_host_does_not_start_again_within_an_epoch() -> None:
    take = Taken(window=4)
    take(*range(1000))
    assert take(0) == take(1000, 1001) == []
    assert take(1003) == [1002]
    take.restart()
    assert take(0, 1) == []


@pytest.mark.parametrize(("window", "after"), [(4, AGAIN), (64, 16), (4096, 1024)])
def test_requests_past_switches_are_repeated_after_a_quarter_of_a_window(
    window: int, after: int
) -> None:
    take = Taken(window=window)
    take(0)
    assert take(2) == [1]
    again = min(after, KEPT)
    assert take(*range(3, 2 + again)) == []
    assert take(2 + again) == ([1] if after < KEPT else [])


def test_numbers_wrap_around() -> None:
    take, log = Taken(), Log(128)
    for fragment in range(NUMBERS):
        assert take(log.number(fragment)) == []
    assert log.number(7) == 0
    assert take(1) == [0]


@given(st.integers(0, 2**32), st.sampled_from([0, 1, 64, 256]))
def test_numbers_in_any_order_are_taken_as_the_rules_say(seed: int, window: int) -> None:
    rng = random.Random(seed)
    take = Taken(window=window)
    reference = reference_links.Arrivals()
    number = rng.choice((0, 0, NUMBERS - 100, rng.randrange(NUMBERS)))
    for _ in range(300):
        number += rng.choice((1,) * 20 + (0, 2, 3, 8, -1, -5, 30, 64, 65, -63, -64, -65))
        if rng.random() < 0.02:
            number += rng.choice((1000, -1000, NUMBERS // 2, NUMBERS // 2 - 1, -NUMBERS // 2))
        repair = rng.random() < 0.1
        sent = number % NUMBERS
        expected = reference.take(sent, repair=repair, window=window)
        assert take.take(sent, repair=repair) == expected


@pytest.mark.slow
@given(st.integers(0, 2**32), st.sampled_from([0.02, 0.2]))
def test_every_frame_arrives_over_a_link_that_loses(seed: int, loss: float) -> None:
    """With enough frames behind it, as long as fewer requests in a row fail than are made."""
    rng = random.Random(seed)
    take, log = Taken(), Log(128)
    here: set[int] = set()
    for fragment in range(400):
        waiting = [(log.number(fragment), False)]
        while waiting:
            number, repair = waiting.pop()
            if repair or rng.random() >= loss:
                here.add(log.find(number))
                waiting += [(asked, True) for asked in take(number, repair=repair)]
    assert here >= set(range(390))


@pytest.mark.parametrize("sent", [0, 1, 127, 128, 129, 1000])
def test_only_what_was_sent_lately_is_found(sent: int) -> None:
    log, reference = Log(128), reference_links.SentNumbers(128)
    for number in range(sent):
        assert log.number(number + 5000) == reference.number(number + 5000) == number
    for number in range(2000):
        lately = max(0, sent - 128) <= number < sent
        assert log.find(number) == (number + 5000 if lately else -1)
        assert reference.find(number) == (number + 5000 if lately else None)
