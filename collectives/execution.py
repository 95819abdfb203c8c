"""One rank's part of a schedule, without I/O: bytes in, bytes out, in the order of the schedule.

Between two ranks runs one byte stream each way: the elements of their transfers, in order,
little-endian, with nothing in between. Both sides know the schedule, so nothing else is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.schedule import Schedule, Transfer


@dataclass(slots=True)
class _Progress:
    """A transfer under way: elements [start, position) are done; it waits for `blockers`."""

    transfer: Transfer
    position: int
    blockers: tuple[_Progress, ...] = ()

    @property
    def limit(self) -> int:
        """Up to which element it may go now."""
        limit = self.transfer.stop
        for other in self.blockers:
            # Elements of the other transfer that are not done yet are off limits.
            if other.position < other.transfer.stop and other.position < limit:
                limit = max(other.position, self.transfer.start)
        return limit


@dataclass(slots=True)
class _Stream:
    """Transfers with one peer in one direction, and where we are in them."""

    parts: list[_Progress]
    missing: int = 0
    """Bytes that are still to come in."""
    index: int = 0
    waiting: bytearray = field(default_factory=bytearray)

    @property
    def current(self) -> _Progress | None:
        """The transfer in hand; None at the end."""
        while self.index < len(self.parts):
            part = self.parts[self.index]
            if part.position < part.transfer.stop:
                return part
            self.index += 1
        return None


def _overlap(a: Transfer, b: Transfer) -> bool:
    return a.start < b.stop and b.start < a.stop


class Execution:
    """Rank `rank`'s share of an all-reduce of `values`, which it changes in place.

    `values`: one-dimensional, int32 (sums wrap around) or float32.
    """

    def __init__(self, schedule: Schedule, rank: int, values: NDArray[Any]) -> None:
        if values.shape != (schedule.elements,):
            raise ValueError(
                f"values of shape {values.shape}: the schedule is for ({schedule.elements},)"
            )
        self.values = values
        self._wire_type = values.dtype.newbyteorder("<")
        sends = [_Progress(t, t.start) for t in schedule.sends(rank)]
        receives = [_Progress(t, t.start) for t in schedule.receives(rank)]
        for send in sends:
            send.blockers = tuple(
                r
                for r in receives
                if r.transfer.turn < send.transfer.turn and _overlap(r.transfer, send.transfer)
            )
        for receive in receives:
            receive.blockers = tuple(
                s
                for s in sends
                if s.transfer.turn <= receive.transfer.turn
                and _overlap(s.transfer, receive.transfer)
            )
        self._out = {
            peer: _Stream([s for s in sends if s.transfer.target == peer])
            for peer in dict.fromkeys(s.transfer.target for s in sends)
        }
        self._in = {
            peer: _Stream([r for r in receives if r.transfer.source == peer])
            for peer in dict.fromkeys(r.transfer.source for r in receives)
        }
        for stream in self._in.values():
            stream.missing = values.itemsize * sum(
                part.transfer.stop - part.transfer.start for part in stream.parts
            )

    @property
    def targets(self) -> tuple[int, ...]:
        """Ranks to send to."""
        return tuple(self._out)

    @property
    def sources(self) -> tuple[int, ...]:
        """Ranks to receive from."""
        return tuple(self._in)

    @property
    def done(self) -> bool:
        """Whether everything is sent and received."""
        return all(stream.current is None for stream in (*self._out.values(), *self._in.values()))

    def outgoing(self, peer: int, limit: int) -> bytes:
        """The next bytes for `peer`, at most `limit`; empty while there are none."""
        item = self.values.itemsize
        taken: list[bytes] = []
        stream = self._out[peer]
        while limit >= item and (part := stream.current) is not None:
            stop = min(part.limit, part.position + limit // item)
            if stop <= part.position:
                break
            taken.append(
                self.values[part.position : stop].astype(self._wire_type, copy=False).tobytes()
            )
            limit -= len(taken[-1])
            part.position = stop
        if taken:
            self._apply()
        return b"".join(taken)

    def incoming(self, peer: int, data: bytes) -> bytes:
        """Take the next bytes of `peer`'s stream; returns those that belong to a later schedule."""
        stream = self._in[peer]
        kept = min(len(data), stream.missing)
        stream.waiting += data[:kept]
        stream.missing -= kept
        self._apply()
        return data[kept:]

    def _apply(self) -> None:
        item = self.values.itemsize
        for stream in self._in.values():
            while len(stream.waiting) >= item and (part := stream.current) is not None:
                count = min(part.limit - part.position, len(stream.waiting) // item)
                if count <= 0:
                    break
                elements = np.frombuffer(bytes(stream.waiting[: count * item]), self._wire_type)
                del stream.waiting[: count * item]
                where = slice(part.position, part.position + count)
                if part.transfer.combine:
                    self.values[where] += elements
                else:
                    self.values[where] = elements
                part.position += count
