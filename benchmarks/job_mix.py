"""Fluid model of many jobs on one network: rates between events, and levels that follow progress.

A job that sums in the switches, or at a parameter server, keeps a window of fragments in flight; so
all links of its tree carry it at one rate, that of the bottleneck. Its rounds follow each other
without a pause. Jobs share links by strict priority, and max-min fairly within a level; levels come
from the controller's own `FeedbackQueue`, which receives progress reports at the same interval as
in a cluster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.priority_rates import priority_rates
from hopsum.collectives.plan import JobPlan
from hopsum.controller.jobs.priorities import FeedbackQueue, PriorityPolicy
from hopsum.controller.telemetry.nodes import REPORT_SECONDS
from hopsum.protocol.errors import InputError
from hopsum.timing.max_min import Floats, Usage
from hopsum.timing.routes import LinkArrays
from hopsum.timing.trees import tree_routes

_BUSIEST = "busiest"
"""The host that represents all of a job: their counters are equal in the fluid model."""
_LEFT = 1e-9
"""A job is over when no more than this fraction of it is left: times are floating-point numbers."""


class JobMixError(InputError):
    """Jobs that cannot be run to their end; the message says which and why."""


@dataclass(frozen=True, slots=True)
class FluidJob:
    """A job's load on links. A unit is a byte of tensors.

    `start`: s. `size`: of all rounds together, above 0. `links`: (link, bytes of frames per unit).
    `sent`: bytes of frames per unit that its busiest host sends. `limit`: units/s that its window
    allows.
    """

    start: float
    size: float
    rounds: int
    links: tuple[tuple[int, float], ...]
    sent: float = 1.0
    limit: float = math.inf


@dataclass(frozen=True, slots=True)
class FluidTimes:
    """Start and end times of jobs in seconds, (n,) each."""

    started: Floats
    ended: Floats

    @property
    def completion(self) -> Floats:
        """Return the duration of each job in seconds, (n,)."""
        return self.ended - self.started


def fluid_job(
    links: LinkArrays, plan: JobPlan, start: float, elements: int, rounds: int
) -> FluidJob:
    """Return a job that sums `elements` 32-bit values in each round with a plan of one tree."""
    if len(plan.trees) != 1:
        raise JobMixError(f"job {plan.job} has {len(plan.trees)} trees: expected 1")
    routes = tree_routes(links, plan)
    first, end = routes.usage.starts[:2]
    used = [
        (int(link), float(amount))
        for link, amount in zip(
            routes.usage.links[first:end], routes.usage.amounts[first:end], strict=True
        )
    ]
    hosts = links.network.hosts
    sent = max(amount for link, amount in used if links.pairs[link][0] in hosts)
    return FluidJob(start, 4.0 * elements * rounds, rounds, tuple(used), sent, routes.limits[0])


def simulate_jobs(
    jobs: Sequence[FluidJob],
    capacities: Floats,
    policy: PriorityPolicy,
    report_seconds: float = REPORT_SECONDS,
) -> FluidTimes:
    """Simulate jobs to their end. `capacities`: of every link, bytes/s, (links,).

    Raises JobMixError for a job that no link and no window limits, or that never ends.
    """
    mix = _Mix(jobs, capacities, policy, report_seconds)
    return mix.run()


class _Mix:
    def __init__(
        self,
        jobs: Sequence[FluidJob],
        capacities: Floats,
        policy: PriorityPolicy,
        report_seconds: float,
    ) -> None:
        self._jobs = jobs
        self._capacities = capacities
        self._queue = FeedbackQueue(policy)
        self._period = report_seconds
        self._usage = Usage.of([job.links for job in jobs])
        self._limits = np.array([job.limit for job in jobs], dtype=np.float64)
        self._size = np.array([job.size for job in jobs], dtype=np.float64)
        self._left = self._size.copy()
        self._waiting = sorted(range(len(jobs)), key=lambda number: jobs[number].start)
        self._active: list[int] = []
        self._rates = np.zeros(0)
        self._ended = np.full(len(jobs), np.inf)

    def run(self) -> FluidTimes:
        now, report = 0.0, math.inf
        while self._waiting or self._active:
            arrival = self._jobs[self._waiting[0]].start if self._waiting else math.inf
            until = min(arrival, report, now + self._least_needed())
            self._left[self._active] -= self._rates * (until - now)
            now = until
            changed = self._end(now)
            changed |= self._begin(now)
            if now >= report:
                changed |= self._report(now)
            if changed:
                self._share()
            report = self._next_report(now) if self._active else math.inf
        started = np.array([job.start for job in self._jobs], dtype=np.float64)
        return FluidTimes(started, self._ended)

    def _next_report(self, now: float) -> float:
        """Return the time of the agents' next report, a multiple of the interval."""
        number = math.floor(now / self._period) + 1
        # The quotient may have been rounded down to the report just made.
        return self._period * (number if self._period * number > now else number + 1)

    def _least_needed(self) -> float:
        """Return the seconds until the next job is over at these rates."""
        needed = [
            self._left[job] / rate
            for job, rate in zip(self._active, self._rates, strict=True)
            if rate > 0
        ]
        return float(min(needed, default=math.inf))

    def _begin(self, now: float) -> bool:
        begun = False
        while self._waiting and self._jobs[self._waiting[0]].start <= now:
            number = self._waiting.pop(0)
            self._active.append(number)
            self._queue.add(number, now)
            begun = True
        return begun

    def _end(self, now: float) -> bool:
        over = [job for job in self._active if self._left[job] <= _LEFT * self._size[job]]
        for job in over:
            self._active.remove(job)
            self._queue.remove(job)
            self._ended[job] = now
        return bool(over)

    def _report(self, now: float) -> bool:
        """Report every job's progress to the queue; return whether some level changed."""
        for number in self._active:
            job = self._jobs[number]
            done = job.size - float(self._left[number])
            rounds = math.floor(job.rounds * done / job.size * (1 + _LEFT))
            self._queue.report(number, _BUSIEST, rounds, int(done * job.sent), now)
        return bool(self._queue.update(now))

    def _share(self) -> None:
        active = np.array(self._active, dtype=np.int64)
        known = self._queue.levels()
        levels = np.array([known[job] for job in self._active], dtype=np.int64)
        self._rates = priority_rates(
            self._usage.take(active), self._capacities, levels, self._limits[active]
        )
        if not np.isfinite(self._rates).all():
            free = self._active[int(np.argmax(~np.isfinite(self._rates)))]
            raise JobMixError(f"job {free} has no limit: expected a link with a bandwidth")
        if self._active and not self._rates.any():
            raise JobMixError(
                f"job {self._active[0]} never ends: one of its links has no bandwidth"
            )
