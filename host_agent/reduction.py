"""Combine rows of lanes by their reductions, as switches do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopsum.host_agent.codec import every, reduction_byte
from hopsum.protocol.wire import Flag, Reduction

_OVERFLOW = np.uint8(Flag.OVERFLOW)
_SUM = np.uint8(reduction_byte(Reduction.SUM))
_REDUCE_SUM = np.uint8(reduction_byte(Reduction.REDUCE_SUM))
_COMBINED_BY: dict[int, np.ufunc] = {
    reduction_byte(Reduction.AND): np.bitwise_and,
    reduction_byte(Reduction.MAX): np.maximum,
    reduction_byte(Reduction.XOR): np.bitwise_xor,
    reduction_byte(Reduction.REDUCE_AND): np.bitwise_and,
    reduction_byte(Reduction.REDUCE_MAX): np.maximum,
    reduction_byte(Reduction.REDUCE_XOR): np.bitwise_xor,
    reduction_byte(Reduction.NONE): np.bitwise_or,  # of zeros
    reduction_byte(Reduction.BROADCAST): np.bitwise_or,  # of zeros and the root's
}
"""Combining functions without wrap-around, by reduction byte."""


def combine(
    left: NDArray[np.int32], right: NDArray[np.int32], reductions: NDArray[np.uint8]
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Combine rows lane by lane; also return flags of rows with a lane that wrapped around.

    Row i by `reductions[i]`. Changes `left` and `right`.
    """
    if every((reductions == _SUM) | (reductions == _REDUCE_SUM)):
        total = left + right
        left ^= total
        right ^= total
        left &= right
        wrapped = left.min(axis=1) < 0
        return total, np.where(wrapped, _OVERFLOW, np.uint8(0))
    total, flags = np.empty_like(left), np.zeros(len(left), dtype=np.uint8)
    for each in np.unique(reductions):
        rows = reductions == each
        if each in (_SUM, _REDUCE_SUM):
            total[rows], flags[rows] = combine(left[rows], right[rows], reductions[rows])
        else:
            total[rows] = _COMBINED_BY[int(each)](left[rows], right[rows])
    return total, flags
