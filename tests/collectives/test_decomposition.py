from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.collectives.decomposition import WeightError, decompose, divide
from hopsum.collectives.plan import HostPart, JobPlan, TreePlan


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
def test_invalid_weights_are_refused(weights: list[Fraction], words: str) -> None:
    with pytest.raises(WeightError, match=words):
        divide(10, weights, 1)


def test_trees_come_first_and_parts_of_hosts_follow() -> None:
    ring = HostPart(Fraction(1, 4), order=("h1", "h2"))
    tree = TreePlan(0, "ps", {}, {}, (), (), ())
    roster = JobPlan(1, 1, ("h1", "h2"), (), lanes=10, window=1)
    assert decompose(roster, 45) == ((None, 0, 45),)
    assert decompose(replace(roster, trees=(tree,)), 45) == ((None, 0, 45),)
    mixed = replace(roster, trees=(tree,), host_parts=(ring,))
    assert mixed.tree_weight == Fraction(3, 4)
    assert decompose(mixed, 80) == ((None, 0, 60), (ring, 60, 80))
    alone = replace(roster, host_parts=(replace(ring, weight=Fraction(1)),))
    assert decompose(alone, 45) == ((alone.host_parts[0], 0, 45),)
    with pytest.raises(WeightError, match="sum 1/4"):
        decompose(replace(roster, host_parts=(ring,)), 45)
