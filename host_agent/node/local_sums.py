"""Sums of the ranks of one host, which precede the sums of hosts in the switches.

One tensor a host crosses its link, however many ranks it has. Integers and bits are combined as the
switches combine those of hosts, so exactly.

*Float32.* The R tensors of a host are added as float32, one after the other. An element of their
sum is off by at most (R - 1) 2^-24 times the sum of the ranks' magnitudes (Higham, Accuracy and
Stability of Numerical Algorithms, section 4.2); `hopsum.host_agent.numbers` says how much the sum
of hosts adds to that. With 2^e above all magnitudes, and r = ceil(log2 R), the partial sums are
below 2^(e + r). Where that is beyond float32's range, all ranks' values are first made smaller by a
power of two, 2^x with x = e + r - 128, and the total is made as much greater: it becomes infinite
only if it is beyond the range itself. A rank's value loses at most 2^(x - 150) by that.

*Copies.* What the ranks of a host have of a tensor that is copied to all is put into one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopsum.host_agent.io.process_connection import Request
from hopsum.host_agent.node.reductions import COMBINED_BY, encode
from hopsum.host_agent.segment import Tensor
from hopsum.protocol.wire import Reduction

GREATEST_CODE = 255
"""The exponent byte of magnitudes up to the end of float32's range."""
COMBINE = {
    Reduction.SUM: np.add,
    Reduction.MAX: np.maximum,
    Reduction.AND: np.bitwise_and,
    Reduction.XOR: np.bitwise_xor,
}


def excess_bits(codes: Sequence[int], ranks: int) -> int:
    """Return by how many bits sums of `ranks` float32 tensors of a host may leave the range.

    `codes`: exponent bytes of all ranks of the job.
    """
    return max(0, max(codes) + (ranks - 1).bit_length() - GREATEST_CODE)


def add_up(request: Request, tensors: Sequence[Tensor], excess: int = 0) -> Tensor:
    """Combine the tensors of a host's ranks in the first one; return the tensor to submit.

    Other tensors are overwritten too where they are `encode`d. `excess`: the bits by which float32
    values of sums are made smaller.
    """
    if request.reduction in COMBINED_BY:
        tensors = [encode(request, tensor) for tensor in tensors]
    elif excess:
        for tensor in tensors:
            np.ldexp(tensor, -excess, out=tensor)
    combine = COMBINE[COMBINED_BY.get(request.reduction, Reduction.SUM)]
    total = tensors[0]
    for tensor in tensors[1:]:
        combine(total, tensor, out=total)
    return total


def put_together(
    tensors: Sequence[Tensor], shares: Sequence[tuple[int, int]], *, clear: bool
) -> Tensor:
    """Copy the shares (start, stop) of a host's ranks into a tensor of one of them; return it.

    `clear`: make everything else in it zero, to be combined with the other hosts' shares.
    """
    longest = max(range(len(shares)), key=lambda place: shares[place][1] - shares[place][0])
    target = tensors[longest]
    own = [tensor[start:stop] for tensor, (start, stop) in zip(tensors, shares, strict=True)]
    if clear:
        own = [np.array(each) for each in own]
        target[...] = 0
    for (start, stop), values in zip(shares, own, strict=True):
        target[start:stop] = values
    return target


def restore(total: Tensor, excess: int) -> None:
    """Make a float32 total as much greater, in place, as its parts were made smaller."""
    if excess:
        with np.errstate(over="ignore"):
            np.ldexp(total, excess, out=total)
