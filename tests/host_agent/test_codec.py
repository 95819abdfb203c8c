"""Columns of frames."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hopsum.host_agent.codec import (
    TREE_AT,
    TURN_FRAMES,
    Frames,
    Matcher,
    by_number,
    common_number,
    in_turns,
)


@given(st.lists(st.sampled_from([0, 1, 255, 256, 0x1FF, 0xFFFF]), min_size=1, max_size=20))
def test_frames_by_number_keep_their_order(numbers: list[int]) -> None:
    frames = np.zeros((len(numbers), TREE_AT + 1), dtype=np.uint8)
    frames[:, TREE_AT - 2 : TREE_AT] = np.array(numbers, ">u2").view(np.uint8).reshape(-1, 2)
    frames[:, TREE_AT] = range(len(numbers))
    groups = by_number(frames, TREE_AT - 2, TREE_AT)
    assert [number for number, _ in groups] == sorted(set(numbers))
    for number, group in groups:
        expected = [row for row, each in enumerate(numbers) if each == number]
        assert group[:, TREE_AT].tolist() == expected


def test_senders_of_frames_take_turns() -> None:
    def batch(sender: int, count: int) -> Frames:
        return np.full((count, 60), sender, dtype=np.uint8)

    assert in_turns([]) == []
    [alone] = in_turns([[batch(1, 2 * TURN_FRAMES)]])
    assert len(alone) == 2 * TURN_FRAMES
    turns = in_turns([[batch(1, TURN_FRAMES + 1)], [batch(2, 3), batch(3, 1)]])
    sent = [(int(each[0, 0]), len(each)) for each in turns]
    assert sent == [(1, TURN_FRAMES), (2, 3), (1, 1), (3, 1)]


@given(st.lists(st.sampled_from([b"\x01\x02", b"\x01\x03", b"\x00\x02"]), min_size=1, max_size=5))
def test_a_number_is_common_if_all_frames_have_it(numbers: list[bytes]) -> None:
    frames = np.array([[9, *number, 9] for number in numbers], dtype=np.uint8)
    only = int.from_bytes(numbers[0], "big") if len(set(numbers)) == 1 else None
    assert common_number(frames, 1, 3) == only


def test_words_that_c_compares_are_aligned() -> None:
    matcher = Matcher(np.zeros(100, dtype=np.uint8))
    for words in (matcher.expected, matcher.belongs, matcher.plain):
        assert words.flags.aligned
