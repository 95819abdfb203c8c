"""A stream's fast path: ordinary results and fragments go through the pass in C.

`host_agent.ordinary` has the pass and says what is ordinary; here a stream's windows, links and
timers follow what the pass has done to its slots. What is not ordinary is left to the stream.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from host_agent.codec import FRAGMENT_AT, STACK_START, Frames, exponents_of
from host_agent.flight import Flight
from host_agent.link_repairs import LinkRepairs
from host_agent.options import WorkerStatistics
from host_agent.ordinary import Ordinary
from host_agent.segment import OpenSegments, Segment


class Taken(NamedTuple):
    """Results that the pass took in: their segment, and whether the window was or is limited.

    If so, their slots may be idle; otherwise these have sent their next fragments.
    """

    segment: Segment
    limited: bool


class FastPath:
    """The pass in C over the slots of one stream, which has no check lanes.

    `owner` of the methods is that stream, whose arrays the pass looks up (`host_agent.ordinary`).
    """

    def __init__(
        self,
        flight: Flight,
        links: LinkRepairs,
        segments: OpenSegments,
        statistics: WorkerStatistics,
    ) -> None:
        self._flight = flight
        self._links = links
        self._segments = segments
        self._statistics = statistics
        self._pass = Ordinary()

    def unbind(self) -> None:
        """Look up the owner's arrays again, as they have moved."""
        self._pass = Ordinary()

    def release(self) -> None:
        """Forget the segment in hand, which is complete."""
        self._pass.tensor(None)

    def take(self, owner: object, frames: Frames, now: float, end: int) -> Taken | None:
        """Take in results (n, length); return None, without effect, if some are not ordinary.

        `end`: of the stream, the number of the first fragment that does not exist.
        """
        links, flight = self._links, self._flight
        arrivals = links.arrivals[0]
        if not arrivals.complete:
            return None
        wire = int.from_bytes(frames[0, FRAGMENT_AT : FRAGMENT_AT + 4].tobytes(), "big")
        segment = self._segments.at(flight.fragment[wire & (len(flight.fragment) - 1)])
        if segment is None:
            return None
        self._go_to(owner, segment)
        found = self._pass.look(
            frames,
            end_of_stream=end,
            arrived=arrivals.newest,
            log_next=links.sent.next,
            open=flight.open,
            **flight.recovery.scalars,
        )
        if found is None:
            return None
        count = len(frames)
        if segment.call.remark is not None:
            segment.take_remark(exponents_of(frames))
        limited = flight.congestion.limited
        if found.marked or limited:
            shortest = now - found.latest
            flight.heed_congestion(found.newest, shortest, flight.open, marked=found.marked > 0)
            limited |= flight.congestion.limited
        self._statistics.ecn += found.marked
        if found.sequenced:
            arrivals.newest += count
        times = found.oldest, found.latest
        flight.round_trip.sample(flight.recovery.answered_in_order(found.newest, *times, now))
        due = flight.due_after(now)
        following = self._pass.take(STACK_START, now, due, go_on=not limited)
        if len(following):
            links.sent.next = found.log_next
            flight.went_out(following, now, due)
        self._statistics.accepted += count
        flight.open -= count
        segment.open -= count
        return Taken(segment, limited)

    def send(
        self, owner: object, segment: Segment, fragments: NDArray[np.int64], now: float
    ) -> bool:
        """Send fragments (n,) of idle slots; return False, without effect, if not ordinary."""
        self._go_to(owner, segment)
        flight = self._flight
        due = flight.due_after(now)
        scalars = flight.recovery.scalars
        made = self._pass.send(fragments, now, due, log_next=self._links.sent.next, **scalars)
        if made is None:
            return False
        frames, self._links.sent.next = made
        flight.went_out(frames, now, due)
        return True

    def _go_to(self, owner: object, segment: Segment) -> None:
        """Point the pass at a segment, and at the owner's arrays if they have moved."""
        if not self._pass.bound:
            self._pass.bind(owner)
        self._pass.tensor(segment)
