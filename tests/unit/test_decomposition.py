from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host_agent.node.decomposition import WeightError, divide


@st.composite
def weights(draw: st.DrawFn) -> list[Fraction]:
    parts = draw(st.lists(st.integers(0, 50), min_size=1, max_size=6).filter(any))
    return [Fraction(part, sum(parts)) for part in parts]


@given(length=st.integers(0, 100_000), weights=weights(), block=st.integers(1, 400))
def test_ranges_follow_each_other_and_hold_whole_blocks(
    length: int, weights: list[Fraction], block: int
) -> None:
    ranges = divide(length, weights, block)
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == length
    for (start, stop), weight in zip(ranges, weights, strict=True):
        assert start % block == 0 or start == length
        # Each cut is at most half a block from where it should be, the broken block aside.
        assert abs((stop - start) - weight * length) <= 2 * block
        assert weight or start == stop


def test_halves_of_an_odd_number_of_blocks() -> None:
    assert divide(25, [Fraction(1, 2)] * 2, 10) == ((0, 20), (20, 25))
    assert divide(10, [Fraction(1, 3), Fraction(0), Fraction(2, 3)], 5) == ((0, 5), (5, 5), (5, 10))
    assert divide(7, [Fraction(1)], 256) == ((0, 7),)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([], "weights none"),
        ([Fraction(1, 2)], "sum 1/2"),
        ([Fraction(3, 2), Fraction(-1, 2)], "none below 0"),
    ],
)
def test_weights_that_divide_nothing(weights: list[Fraction], words: str) -> None:
    with pytest.raises(WeightError, match=words):
        divide(10, weights, 1)
