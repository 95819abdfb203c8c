"""Events of jobs, switches and links: for timelines, and counted by kind.

No input or output, no clock of its own but the date it is given.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

KEPT = 200
"""Maximum number of events kept; counts include all."""


class EventKind(StrEnum):
    """Kind of event."""

    SUBMITTED = "submitted"
    QUEUED = "queued"
    """A job is queued behind others."""
    STARTED = "started"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PLANNED = "planned"
    """A job has its first plan."""
    FAILOVER = "failover"
    """A job has a new epoch that avoids unreachable elements."""
    REPLAN = "replan"
    """A job has a new epoch for another reason."""
    PREEMPTED = "preempted"
    """A job has a new epoch because another one preempted it."""
    OUTAGE = "outage"
    """A switch or link is planned around from now on."""
    RECOVERY = "recovery"
    """A switch or link is used again."""


@dataclass(frozen=True, slots=True)
class Event:
    """`number`: from 1. `date`: seconds since 1970. `job` and `epoch`: 0 for none."""

    number: int
    date: float
    kind: EventKind
    text: str
    job: int = 0
    epoch: int = 0


class EventLog:
    """The last events, the oldest first. `date`: seconds since 1970."""

    def __init__(self, date: Callable[[], float] = time.time, kept: int = KEPT) -> None:
        self._date = date
        self._events: deque[Event] = deque(maxlen=kept)
        self._number = 0
        self.counts: Counter[str] = Counter(dict.fromkeys(EventKind, 0))
        """Number of events of each kind."""

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    def add(self, kind: EventKind, text: str, job: int = 0, epoch: int = 0) -> None:
        """Record an event with the present time."""
        self._number += 1
        self.counts[kind] += 1
        self._events.append(Event(self._number, self._date(), kind, text, job, epoch))
