"""Virtual time: a queue of events in order of time, ties in order of scheduling."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from hopsum.protocol.errors import OperationError

Action = Callable[[], None]


class SimulationError(OperationError):
    """A run that cannot continue: no event is scheduled, or the time limit is reached."""


class EventQueue:
    """Events and a clock, in seconds from 0."""

    def __init__(self) -> None:
        self.now = 0.0
        self.processed = 0
        self._heap: list[tuple[float, int, Action]] = []
        self._numbers = count()

    def at(self, time: float, action: Action) -> None:
        """Run `action` at `time`, or immediately if that has passed."""
        heapq.heappush(self._heap, (max(time, self.now), next(self._numbers), action))

    def step(self) -> bool:
        """Run the next event; False if there is none."""
        if not self._heap:
            return False
        self.now, _, action = heapq.heappop(self._heap)
        self.processed += 1
        action()
        return True

    @property
    def next_time(self) -> float | None:
        """Return when the next event is due; None if there is none."""
        return self._heap[0][0] if self._heap else None
