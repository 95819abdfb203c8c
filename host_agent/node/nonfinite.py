"""Sums with NaNs and infinities: integers have neither, so their places are counted.

A process may let its values into a sum although some are not finite. These are taken out of the
tensor, which is summed with zeros in their places as any other, and a tensor of integers is summed
as well: of each element how many ranks have a NaN or infinity there, and how many a NaN or
-infinity. From these counts all ranks see what an addition of the values gives: NaN if both are
there, else the infinity that is, else the sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopsum.host_agent.segment import Tensor

_BITS = 16
"""Of each count: a job has fewer than 2^16 ranks."""
_UP, _DOWN = 1, 1 << _BITS


def take_out(tensors: Sequence[Tensor]) -> Tensor:
    """Replace what is not finite in a host's float32 tensors by zeros; return the counts, int32."""
    counts = np.zeros(len(tensors[0]), np.uint32)
    for tensor in tensors:
        places = np.flatnonzero(~np.isfinite(tensor))
        values = tensor[places]
        # Both are true of a NaN.
        counts[places] += np.uint32(_UP) * ~(values < 0) + np.uint32(_DOWN) * ~(values > 0)
        tensor[places] = 0
    return counts.view(np.int32)


def put_back(total: Tensor, counts: Tensor) -> None:
    """Put NaNs and infinities into a float32 total, in place, as all ranks' counts have them."""
    places = np.flatnonzero(counts)
    found = counts[places].view(np.uint32)
    values = np.where(found >> _BITS, np.float32(-np.inf), np.float32(np.inf))
    values[(found >= _DOWN) & (found % _DOWN > 0)] = np.nan
    total[places] = values
