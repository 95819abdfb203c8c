"""The halves of an all-reduce as schedules of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hopsum.collectives.choices import Collective
from hopsum.collectives.schedule import Ranges, Schedule, Step


def reduce_scatter_of(schedule: Schedule) -> Schedule:
    """Return the first half: every rank ends with the sums that it does not receive afterwards."""
    steps = _half(schedule, combine=True)
    return replace(
        schedule, collective=Collective.REDUCE_SCATTER, steps=steps, wanted=_parts(schedule)
    )


def all_gather_of(schedule: Schedule) -> Schedule:
    """Return the second half: from these parts to everything everywhere."""
    steps = _half(schedule, combine=False)
    return replace(schedule, collective=Collective.ALL_GATHER, steps=steps, given=_parts(schedule))


def _half(schedule: Schedule, *, combine: bool) -> tuple[Step, ...]:
    kept = [number for number, step in enumerate(schedule.steps) if step.combine == combine]
    numbers = {old: new for new, old in enumerate(kept)}
    return tuple(
        replace(step, after=tuple(numbers[a] for a in step.after if a in numbers))
        for step in (schedule.steps[number] for number in kept)
    )


def _parts(schedule: Schedule) -> Ranges:
    """Return what each rank holds between the halves: all but what it receives in the second."""
    held = np.ones((schedule.ranks, schedule.elements + 2), bool)
    held[:, [0, -1]] = False
    for transfer in schedule.transfers():
        if not transfer.combine:
            held[transfer.target, transfer.start + 1 : transfer.stop + 1] = False
    ends = [np.flatnonzero(np.diff(row)).reshape(-1, 2).tolist() for row in held]
    return Ranges.of((rank, start, stop) for rank, row in enumerate(ends) for start, stop in row)
