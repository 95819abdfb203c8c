"""Reductions for processes, in terms of the switches' operations on 32-bit lanes.

The switches add, take the greater of two's complement numbers, and combine bits by AND and XOR.
The rest follows: the minimum is the complement of the maximum of the complements, and OR is the
complement of the AND of the complements. The bits of a float32 become an integer in the same order
by turning all but the sign over where it is negative; -0 comes before 0 then, and infinities are
the outermost. So all of these are exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopsum.host_agent.io.process_connection import Request
from hopsum.host_agent.segment import Tensor
from hopsum.protocol.wire import Reduction

COMBINED_BY = {
    "max": Reduction.MAX,
    "min": Reduction.MAX,
    "and": Reduction.AND,
    "or": Reduction.AND,
    "xor": Reduction.XOR,
}
"""Reductions other than sums, and the switches' operation for each."""
_COMPLEMENTED = ("min", "or")
_ALL_BUT_SIGN = np.int32(0x7FFFFFFF)


def encoding(reduction: str, dtype: np.dtype[Any]) -> tuple[bool, bool]:
    """Return whether `encode` orders the bits of values, and whether it complements them then."""
    if reduction not in COMBINED_BY:
        return False, False
    return dtype == np.float32, reduction in _COMPLEMENTED


def encode(request: Request, tensor: Tensor) -> Tensor:
    """Encode values of a reduction other than a sum, in place, as integers to combine."""
    ordered, complemented = encoding(request.reduction, tensor.dtype)
    bits = tensor.view(np.int32) if ordered else tensor
    if ordered:
        _order(bits)
    if complemented:
        np.invert(bits, out=bits)
    return bits


def decode(request: Request, bits: Tensor) -> Tensor:
    """Undo `encode`, in place."""
    assert request.tensor is not None
    ordered, complemented = encoding(request.reduction, request.tensor.dtype)
    if complemented:
        np.invert(bits, out=bits)
    if ordered:
        _order(bits)
    return bits.view(request.tensor.dtype)


def _order(bits: NDArray[np.int32]) -> None:
    bits ^= (bits >> 31) & _ALL_BUT_SIGN
