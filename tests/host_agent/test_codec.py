"""Columns of frames."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from host_agent.codec import TREE_AT, by_tree


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
