"""Calls of a process that a stream's flow takes from its socket, submits and answers, in C.

A training makes the same calls again and again, and once that is sure each is submitted without a
check (`hopsum.host_agent.node.process_source`). A source that has nothing to do then says which
calls it expects next, and of what magnitude. While the port waits for frames, a flow takes a call
that is as expected, and answers it if its result is as expected, too: the same packets, frames and
values as by the source. What is done is counted afterwards. Any other call stays where it is, and a
result that does not conclude its call is left to the source.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.host_agent import codec
from hopsum.host_agent.c_structures import c_fields
from hopsum.host_agent.datapath.library import NESTED
from hopsum.host_agent.numbers import c_factors, worker_bits
from hopsum.host_agent.process_calls import REDUCTIONS, SUM, TYPES, CallPacket, Mailbox
from hopsum.host_agent.segment import Remark, Tensor
from hopsum.protocol.wire import Reduction

_EXPECTED = np.dtype(
    [(name, np.dtype(kind)) for name, kind in c_fields("datapath/calls.c", "expected")], align=True
)
"""`struct expected` of calls.c."""


class ExpectedCall(NamedTuple):
    """An expected call: a barrier, or a sum for all ranks of `elements` values, reduced as
    `reduction` of `type`.

    `combined`: the switches' operation on the integers that are submitted. `scaled`: these are made
    of float32 by the scale of exponent byte `code`; otherwise `code` is 0, and of other reductions
    than sums the bits are `ordered` and `complemented` (`hopsum.host_agent.node.reductions`).
    """

    kind: int = SUM
    type: str = "float32"
    reduction: str = "sum"
    elements: int = 0
    combined: Reduction = Reduction.SUM
    scaled: bool = False
    ordered: bool = False
    complemented: bool = False
    code: int = 0

    @property
    def submitted(self) -> int:
        """Elements that are submitted: a zero for a barrier."""
        return max(1, self.elements)


class InFlightCall(NamedTuple):
    """A call that a flow has submitted and the source completes; `at`: when, in seconds.

    `values`: submitted, later its result. `remark`: what went along.
    """

    at: float
    packet: CallPacket
    expected: ExpectedCall
    values: Tensor
    remark: Remark


class AnsweredCall(NamedTuple):
    """A call of some `elements` that a flow has answered: when it `began` and `ended`, in s."""

    began: float
    ended: float
    elements: int


class _Calls(ctypes.Structure):
    """`struct calls` of calls.c."""

    _fields_ = c_fields("datapath/calls.c", "calls", NESTED)


class SureCalls:
    """The calls expected next, in order, of the one rank whose packets come to `mailbox`.

    `ranks`: of the job. `tree`: the place, among the plan's, of the one that sums all of them.
    """

    def __init__(
        self, mailbox: Mailbox, ranks: int, expected: Sequence[ExpectedCall], tree: int
    ) -> None:
        self.expected = tuple(expected)
        self.tree = tree
        self._mailbox = mailbox
        self._rows = np.array([_row(each) for each in expected], _EXPECTED)
        self._values = np.zeros(max(each.submitted for each in expected), np.int32)
        self._began: NDArray[np.float64] = np.zeros(len(expected))
        self._ended: NDArray[np.float64] = np.zeros(len(expected))
        self._collected = 0
        self._factors = c_factors(worker_bits(ranks))
        self._state = _Calls(
            expected=self._rows.ctypes.data,
            memories=mailbox.addresses.ctypes.data,
            bytes=mailbox.sizes.ctypes.data,
            values=self._values.ctypes.data,
            factors=self._factors,
            began=self._began.ctypes.data,
            ended=self._ended.ctypes.data,
            socket=mailbox.descriptor,
            count=len(expected),
            ranks=ranks,
        )
        self.address = ctypes.addressof(self._state)
        """Of `struct calls`."""

    @property
    def left(self) -> int:
        """How many are still to come; 0 once the process is gone."""
        return max(0, self._state.count - self._state.next) if self._mailbox.open else 0

    def skip(self) -> None:
        """Expect the next but one: the source has submitted the next itself."""
        self._state.next += 1
        self._collected = self._state.next

    def collect(self) -> list[AnsweredCall]:
        """Return the calls that were answered since."""
        start, self._collected = self._collected, self._state.next
        return [
            AnsweredCall(float(self._began[place]), float(self._ended[place]), expected.submitted)
            for place, expected in enumerate(self.expected[start : self._collected], start)
        ]

    def give_up(self) -> InFlightCall | None:
        """Leave the call under way to the caller, if there is one; the next is expected then."""
        state = self._state
        if not state.under_way:
            return None
        place = state.next
        state.under_way, state.next = 0, place + 1
        self._collected = state.next
        packet = CallPacket(*(getattr(state, name) for name in CallPacket._fields))
        expected = self.expected[place]
        values = self._values[: expected.submitted]
        return InFlightCall(float(self._began[place]), packet, expected, values, Remark(state.own))


def _row(expected: ExpectedCall) -> tuple[int, ...]:
    return (
        expected.kind,
        list(TYPES).index(expected.type),
        REDUCTIONS["int32"].index(expected.reduction),
        expected.scaled,
        expected.ordered,
        expected.complemented,
        codec.reduction_byte(expected.combined),
        expected.code,
        expected.elements,
    )
