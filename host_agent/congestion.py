"""How many fragments a stream has in flight where links are shared (docs/congestion.md).

Queues mark what waits behind many others, and whoever sums passes the mark on, so all workers of a
job learn of it by the result. They answer as TCP does (RFC 5681, with the marks of RFC 3168): half
as many fragments in flight, once a round trip; else one full-size segment more every round trip. So
jobs and connections that meet the same queue end up with the same share of its link.

Round trips alone never make a window smaller: the wait for the slowest worker looks like a queue.
But a round trip that is no longer than frames need for the way shows that nothing waits anywhere,
and the window doubles.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from collectives.plan import JobPlan, TreePlan
from network.model import Link, Network
from protocol.wire import frame_bytes

LEAST_WINDOW = 4
"""Fragments: fewer would wait for timeouts when one is lost."""
SEGMENT_FRAME_BYTES = 1514
"""A frame of a TCP connection, which adds one to its window every round trip."""
NO_QUEUE = 1.5
"""Round trips up to so many times what frames need for the way show that they waited nowhere."""


class CongestionWindow:
    """The fragments that may be in flight: at most `window`, with which it starts.

    It stays as it is until `move` says where frames may have to wait.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._size = float(window)
        self._way: Way | None = None
        self._heeded = 0
        """Marks of sendings from this one on count: those before it were answered with a mark."""
        self._round = 0
        """The first sending of the present round trip."""
        self._shortest = float("inf")

    def move(self, way: Way | None) -> None:
        """Take another way. None: its links have no rate, so that frames do not wait for them.

        Marks do not count there: they are of bursts that a switch took in at once.
        """
        self._way = way

    @property
    def limit(self) -> int:
        """Fragments that may be in flight."""
        return int(self._size)

    @property
    def limited(self) -> bool:
        """Whether that is less than the whole window."""
        return self._size < self._window

    def answered(
        self, newest: int, following: int, in_flight: int, round_trip: float, *, marked: bool
    ) -> None:
        """Take in results; `marked`: one of them met a long queue.

        `newest`: number of the last sending that they answer, `following`: of the next one to be
        made. `in_flight`: with them. `round_trip`: the shortest of theirs (s).
        """
        if self._way is None:
            self._size = float(self._window)
        if self._way is None or not (marked or self.limited):
            return
        self._shortest = min(self._shortest, round_trip)
        if marked and newest >= self._heeded:
            self._size = max(min(self._size, in_flight) / 2, min(LEAST_WINDOW, self._window))
            self._heeded = following
        elif newest >= self._round and in_flight >= self.limit:
            step = self._way.step
            if self._shortest <= NO_QUEUE * self._way.round_trip:
                step = max(step, self._size)
            self._size = min(self._size + step, self._window)
        else:
            return
        self._round = following
        self._shortest = float("inf")


class Way(NamedTuple):
    """What a stream's frames go along."""

    round_trip: float
    """Seconds from the workers to the server and back, if nothing has to wait."""
    step: float
    """Fragments in a TCP connection's segment."""


def way_of(network: Network, plan: JobPlan, tree: TreePlan) -> Way | None:
    """Return the way along a tree; None if no link of it has a rate.

    Nothing comes back before the worker that is furthest away has sent.
    """
    size = frame_bytes(plan.lanes, 0)

    def links(node: str) -> Iterator[Link]:
        while node != tree.server:
            yield network.link(node, tree.parents[node])
            node = tree.parents[node]

    ways = [list(links(worker)) for worker in plan.workers]
    if all(link.bandwidth is None for way in ways for link in way):
        return None
    longest = max(
        sum(link.latency + 8 * size / (link.bandwidth or inf) for link in way) for way in ways
    )
    return Way(2 * longest, SEGMENT_FRAME_BYTES / size)
