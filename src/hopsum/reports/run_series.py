"""Figures of a run over time: goodput of its workers, slots of its job at each switch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hopsum.experiment.result import Report
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.outcomes import Outcome


@dataclass(frozen=True, slots=True)
class StepGoodput:
    """Goodput of each worker in a step, bit/s; `start` and `finish` in seconds of the run.

    A step begins when its last worker has submitted a tensor: no sum can be complete before.
    """

    start: float
    finish: float
    workers: tuple[float, ...]


def goodput(report: Report) -> list[StepGoodput]:
    """Return the goodput of each step; times from the first step on."""
    workers = () if report.measured is None else report.measured.intervals
    if not workers or not all(workers):
        return []
    tensors = len(workers[0]) // report.steps
    bits = report.tensor_bits / report.steps
    found: list[StepGoodput] = []
    for first in range(0, tensors * report.steps, tensors or 1):
        step = [intervals[first : first + tensors] for intervals in workers]
        start = max(min(begun for begun, _ in intervals) for intervals in step)
        finishes = [max(end for _, end in intervals) for intervals in step]
        rates = tuple(bits / (end - start) for end in finishes if end > start)
        found.append(StepGoodput(start, max(finishes), rates))
    zero = found[0].start if found else 0.0
    return [StepGoodput(s.start - zero, s.finish - zero, s.workers) for s in found]


@dataclass(frozen=True, slots=True)
class SwitchSlots:
    """Slots of a job at a switch, one value for each sample.

    `held`: reserved for it; `waiting`: with a sum whose result has not passed yet.
    """

    held: list[int] = field(default_factory=list)
    waiting: list[int | None] = field(default_factory=list)
    """None: the switch's counters could not be read."""


def slots(
    job_name: str, states: Sequence[pb.ClusterState]
) -> tuple[list[float], dict[str, SwitchSlots]]:
    """Return the times of recorded states, in seconds since a job's submission, and its slots.

    Switches where the job never holds a slot are left out.
    """
    times: list[float] = []
    switches: dict[str, SwitchSlots] = {}
    for state in states:
        job = next((job for job in state.jobs if job.name == job_name), None)
        if job is None:
            continue
        times.append(state.date - job.submitted)
        counts = {switch.name: switch for switch in state.switches}
        for use in state.slots:
            each = switches.setdefault(use.switch, SwitchSlots())
            each.held.append(use.held.get(job.job, 0))
            each.waiting.append(_waiting(counts.get(use.switch)))
    return times, {name: each for name, each in switches.items() if any(each.held)}


def _waiting(switch: pb.SwitchStatus | None) -> int | None:
    """Return the sums that a switch has completed and whose result has not cleared them yet."""
    if switch is None or not switch.outcomes:
        return None
    completed, cleared = (
        switch.outcomes[outcome.name.lower()] for outcome in (Outcome.COMPLETED, Outcome.CLEARED)
    )
    # A restarted switch counts from 0, and results may still clear what it held.
    return max(0, completed - cleared)
