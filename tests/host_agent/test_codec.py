"""Columns of frames."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hopsum.host_agent.codec import TREE_AT, Matcher, by_tree, common_number


@given(st.lists(st.integers(0, 255), min_size=1, max_size=20))
def test_frames_by_tree_keep_their_order(trees: list[int]) -> None:
    frames = np.zeros((len(trees), TREE_AT + 2), dtype=np.uint8)
    frames[:, TREE_AT] = trees
    frames[:, TREE_AT + 1] = range(len(trees))
    groups = by_tree(frames)
    assert [tree for tree, _ in groups] == sorted(set(trees))
    for tree, group in groups:
        assert (group[:, TREE_AT] == tree).all()
        expected = [row for row, each in enumerate(trees) if each == tree]
        assert group[:, TREE_AT + 1].tolist() == expected


@given(st.lists(st.sampled_from([b"\x01\x02", b"\x01\x03", b"\x00\x02"]), min_size=1, max_size=5))
def test_a_number_is_common_if_all_frames_have_it(numbers: list[bytes]) -> None:
    frames = np.array([[9, *number, 9] for number in numbers], dtype=np.uint8)
    only = int.from_bytes(numbers[0], "big") if len(set(numbers)) == 1 else None
    assert common_number(frames, 1, 3) == only


def test_words_that_c_compares_are_aligned() -> None:
    matcher = Matcher(np.zeros(100, dtype=np.uint8))
    for words in (matcher.expected, matcher.belongs, matcher.plain):
        assert words.flags.aligned
