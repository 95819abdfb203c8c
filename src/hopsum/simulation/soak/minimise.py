"""The smallest schedule that still fails, by delta debugging.

Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input (TSE 2002), chooses the
jobs and faults to keep; then these are simplified step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from hopsum.collectives.choices import Collective
from hopsum.simulation.faults import CHANCES, Outage
from hopsum.simulation.soak.inputs import network_of
from hopsum.simulation.soak.schedule import (
    EVERYWHERE,
    Attack,
    Fault,
    FaultSchedule,
    JobEntry,
    Noise,
)

Fails = Callable[[FaultSchedule], bool]
Part = JobEntry | Fault


def minimise(schedule: FaultSchedule, fails: Fails, runs: int = 300) -> FaultSchedule:
    """Return a failing schedule that is minimal, as far as `runs` allows.

    `fails`: returns whether a schedule fails like the first one.
    """
    left = runs

    def tried(candidate: FaultSchedule) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(candidate)

    parts: Sequence[Part] = (*schedule.jobs, *schedule.faults)
    schedule = _of(schedule, _ddmin(parts, lambda some: tried(_of(schedule, some))))
    smaller: FaultSchedule | None = schedule
    while smaller is not None and left > 0:
        schedule = smaller
        smaller = next((each for each in _simpler(schedule) if tried(each)), None)
    return schedule


def _of(schedule: FaultSchedule, parts: Sequence[Part]) -> FaultSchedule:
    """Return the schedule with only these of its jobs and faults."""
    return replace(
        schedule,
        jobs=tuple(part for part in parts if isinstance(part, JobEntry)),
        faults=tuple(part for part in parts if not isinstance(part, JobEntry)),
    )


def _ddmin(parts: Sequence[Part], fails: Callable[[Sequence[Part]], bool]) -> Sequence[Part]:
    """Return parts that fail together and none of which can be omitted by itself."""
    pieces = 2
    while len(parts) >= 2:
        size = -(-len(parts) // pieces)
        for start in range(0, len(parts), size):
            rest = [*parts[:start], *parts[start + size :]]
            if fails(rest):
                parts, pieces = rest, max(pieces - 1, 2)
                break
        else:
            if size == 1:
                break
            pieces = min(len(parts), 2 * pieces)
    if len(parts) == 1 and fails(()):
        return ()
    return parts


def _simpler(schedule: FaultSchedule) -> Iterator[FaultSchedule]:
    """Yield schedules that are one step simpler, the largest steps first."""
    for at, job in enumerate(schedule.jobs):
        for other in _simpler_jobs(job):
            yield replace(schedule, jobs=(*schedule.jobs[:at], other, *schedule.jobs[at + 1 :]))
    for at, fault in enumerate(schedule.faults):
        for changed in _simpler_faults(fault, schedule):
            yield replace(
                schedule, faults=(*schedule.faults[:at], changed, *schedule.faults[at + 1 :])
            )
    for plainer in (
        replace(schedule, wire_loss=0.0),
        replace(schedule, levels=True),
        replace(schedule, network=replace(schedule.network, plain=())),
    ):
        if plainer != schedule:
            yield plainer


def _simpler_jobs(job: JobEntry) -> Iterator[JobEntry]:
    if job.rounds > 1:
        yield replace(job, rounds=job.rounds // 2)
    if len(job.workers) > 1:
        for worker in job.workers:
            left = tuple(w for w in job.workers if w != worker)
            if not job.rooted or len(left) > 1:
                servers = left if job.rooted else job.servers
                ranks = tuple(rank for rank in job.ranks if rank != worker)
                yield replace(job, workers=left, servers=servers, ranks=ranks)
    for at, rank in enumerate(job.ranks):
        if job.ranks.count(rank) > 1:
            yield replace(job, ranks=job.ranks[:at] + job.ranks[at + 1 :])
    for mishap in job.mishaps:
        yield replace(job, mishaps=tuple(each for each in job.mishaps if each != mishap))
    if job.collective is not Collective.ALL_REDUCE:
        yield replace(job, collective=Collective.ALL_REDUCE)
    elif len(job.servers) > 1:
        yield replace(job, servers=job.servers[:1])
    if job.elements > 1:
        yield replace(job, elements=job.elements // 2)
    usual = JobEntry(job.name, job.start, job.workers, job.servers)
    for name in (
        "planner",
        "algorithm",
        "wire_bits",
        "dtype",
        "window",
        "trees",
        "results",
        "first_fragment",
        "integrity",
        "outstanding",
        "overflow",
    ):
        if getattr(job, name) != getattr(usual, name):
            yield replace(job, **{name: getattr(usual, name)})
    if job.cancel:
        yield replace(job, cancel=0.0)


def _simpler_faults(fault: Fault, schedule: FaultSchedule) -> Iterator[Fault]:
    if isinstance(fault, Noise):
        for name in CHANCES:
            others = [getattr(fault, other) for other in CHANCES if other != name]
            if getattr(fault, name) and any(others):
                changes: dict[str, Any] = {name: 0.0}
                yield replace(fault, **changes)
        if fault.burst > 1:
            yield replace(fault, burst=1.0)
        if fault.link == EVERYWHERE:
            for link in network_of(schedule.network).links:
                yield replace(fault, link=f"{link.a}-{link.b}")
    if isinstance(fault, (Noise, Outage, Attack)) and fault.stop - fault.start > 0.02:
        middle = round((fault.start + fault.stop) / 2, 3)
        yield replace(fault, stop=middle)
        if isinstance(fault, Noise):
            yield replace(fault, start=middle)
