"""A call and its segments: the fragments of one tensor on each tree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from hopsum.collectives.operation import Ranges
from hopsum.collectives.plan import exponent_group, prologue_count
from hopsum.host_agent.codec import reduction_byte
from hopsum.host_agent.elements import Element, element_of
from hopsum.protocol.wire import VALUE_REDUCTIONS, Reduction, Width

Tensor = NDArray[Any]
"""Of a type of `hopsum.host_agent.elements`."""
NO_CODE = -1
"""UNKNOWN of frames.h: the exponent byte of a prologue without a result."""


@dataclass(slots=True)
class Remark:
    """A byte that each worker sends along with an int32 tensor, `own`; all get the `maximum`.

    It is in the exponent field of all the tensor's fragments, of which switches and server keep the
    greatest; the maximum is known once the call is done.
    """

    own: int = 0
    maximum: int = 0


class CallOptions(NamedTuple):
    """How the hosts sum a tensor, where not as the plan says: see `Worker.submit`."""

    reduction: Reduction | None = None
    remark: Remark | None = None
    ranges: Ranges | None = None
    width: Width | None = None


AS_PLANNED = CallOptions()


@dataclass(slots=True)
class Call:
    """One all-reduce of one tensor. `open_parts`: trees whose part is unfinished."""

    number: int
    name: str
    result: Tensor
    open_parts: int
    remark: Remark | None = None
    prologues: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    """How many trees' prologues have no result, (1,); the streams count them down."""

    @property
    def waits(self) -> bool:
        """Whether prologues' results are missing."""
        return bool(self.prologues[0])


class Segment:
    """The range start..stop of a call's flat tensor, as fragments `first` to `end` of a stream.

    `source` and `result` are of this range alone, of one length and type: what is sent, and where
    results go. `width`: of its values in packets; `lanes`: of a fragment, for values. The first
    fragments of a tensor of floats are its prologues, all others are data. A fragment's exponent
    byte on the wire speaks of the data fragment one window later, a prologue's of its group of the
    first window (docs/protocol.md). `codes`: the exponent bytes of the data fragments
    (`numbers.exponent_codes`; not read for integers).
    """

    def __init__(
        self,
        call: Call,
        source: Tensor,
        result: Tensor,
        start: int,
        first: int,
        lanes: int,
        window: int,
        codes: NDArray[np.uint8],
        reduction: Reduction,
        width: Width = Width.WIDTH_32,
    ) -> None:
        self.call = call
        self.start = start
        self.stop = start + len(source)
        self.first = first
        self.source = source
        self.result = result
        element = element_of(source.dtype)
        assert element is not None
        self.element: Element = element
        self.width = width
        self.reduction = reduction_byte(
            reduction, width if reduction in VALUE_REDUCTIONS else Width.WIDTH_32
        )
        """Reduction byte in frames."""
        self.values = lanes * width.per_lane
        data = -(-len(source) // self.values)
        self.group = exponent_group(window, width)
        self.prologues = prologue_count(data, window, width) if element.scaled else 0
        self.end = first + self.prologues + data
        self.exponents = np.zeros(data + self.prologues, dtype=np.uint8)
        """Exponent bytes to send with each fragment of floats."""
        self.codes = np.full(self.prologues, NO_CODE, dtype=np.int64)
        """The prologues' results."""
        if self.prologues:
            call.prologues += 1
            groups = np.arange(0, min(window, data), self.group)
            self.exponents[: self.prologues] = np.maximum.reduceat(codes[:window], groups)
            later = codes[window:]
            self.exponents[self.prologues : self.prologues + len(later)] = later

    def elements(self, fragment: int) -> str:
        """Return the elements of the tensor in a fragment of the stream, for messages."""
        data = fragment - self.first - self.prologues
        if data < 0:
            return "the exponents of its first window"
        low = self.start + data * self.values
        return f"elements {low} to {min(self.stop, low + self.values) - 1}"

    def copy_for(self, call: Call) -> Self:
        """Return a copy whose results go to a copy of its call."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__, call=call, codes=self.codes.copy())
        part = call.result.reshape(-1)[self.start : self.stop]
        shared = np.shares_memory(self.result, self.call.result)
        copied.result = part if shared else self.result.copy()
        if np.shares_memory(self.source, self.result):
            copied.source = copied.result
        return copied
