"""A call and its segments: the fragments of one tensor on each tree."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopsum.host_agent.codec import NO_LANES, reduction_byte
from hopsum.host_agent.recovery import low_high
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
    """One all-reduce of one tensor. `open_parts`: trees whose part is unfinished.

    `prologues`: trees whose prologue's result is not here. The first windows of all wait for these:
    whichever tree began alone would keep the links from the host to itself for a window.
    """

    number: int
    name: str
    result: Tensor
    open_parts: int
    prologues: int = 0
    remark: Remark | None = None


class Segment:
    """The range start..stop of a call's flat tensor, as `count` fragments of one tree's stream.

    `source` and `result` are of this range alone, of one length: what is sent, and where results
    go. The first is fragment `first` of the stream: the prologue of a float32 tensor, else data.
    Data fragments are counted from 0. A fragment's exponent byte on the wire speaks of the data
    fragment one window later, the prologue's of the first window (docs/protocol.md). `codes`: the
    exponent bytes of the data fragments (`numbers.exponent_codes`; not read for int32).
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
        self.stop = stop = start + len(source)
        self.first = first
        self.scaled = source.dtype == np.float32
        self.prologue = 1 if self.scaled else 0
        call.prologues += self.prologue
        self.reduction = reduction_byte(reduction)
        """Reduction byte in frames."""
        self.byte = 0 if call.remark is None else call.remark.own
        """Exponent byte in frames of int32."""
        self._lanes = lanes
        self._window = window
        self.source = source
        self.result = result
        self._full = (stop - start) // lanes
        data = -(-(stop - start) // lanes)
        self.data = data
        self.count = data + self.prologue
        self.end = first + self.count
        self.open = self.count
        self.first_window_code: int | None = None
        """Result of the prologue; the window's fragments can be scaled once it is known."""
        self.exponents = np.zeros(data + 1 if self.scaled else 0, dtype=np.uint8)
        """Exponent bytes to send with each fragment."""
        if self.scaled:
            self.exponents[0] = codes[:window].max()
            self.exponents[1 : 1 + len(codes[window:])] = codes[window:]

    @property
    def waits(self) -> bool:
        """Whether the prologue's result is not here."""
        return self.scaled and self.first_window_code is None

    def begin(self, code: int) -> None:
        """Take the prologue's result, the exponent byte of the first window."""
        self.first_window_code = code
        self.call.prologues -= 1

    def announced(self, fragments: NDArray[np.int64]) -> NDArray[np.uint8] | int:
        """Return the exponent bytes to send with fragments of the stream."""
        return self.exponents[fragments - self.first] if self.scaled else self.byte

    def take_remark(self, codes: NDArray[np.uint8]) -> None:
        """Take the exponent bytes of results."""
        remark = self.call.remark
        if remark is not None:
            remark.maximum = max(remark.maximum, *codes.tobytes())

    def reductions(self, data: NDArray[np.int64], *, bare: bool) -> NDArray[np.uint8]:
        """Return the reduction bytes of data fragments (n,).

        `bare`: a prologue goes out without lanes, as nothing is in them.
        """
        return np.where((data < 0) & bare, NO_LANES, np.uint8(self.reduction))

    def own_codes(self, data: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the exponent bytes that data fragments (n,) of a float32 tensor need here."""
        return self.exponents[np.maximum(data - self._window + 1, 0)]

    def _is_run(self, data: NDArray[np.int64]) -> bool:
        """Return whether these are consecutive full fragments."""
        low = int(data[0])
        high = int(data[-1])
        return (
            low >= 0
            and high < self._full
            and high - low == len(data) - 1
            and (low == high or bool((np.diff(data) == 1).all()))
        )

    def _whole(self, values: Tensor) -> Tensor:
        """Return the full fragments of source or result, as rows that share memory."""
        return values[: self._full * self._lanes].reshape(self._full, self._lanes)

    def values(self, data: NDArray[np.int64]) -> Tensor:
        """Return data fragments (n,) as rows (n, lanes); the last is padded with zeros.

        Read only.
        """
        if self._is_run(data):
            low = int(data[0])
            return self._whole(self.source)[low : low + len(data)]
        rows = np.zeros((len(data), self._lanes), dtype=self.source.dtype)
        inside = (data >= 0) & (data < self._full)
        rows[inside] = self._whole(self.source)[data[inside]]
        for row in np.flatnonzero(data == self._full):
            rest = self.source[self._full * self._lanes :]
            rows[row, : len(rest)] = rest
        return rows

    def store(self, data: NDArray[np.int64], rows: Tensor) -> None:
        """Store the results of data fragments (n,)."""
        if self._is_run(data):
            low = int(data[0])
            self._whole(self.result)[low : low + len(data)] = rows
            return
        inside = (data >= 0) & (data < self._full)
        self._whole(self.result)[data[inside]] = rows[inside]
        for row in np.flatnonzero(data == self._full):
            rest = self.result[self._full * self._lanes :]
            rest[:] = rows[row, : len(rest)]

    def elements(self, fragment: int) -> str:
        """Return the elements of the tensor in a fragment of the stream, for messages."""
        data = fragment - self.first - self.prologue
        if data < 0:
            return "the exponents of its first window"
        low = self.start + data * self._lanes
        return f"elements {low} to {min(self.stop, low + self._lanes) - 1}"


class OpenSegments:
    """The unfinished segments of a stream, in order."""

    def __init__(self) -> None:
        self._segments: list[Segment] = []
        self._starts: list[int] = []

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    @property
    def empty(self) -> bool:
        """Whether there is none."""
        return not self._segments

    def append(self, segment: Segment) -> None:
        """Add a segment that starts where the last one ends."""
        self._starts.append(segment.first)
        self._segments.append(segment)

    def remove(self, segment: Segment) -> None:
        """Remove a segment whose results are all in place."""
        index = self._segments.index(segment)
        del self._segments[index], self._starts[index]
        segment.call.open_parts -= 1

    def at(self, fragment: int) -> Segment | None:
        """Return the last segment that starts at a fragment or before it."""
        place = bisect_right(self._starts, fragment) - 1
        return self._segments[place] if place >= 0 else None

    def of(self, fragments: NDArray[np.int64]) -> list[tuple[Segment, NDArray[np.bool_] | None]]:
        """Return the segments that fragments (n,) belong to, with the rows of each (None: all)."""
        starts = self._starts
        least, most = low_high(fragments)
        low = bisect_right(starts, least) - 1
        high = bisect_right(starts, most, low)
        if high - low == 1:
            return [(self._segments[low], None)]
        parts: list[tuple[Segment, NDArray[np.bool_] | None]] = []
        for segment in self._segments[low:high]:
            rows = (fragments >= segment.first) & (fragments < segment.end)
            if rows.any():
                parts.append((segment, rows))
        return parts
