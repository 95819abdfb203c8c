"""A call and its segments: the fragments of one tensor on each tree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hopsum.host_agent.codec import reduction_byte
from hopsum.protocol.wire import Reduction

Tensor = NDArray[Any]
"""float32 or int32."""


@dataclass(slots=True)
class Remark:
    """A byte that each worker sends along with an int32 tensor, `own`; all get the `maximum`.

    It is in the exponent field of all the tensor's fragments, of which switches and server keep the
    greatest; the maximum is known once the call is done.
    """

    own: int = 0
    maximum: int = 0


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

    `source` and `result` are of this range alone, of one length: what is sent, and where results
    go. The first fragment of a float32 tensor is its prologue, all others are data of `lanes`
    values. A fragment's exponent byte on the wire speaks of the data fragment one window later, the
    prologue's of the first window (docs/protocol.md). `codes`: the exponent bytes of the data
    fragments (`numbers.exponent_codes`; not read for int32).
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
    ) -> None:
        self.call = call
        self.start = start
        self.stop = start + len(source)
        self.first = first
        self.source = source
        self.result = result
        self.reduction = reduction_byte(reduction)
        """Reduction byte in frames."""
        self.scaled = source.dtype == np.float32
        self._lanes = lanes
        data = -(-len(source) // lanes)
        self.end = first + data + self.scaled
        self.exponents = np.zeros(data + 1 if self.scaled else 0, dtype=np.uint8)
        """Exponent bytes to send with each fragment of float32."""
        if self.scaled:
            call.prologues += 1
            self.exponents[0] = codes[:window].max()
            self.exponents[1 : 1 + len(codes[window:])] = codes[window:]

    def elements(self, fragment: int) -> str:
        """Return the elements of the tensor in a fragment of the stream, for messages."""
        data = fragment - self.first - self.scaled
        if data < 0:
            return "the exponents of its first window"
        low = self.start + data * self._lanes
        return f"elements {low} to {min(self.stop, low + self._lanes) - 1}"

    def copy_for(self, call: Call) -> Self:
        """Return a copy whose results go to a copy of its call."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__, call=call)
        part = call.result.reshape(-1)[self.start : self.stop]
        shared = np.shares_memory(self.result, self.call.result)
        copied.result = part if shared else self.result.copy()
        if np.shares_memory(self.source, self.result):
            copied.source = copied.result
        return copied
