from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.planning.bounds.proportion import whole_proportion


@given(st.lists(st.integers(-50, 50)), st.floats(1e-3, 1e3), st.integers(50, 1000))
def test_proportions_survive_rounding(numbers: list[int], unit: float, denominator: int) -> None:
    noisy = [number / 60 * unit * (1 + 1e-12) for number in numbers]
    found = whole_proportion(noisy, unit, max(denominator, 60))
    for a, x in zip(numbers, found, strict=True):
        for b, y in zip(numbers, found, strict=True):
            assert a * y == b * x
    assert all(
        (a > 0) == (x > 0) and (a < 0) == (x < 0) for a, x in zip(numbers, found, strict=True)
    )


@pytest.mark.parametrize(
    ("values", "unit", "denominator", "expected"),
    [
        ([0.5, 0.3333333333], 1.0, 12, [3, 2]),
        ([4.0, 6.0], 1.0, 12, [2, 3]),
        ([4.0, 6.0], 6.0, 12, [2, 3]),
        ([1.0, 1e-6], 1.0, 1000, [1, 0]),
        ([0.0], 1.0, 12, [0]),
        ([], 1.0, 12, []),
    ],
)
def test_worked_examples(
    values: list[float], unit: float, denominator: int, expected: list[int]
) -> None:
    assert whole_proportion(values, unit, denominator) == expected
