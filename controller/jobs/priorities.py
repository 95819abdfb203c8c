"""Priorities of jobs ([002][]): early feedback, then a multi-level feedback queue.

A job's first iterations have level 0, so that its owner soon sees whether it learns. Then its level
follows from the bytes it has sent: it starts at level 1 and drops at each threshold. So short jobs
overtake long ones, and the mean completion time falls, without knowing job sizes: PIAS (Bai et al.,
NSDI'15).

The thresholds grow geometrically, as those of Aalo (Chowdhury and Stoica, SIGCOMM'15: 10 MB, times
10), which also schedules flows that complete together. With a factor of E, jobs of one level differ
by at most E in the bytes they have sent, so fair sharing of a queue costs at most a factor of E;
and few levels span all sizes.

The bytes of its busiest host count, the traffic of one link: a job is not long because it has many
workers. Frames carry the level as an IP class selector (`hopsum.protocol.tos`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from hopsum.controller.jobs.restarting_counter import RestartingCounter
from hopsum.network.model import Network
from hopsum.protocol.errors import InputError
from hopsum.protocol.tos import LEVELS

FIRST_SECONDS = 1.0
"""The first threshold, as seconds on a link; also the interval of progress reports."""
FACTOR = 4
"""Between thresholds that suit a network: six of them span a second to a quarter of an hour."""
EARLY_ITERATIONS = 10
"""Default of `PriorityPolicy.early_iterations`."""


class PriorityError(InputError):
    """An impossible report of a job's progress; the message names job and host."""


def geometric(first: int, factor: int) -> tuple[int, ...]:
    """Thresholds for levels 1 to LEVELS - 1: first, first * factor, ... bytes."""
    if first < 1 or factor < 2:
        raise ValueError(
            f"thresholds from {first} bytes, times {factor}: expected at least 1 byte, and a "
            "factor of 2"
        )
    return tuple(first * factor**k for k in range(LEVELS - 2))


@dataclass(frozen=True, slots=True)
class PriorityPolicy:
    """Rules that derive levels from progress."""

    early_iterations: int = EARLY_ITERATIONS
    """The first I iterations, which have the highest priority ([002][]: chosen by experience)."""
    thresholds: tuple[int, ...] = geometric(10_000_000, 10)
    """Bytes, ascending: with the k-th (from 0) sent, a job is at level k + 2 or further down."""
    highest: int = 1
    """The level of a job after these iterations."""
    starved: float | None = 60.0
    """A job that has sent nothing for this many seconds moves to level 1 until it sends again (PIAS
    raises starved flows likewise). None: never."""

    def __post_init__(self) -> None:
        if self.early_iterations < 0:
            raise ValueError(f"early iterations {self.early_iterations}: expected 0 or more")
        if len(self.thresholds) > LEVELS - 1 - self.highest:
            raise ValueError(
                f"{len(self.thresholds)} thresholds: expected at most {LEVELS - 1 - self.highest}, "
                f"between the levels {self.highest} to {LEVELS - 1}"
            )
        steps = (0, *self.thresholds)
        if any(low >= high for low, high in pairwise(steps)):
            raise ValueError(
                f"thresholds {self.thresholds}: expected ascending numbers of bytes above 0"
            )
        if self.starved is not None and not self.starved > 0:
            raise ValueError(f"starved after {self.starved} s: expected above 0, or None")

    def level(self, iteration: int, sent: int) -> int:
        """Return the level of a job that has completed `iteration` iterations and sent `sent`
        bytes.
        """
        return 0 if iteration < self.early_iterations else self.later(sent)

    def later(self, sent: int) -> int:
        """Return the level after the first iterations of a job that has sent `sent` bytes."""
        return self.highest + bisect_right(self.thresholds, sent)


def suitable_policy(network: Network, early_iterations: int = EARLY_ITERATIONS) -> PriorityPolicy:
    """Thresholds for a network: what its slowest link carries in 1, 4, 16, ... s.

    Of a link that many jobs share, those at its first levels have so much time alone. Without a
    link of limited rate: the thresholds of PriorityPolicy.
    """
    rates = [link.bandwidth for link in network.links if link.bandwidth is not None]
    if not rates:
        return PriorityPolicy(early_iterations)
    first = max(1, round(min(rates) / 8 * FIRST_SECONDS))
    return PriorityPolicy(early_iterations, geometric(first, FACTOR))


ONE_LEVEL = PriorityPolicy(early_iterations=0, thresholds=(), highest=LEVELS - 1, starved=None)
"""No priorities: all jobs are at the level of other traffic, and share links fairly with it."""


class JobLevel(NamedTuple):
    """A job's level, and the one that it has once its first iterations are over.

    The first is known as of the last reports. Workers are given the second, and count their
    iterations themselves.
    """

    now: int
    later: int


@dataclass(slots=True)
class _Job:
    level: JobLevel
    iterations: dict[str, int] = field(default_factory=dict)
    senders: dict[str, RestartingCounter] = field(default_factory=dict)
    moved: float = 0.0
    """Time when it was last seen to send."""

    @property
    def sent(self) -> int:
        return max((sender.total() for sender in self.senders.values()), default=0)

    @property
    def iteration(self) -> int:
        return min(self.iterations.values(), default=0)


class FeedbackQueue:
    """The levels of all jobs, from their agents' reports. Times in seconds, the caller's."""

    def __init__(self, policy: PriorityPolicy | None = None) -> None:
        self.policy = policy or PriorityPolicy()
        self._jobs: dict[int, _Job] = {}

    def add(self, job: int, now: float, workers: Iterable[str] = ()) -> int:
        """Add a job and return its level. An existing job keeps its own.

        `workers`: those that have not reported yet count as being at iteration 0.
        """
        if job not in self._jobs:
            iterations = dict.fromkeys(workers, 0)
            level = JobLevel(self.policy.level(0, 0), self.policy.later(0))
            self._jobs[job] = _Job(level, iterations, moved=now)
        return self._jobs[job].level.now

    def remove(self, job: int) -> None:
        """Remove a job, if it exists."""
        self._jobs.pop(job, None)

    def check(self, job: int, host: str, iteration: int, sent: int) -> None:
        """Raise PriorityError for an impossible report."""
        if job not in self._jobs:
            known = ", ".join(map(str, self._jobs)) or "none"
            raise PriorityError(f"{host} reports on job {job}; jobs: {known}")
        for what, value in (("iteration", iteration), ("sent bytes", sent)):
            if value < 0:
                raise PriorityError(f"job {job}, host {host}: {what} {value}: expected 0 or more")

    def report(self, job: int, host: str, iteration: int, sent: int, now: float) -> None:
        """Process a host's report: iterations completed, bytes of frames since its agent started.

        A counter that falls is that of an agent that was restarted. A host that does not work for
        the job (a server) leaves `iteration` out of account by reporting through `sent_only`.
        Raises PriorityError.
        """
        self.check(job, host, iteration, sent)
        self._jobs[job].iterations[host] = iteration
        self.sent_only(job, host, sent, now)

    def sent_only(self, job: int, host: str, sent: int, now: float) -> None:
        """Process the bytes sent by a host that is not a worker. Raises PriorityError."""
        self.check(job, host, 0, sent)
        entry = self._jobs[job]
        sender = entry.senders.setdefault(host, RestartingCounter())
        if sent != sender.counted:
            entry.moved = now
        sender.take(sent)

    def update(self, now: float) -> dict[int, JobLevel]:
        """Return the jobs of which a level has changed since the last update (or `add`)."""
        changed = {}
        for number, job in self._jobs.items():
            level, later = self.policy.level(job.iteration, job.sent), self.policy.later(job.sent)
            starved = self.policy.starved
            if starved is not None and now - job.moved >= starved:
                level, later = min(level, 1), min(later, 1)
            if (level, later) != job.level:
                job.level = changed[number] = JobLevel(level, later)
        return changed

    def level(self, job: int) -> int:
        """Return the level of a job as of the last update; 0 for one that is not there."""
        entry = self._jobs.get(job)
        return 0 if entry is None else entry.level.now

    def job_level(self, job: int) -> JobLevel | None:
        """Return both levels of a job as of the last update; None for one that is not there."""
        entry = self._jobs.get(job)
        return None if entry is None else entry.level

    def levels(self) -> Mapping[int, int]:
        """Return the level of every job as of the last update; 0 is served first."""
        return {number: job.level.now for number, job in self._jobs.items()}
