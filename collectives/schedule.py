"""A collective as data: who sends which range of the tensor to whom in which step.

A transfer copies or combines elements [start, stop) of the sender's buffer into the receiver's.
Within a step every transfer reads what stood there before the step; a transfer may start as soon as
the elements it carries are final for its sender, so steps overlap.
"""

from __future__ import annotations

from dataclasses import dataclass


class ScheduleError(ValueError):
    """A schedule that does not do its collective; the message names rank and element."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """In `step`, `source` sends elements [start, stop) to `target`, which adds or copies them."""

    step: int
    source: int
    target: int
    start: int
    stop: int
    combine: bool


@dataclass(frozen=True, slots=True)
class Schedule:
    """Transfers in order of step, for ranks 0..ranks-1 and a tensor of `elements`."""

    ranks: int
    elements: int
    transfers: tuple[Transfer, ...]

    def sends(self, rank: int) -> tuple[Transfer, ...]:
        """What a rank sends, in order."""
        return tuple(t for t in self.transfers if t.source == rank)

    def receives(self, rank: int) -> tuple[Transfer, ...]:
        """What a rank receives, in order."""
        return tuple(t for t in self.transfers if t.target == rank)


def check_all_reduce(schedule: Schedule) -> None:
    """Prove that every rank ends with every contribution to every element exactly once.

    Symbolic: elements between two neighbouring range borders behave alike, so one stands for all.
    Raises ScheduleError naming the first rank, element and contribution that is wrong.
    """
    borders = sorted(
        {0, schedule.elements}
        | {t.start for t in schedule.transfers}
        | {t.stop for t in schedule.transfers}
    )
    for element in borders:
        if element >= schedule.elements:
            continue
        held = [{rank: 1} for rank in range(schedule.ranks)]
        moving = [t for t in schedule.transfers if t.start <= element < t.stop]
        for step in sorted({t.step for t in moving}):
            before = [dict(counts) for counts in held]
            for t in (t for t in moving if t.step == step):
                if t.combine:
                    for rank, times in before[t.source].items():
                        held[t.target][rank] = held[t.target].get(rank, 0) + times
                else:
                    held[t.target] = dict(before[t.source])
        for rank, counts in enumerate(held):
            for contributor in range(schedule.ranks):
                if counts.get(contributor, 0) != 1:
                    raise ScheduleError(
                        f"rank {rank}, element {element}: the contribution of rank {contributor} "
                        f"is there {counts.get(contributor, 0)} times; expected once"
                    )
