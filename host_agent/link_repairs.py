"""A host's end of the links to its neighbours on one tree: repairs of losses.

Frames are numbered for the neighbour that takes them in, which asks for the numbers that are
missing. A worker has one neighbour, its switch; a server has one for each child. Unicast results
pass all switches: their neighbours are server and worker. The rules are in docs/protocol.md, Losses
on a link and Losses of unicast results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hopsum.host_agent.codec import Form, Frames, Matcher, mark, number, sequences_of
from hopsum.host_agent.sequencing import Arrivals, SentLog
from hopsum.protocol.tos import URGENT
from hopsum.protocol.wire import Flag

SEQUENCED = np.uint8(Flag.SEQUENCED)
REPAIR = np.uint8(Flag.REPAIR)


class RepairStatistics(Protocol):
    """Counters of repairs, in packets."""

    requests: int
    repaired: int
    foreign: int


class LinkRepairs:
    """Numbers, requests and repairs of a host on one tree.

    Requests and repairs go to the front of `output`, and are counted in `statistics`.
    """

    def __init__(
        self, window: int, neighbours: int, output: list[Frames], statistics: RepairStatistics
    ) -> None:
        self.sent = SentLog(window)
        self.arrivals = [Arrivals() for _ in range(neighbours)]
        self._output = output
        self._statistics = statistics

    def restart(self, request: Form, *, end_to_end: bool = False) -> None:
        """Start a new epoch, with numbers from 0; `request`: the form of neighbours' requests.

        `end_to_end`: what arrives is numbered by the host at the other end (see `Arrivals`).
        """
        self.sent.restart()
        self.end_to_end = end_to_end
        for arrivals in self.arrivals:
            arrivals.restart(end_to_end=end_to_end)
        self._asked = Matcher(request.template, unusual_flags=0)

    def number(self, frames: Frames, fragments: NDArray[np.int64]) -> NDArray[np.int64]:
        """Assign the next numbers to frames that are sent now, and return these (n,)."""
        numbers = self.sent.number(fragments)
        number(frames, numbers, SEQUENCED)
        return numbers

    def take(
        self,
        frames: Frames,
        flags: NDArray[np.uint8],
        neighbour: int,
        make_requests: Callable[[int], Frames],
    ) -> list[int]:
        """Process the numbers of a neighbour's frames, and request missing ones.

        `make_requests`: makes a given number of requests to it, without numbers. Returns the rows
        of frames whose numbers had been received before.
        """
        repairs = (flags & REPAIR) != 0
        missing, copies = self.arrivals[neighbour].take(sequences_of(frames), repairs)
        if missing:
            requests = make_requests(len(missing))
            number(requests, np.array(missing), SEQUENCED)
            self._statistics.requests += len(requests)
            self._output.insert(0, requests)
        return copies

    def requested(self, frames: Frames) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the numbers that neighbours request, and the fragments sent under them."""
        plain, _ = self._asked.sift(frames)
        self._statistics.foreign += len(frames) - int(plain.sum())
        return self.sent.find(sequences_of(frames[plain]))

    def repair(self, frames: Frames, numbers: NDArray[np.int64], tos: int) -> None:
        """Retransmit lost frames under their numbers (n,), ahead of all others."""
        number(frames, numbers, SEQUENCED | REPAIR)
        mark(frames, tos | URGENT)
        self._statistics.repaired += len(frames)
        self._output.insert(0, frames)
