"""Recursive halving and doubling (Rabenseifner; Thakur, Rabenseifner and Gropp, IJHPCA 2005)."""

from __future__ import annotations

import numpy as np

from hopsum.collectives.choices import Collective
from hopsum.collectives.schedule import (
    Numbers,
    Ranges,
    Schedule,
    Step,
    borders,
    check_counts,
    make_step,
)

NAME = "halving-doubling"


def halving_doubling_all_reduce(ranks: int, elements: int) -> Schedule:
    """Return a reduce-scatter by halving ranges at doubling distance, and the reverse all-gather.

    Of a power of two p ranks each sends 2 (p - 1) / p of the tensor in 2 log2 p steps. Of other
    numbers, the ranks above the next lower power of two hand all they have to a neighbour first,
    and get the sum in the end: one tensor more each way. Raises ScheduleError for no ranks.
    """
    halving = _HalvingSteps(ranks, elements)
    steps = [*halving.fold(), *halving.halve(), *halving.double(), *halving.unfold()]
    whole = Ranges.whole(range(ranks), elements)
    return Schedule(NAME, Collective.ALL_REDUCE, ranks, elements, chained(steps), whole, whole)


def chained(steps: list[Step]) -> tuple[Step, ...]:
    """Return steps that each wait for the previous one."""
    return tuple(
        make_step(
            step.sources,
            step.targets,
            step.starts,
            step.stops,
            combine=step.combine,
            after=(number - 1,) if number else (),
            repeat=step.repeat,
            period=step.period,
        )
        for number, step in enumerate(steps)
    )


class _HalvingSteps:
    """The steps among `core` members; each of the first `extra` also represents a neighbour."""

    def __init__(self, ranks: int, elements: int) -> None:
        check_counts(NAME, ranks, elements)
        self.ranks = ranks
        self.elements = elements
        self.core = 1 << (ranks.bit_length() - 1)
        self.extra = ranks - self.core
        numbers = np.arange(self.core)
        self._numbers = numbers
        self._rank = numbers + np.minimum(numbers, self.extra)
        self._edges = borders(elements, self.core)
        # Neighbours exchange most, so ranges are halved by the lowest bit of the number first.
        self._place = np.zeros_like(numbers)
        for bit in range(self.core.bit_length() - 1):
            self._place |= ((numbers >> bit) & 1) << (self.core.bit_length() - 2 - bit)

    def _masks(self) -> list[int]:
        return [1 << bit for bit in range(self.core.bit_length() - 1)]

    def _block(self, member: Numbers, mask: int) -> tuple[Numbers, Numbers]:
        """Return what members hold after the exchange at distance `mask`."""
        size = self.core // (2 * mask)
        low = self._place[member] // size * size
        return self._edges[low], self._edges[low + size]

    def _exchange(self, mask: int, *, halve: bool) -> Step:
        partner = self._numbers ^ mask
        starts, stops = self._block(partner if halve else self._numbers, mask)
        return make_step(self._rank, self._rank[partner], starts, stops, combine=halve)

    def halve(self) -> list[Step]:
        """Return the steps in which each member sends its partner the partner's half."""
        return [self._exchange(mask, halve=True) for mask in self._masks()]

    def double(self) -> list[Step]:
        """Return the steps in which each member sends its partner all that it holds."""
        return [self._exchange(mask, halve=False) for mask in self._masks()[::-1]]

    def fold(self) -> list[Step]:
        """Return the step in which ranks beyond the core add their data to their neighbour's."""
        spoken = self._rank[: self.extra]
        step = make_step(spoken + 1, spoken, 0, self.elements, combine=True)
        return [step] if self.extra else []

    def unfold(self) -> list[Step]:
        """Return the step in which they get the whole sum."""
        spoken = self._rank[: self.extra]
        step = make_step(spoken, spoken + 1, 0, self.elements, combine=False)
        return [step] if self.extra else []
