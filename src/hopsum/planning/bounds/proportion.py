"""Integers in the proportion of a solver's numbers, for exact proofs."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import gcd, lcm


def whole_proportion(values: Iterable[float], unit: float, denominator: int) -> list[int]:
    """Return the smallest integers in the same proportion as values, up to rounding.

    Values are rounded to the nearest fraction of `unit` (above 0) with at most this `denominator`:
    a solver's values are usually near simple fractions, in its own unit or in that of the largest.
    """
    parts = [Fraction(value / unit).limit_denominator(denominator) for value in values]
    common = lcm(*(part.denominator for part in parts))
    numbers = [int(part * common) for part in parts]
    divisor = gcd(*numbers) or 1
    return [number // divisor for number in numbers]
