"""Last results by slot: older and newer are serial numbers, which wrap around."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.host_agent.codec import Form, flags_of, fragments_of, raw_lanes, reductions_of
from hopsum.host_agent.history import EMPTY, History, is_newer
from hopsum.protocol.wire import Address, Header, Kind

LANES, WINDOW = 32, 8


def kept(fragments: list[int]) -> History:
    """A history of these, with different lanes and reductions."""
    history = History(WINDOW, LANES)
    numbers = np.array(fragments, dtype=np.int64)
    raw = raw_lanes(LANES, len(numbers))
    raw[:, 0] = reductions = (numbers & 0xFF).astype(np.uint8)
    slots = numbers & (WINDOW - 1)
    history.keep(slots, numbers, raw, np.full(len(numbers), 9, np.uint8), reductions)
    return history


@pytest.mark.parametrize("first", [0, (1 << 31) - 4, (1 << 32) - 4])
def test_the_oldest_goes_first_over_the_wrap(first: int) -> None:
    fragments = [(first + step) & 0xFFFFFFFF for step in range(WINDOW)]
    history = kept(fragments)
    assert history.fragment[history.oldest_first()].tolist() == fragments


@given(st.integers(0, (1 << 32) - 1), st.integers(1, (1 << 31) - 1))
def test_of_two_fragments_the_later_one_is_newer(fragment: int, by: int) -> None:
    earlier, later = np.array([fragment]), np.array([(fragment + by) & 0xFFFFFFFF])
    assert is_newer(later, earlier).all()
    assert not is_newer(earlier, later).any()
    assert not is_newer(earlier, earlier).any()


def test_an_empty_slot_is_older_than_any_fragment_and_has_none() -> None:
    history = kept([3])
    slots, fragments = np.array([2, 2, 3, 3]), np.array([2, (1 << 31) + 2, 3, 11])
    assert history.is_older(slots, fragments).tolist() == [True, True, False, True]
    assert history.has(slots, fragments).tolist() == [False, False, True, False]
    assert not history.has(np.array([2]), np.array([EMPTY + 1])).any()
    assert history.filled.tolist() == [3]


def test_frames_are_what_was_kept() -> None:
    history = kept([8, 17])
    here = Address(bytes(6), bytes(4))
    form = Form(here, here, Header(Kind.RESULT, 1, 0, 1, 0), (), LANES)
    slots = np.array([1, 0])
    history.flags[slots] = [0, 1]
    frames = history.make(form, slots)
    assert fragments_of(frames).tolist() == [17, 8]
    assert form.raw(frames)[:, 0].tolist() == reductions_of(frames).tolist() == [17, 8]
    assert flags_of(frames).tolist() == [0, 1]
