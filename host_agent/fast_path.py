"""A stream's fast path: ordinary results and fragments go through the pass in C.

`hopsum.host_agent.ordinary` has the pass and says what is ordinary; here a stream's windows, links
and timers follow what the pass has done to its slots. What is not ordinary is left to the stream.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.host_agent.codec import FRAGMENT_AT, Frames, exponents_of
from hopsum.host_agent.flight import Flight
from hopsum.host_agent.link_repairs import LinkRepairs
from hopsum.host_agent.ordinary import Ordinary
from hopsum.host_agent.segment import OpenSegments, Segment
from hopsum.host_agent.sure_calls import SureCalls


class PassResults(NamedTuple):
    """Results that the pass accepted: their segment, the frames that they make room for, and
    whether idle slots may send more."""

    segment: Segment
    following: Frames
    refill: bool


class FlowHandover(NamedTuple):
    """State of a flow that ends: its segment, if any, the bytes it has sent, `refill` as in
    PassResults, and the end of the stream."""

    segment: Segment | None
    sent_bytes: int
    refill: bool
    end: int


class FastPath:
    """The pass in C over the slots of one stream, which has no check lanes.

    `owner` of the methods is that stream, whose arrays the pass looks up
    (`hopsum.host_agent.ordinary`).
    """

    def __init__(self, flight: Flight, links: LinkRepairs, segments: OpenSegments) -> None:
        self._flight = flight
        self._links = links
        self._segments = segments
        self._pass = Ordinary()

    def unbind(self) -> None:
        """Look up the owner's arrays again, as they have moved."""
        self._pass = Ordinary()

    def release(self) -> None:
        """Forget the segment in hand, which is complete."""
        self._pass.tensor(None)

    def take(self, owner: object, frames: Frames, now: float, end: int) -> PassResults | None:
        """Take in results (n, length); return None, without effect, if some are not ordinary.

        `end`: of the stream, the number of the first fragment that does not exist.
        """
        flight = self._flight
        if not self._links.arrivals[0].complete:
            return None
        wire = int.from_bytes(frames[0, FRAGMENT_AT : FRAGMENT_AT + 4].tobytes(), "big")
        segment = self._segments.at(flight.fragment[wire & (len(flight.fragment) - 1)])
        if segment is None:
            return None
        self._go_to(owner, segment)
        if segment.waits:
            if not self._pass.take_prologue(frames, now):
                return None
            self._pass.save()
            segment.begin(int(exponents_of(frames)[0]))
            return PassResults(segment, frames[:0], True)
        following = self._pass.take(frames, end, now)
        if following is None:
            return None
        self._pass.save()
        return PassResults(segment, following, self._pass.refill)

    def send(
        self, owner: object, segment: Segment, fragments: NDArray[np.int64], now: float
    ) -> Frames | None:
        """Send fragments (n,) of idle slots; return None, without effect, if not ordinary."""
        self._go_to(owner, segment)
        frames = self._pass.send(fragments, now)
        if frames is not None:
            self._pass.save()
        return frames

    # -- as a flow

    def enter(self, owner: object, end: int, calls: SureCalls | None) -> int | None:
        """Leave ordinary results to a flow until `leave`; return its address.

        None if none can come. `end`: of the stream. `calls`: to take from a process, if nothing is
        in flight.
        """
        flight = self._flight
        if not (flight.open or calls) or not self._links.arrivals[0].complete:
            return None
        segment = None
        if flight.open:
            segment = self._pass.segment or next(iter(self._segments))
        self._go_to(owner, segment)
        if not self._pass.available:
            return None
        self._pass.enter(end, flight.deadline, calls)
        return self._pass.flow()

    @property
    def first(self) -> int:
        """First fragment of the tensor that a flow has begun for a process."""
        return self._pass.first

    def follow(self, segment: Segment) -> None:
        """Take the tensor that the flow has begun for this segment, before `leave`."""
        self._pass.follow(segment)

    def leave(self) -> FlowHandover:
        """Take over what the flow has done."""
        ordinary = self._pass
        ordinary.save()
        return FlowHandover(ordinary.segment, ordinary.sent_bytes, ordinary.refill, ordinary.end)

    def _go_to(self, owner: object, segment: Segment | None) -> None:
        """Point the pass at a segment, if any, and at the owner's arrays if they have moved."""
        if not self._pass.bound:
            self._pass.bind(owner)
        self._pass.tensor(segment)
        self._pass.load()
