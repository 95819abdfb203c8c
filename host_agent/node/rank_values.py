"""The values of a host's ranks: what is submitted for a call of theirs, and what each gets of it.

Nothing here knows what other hosts call, or when something is submitted: see
`hopsum.host_agent.node.process_source`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import reduce

import numpy as np

from hopsum.host_agent.io.process_connection import Request
from hopsum.host_agent.node.calls import BARRIER, COPY, SUM_FLOAT, CallSpec, wanted
from hopsum.host_agent.node.local_sums import (
    GREATEST_CODE,
    add_up,
    excess_bits,
    put_together,
    restore,
)
from hopsum.host_agent.node.reductions import decode
from hopsum.host_agent.numbers import dequantise, exponent_codes, quantise, worker_bits
from hopsum.host_agent.process_calls import PASSED
from hopsum.host_agent.segment import Remark, Tensor

MOST = (1 << 31) - 1
HALF = 16
"""Bits of each half of int32 values that are summed apart."""


class RankCall:
    """A call of this host's ranks; `requests`: of each, None: it has not made it yet.

    `guess`: what is submitted along with its check, if anything; `remark`: of what is submitted
    without one. `excess`: the bits by which float32 values were made smaller. `counted`: values
    that are not finite are; `counts`, and the `total` of the others, once they are here.
    """

    def __init__(self, requests: Sequence[Request | None]) -> None:
        self.requests = requests
        self.guess: CallSpec | None = None
        self.remark: Remark | None = None
        self.halves: dict[str, Tensor] = {}
        self.excess = 0
        self.counted = False
        self.counts: Tensor | None = None
        self.total: Tensor | None = None

    @property
    def request(self) -> Request:
        """The first rank's request; apart from tensors and numbers, that of all once they agree."""
        assert self.requests[0] is not None
        return self.requests[0]

    @property
    def made(self) -> list[Request]:
        """The requests of the ranks that have made it."""
        return [request for request in self.requests if request is not None]

    @property
    def wanted(self) -> CallSpec:
        """Their call, once all make the same one."""
        return wanted(self.request)

    @property
    def tensors(self) -> list[Tensor]:
        """Tensors of the ranks, flat."""
        return [request.tensor for request in self.made if request.tensor is not None]

    def is_as(self, guess: CallSpec) -> bool:
        """Whether the ranks make the call guessed, with values that can be summed."""
        return all(wanted(each) == guess and each.fault is None for each in self.made)


class RankValues:
    """The values of the ranks `here`, of a job with `ranks`, the host of each.

    `packed_elements`: of the longest tensor with one scale. `rooted`: what is copied goes over
    trees with roots, which take it from the ranks that it is of.
    """

    def __init__(
        self, ranks: Sequence[str], here: Sequence[int], packed_elements: int, *, rooted: bool
    ) -> None:
        self.packed_elements = packed_elements
        self._here = here
        self._ranks = len(ranks)
        self._most_here = max(Counter(ranks).values())
        """Ranks of any host."""
        self._bits = worker_bits(len(ranks))
        self._rooted = rooted

    # -- what can be submitted

    def magnitude(self, request: Request, asked: CallSpec) -> int:
        """Return the magnitude of int32 values, or the exponent byte of float32."""
        if not asked.sums_floats:
            return min(request.magnitude, MOST)
        passed = request.fault is not None and request.fault[0] == PASSED
        if request.fault is not None and not passed:
            return 0
        if not self.are_few(asked):
            # Of a pack a wrong one would make sums wrong, here it can only end the job.
            return min(request.magnitude, GREATEST_CODE)
        tensor = request.tensor
        assert tensor is not None
        if passed:
            tensor = np.where(np.isfinite(tensor), tensor, np.float32(0))
        return int(exponent_codes(tensor, asked.elements, "tensor")[0])

    def are_few(self, agreed: CallSpec) -> bool:
        """Whether a call's values can have one scale."""
        return 0 < agreed.elements <= self.packed_elements and agreed.width is None

    def are_narrow(self, agreed: CallSpec, magnitudes: Sequence[int]) -> bool:
        """Whether values add up without overflow as they are; `magnitudes`: of some ranks.

        If so of each host's, then of all.
        """
        if agreed.sums_floats:
            return not self.excess(magnitudes)
        return agreed.width is not None or max(magnitudes) * self._ranks <= MOST

    def excess(self, magnitudes: Sequence[int]) -> int:
        """Return the bits by which float32 values must be made smaller; see `excess_bits`."""
        return excess_bits(magnitudes, self._most_here)

    # -- what is submitted

    def guessed(self, call: RankCall, guess: CallSpec) -> Tensor | None:
        """Return the values if they match the guess and cannot harm the others'."""
        magnitudes = [self.magnitude(each, guess) for each in call.made]
        if not call.is_as(guess) or not self.are_narrow(guess, magnitudes):
            return None
        # The processes' own must be as they were if the guess is wrong.
        return self.combined(call, [np.array(tensor) for tensor in call.tensors])

    def combined(self, call: RankCall, tensors: Sequence[Tensor]) -> Tensor:
        """Return the tensor to submit for a call of all ranks here; `tensors` are overwritten."""
        agreed = call.wanted
        if agreed.code == BARRIER:
            return np.zeros(1, np.int32)
        if agreed.code != COPY:
            return add_up(call.request, tensors, call.excess)
        shares = [agreed.share(rank, self._ranks) for rank in self._here]
        return put_together(tensors, shares, clear=not self._rooted)

    def integers(self, call: RankCall, code: int) -> Tensor:
        """Return the sum of the ranks' values of a call as integers, with one scale if floats."""
        tensors: Sequence[Tensor] = call.tensors
        if call.wanted.code == SUM_FLOAT:
            tensors = [quantise(each, code, self._bits) for each in tensors]
        return _added(tensors)

    def halves(self, call: RankCall) -> tuple[Tensor, Tensor]:
        """Return the sums of the upper and of the lower bits of the ranks' int32 values."""
        upper = _added([each >> HALF for each in call.tensors])
        return upper, _added([each & ((1 << HALF) - 1) for each in call.tensors])

    # -- what comes back

    def of_integers(self, call: RankCall, total: Tensor, code: int) -> Tensor:
        """Return the values of a total of `integers`."""
        return dequantise(total, code, self._bits) if call.wanted.code == SUM_FLOAT else total

    def of_combined(self, call: RankCall, total: Tensor) -> Tensor:
        """Decode a total of `combined` tensors, in place; return its values."""
        shares = [call.wanted.result(rank, self._ranks) for rank in self._here]
        # The rest may be no result.
        mine = total[min(start for start, _ in shares) : max(stop for _, stop in shares)]
        if call.wanted.reduction is not None:
            decode(call.request, mine)
        restore(mine, call.excess)
        return total.view(call.tensors[0].dtype)

    def hand_out(self, call: RankCall, total: Tensor) -> None:
        """Give every rank here its share of a call's values."""
        for rank, tensor in zip(self._here, call.tensors, strict=True):
            start, stop = call.wanted.result(rank, self._ranks)
            # In the first's it may be already.
            if not np.may_share_memory(tensor, total):
                tensor[start:stop] = total[start:stop]


def _added(tensors: Sequence[Tensor]) -> Tensor:
    """Return the sum of integers, one tensor a rank."""
    return reduce(np.add, tensors)
