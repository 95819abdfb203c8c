"""Recursive halving and doubling (Rabenseifner; Thakur, Rabenseifner and Gropp, IJHPCA 2005)."""

from __future__ import annotations

import numpy as np

from collectives.schedule import (
    Collective,
    Numbers,
    Ranges,
    Schedule,
    Step,
    borders,
    check_counts,
    make_step,
    part,
)

NAME = "halving-doubling"


def halving_doubling_all_reduce(ranks: int, elements: int) -> Schedule:
    """Reduce-scatter by halving ranges at doubling distance, then all-gather the other way round.

    Of a power of two p ranks each sends 2 (p - 1) / p of the tensor in 2 log2 p steps. Of other
    numbers, the ranks above the next lower power of two hand all they have to a neighbour first,
    and get the sum in the end: one tensor more each way. Raises ScheduleError for no ranks.
    """
    halving = _Halving(ranks, elements)
    steps = [*halving.fold(), *halving.halve(), *halving.double(), *halving.unfold()]
    whole = Ranges.whole(range(ranks), elements)
    return _schedule(Collective.ALL_REDUCE, halving, steps, whole, whole)


def halving_doubling_reduce_scatter(ranks: int, elements: int) -> Schedule:
    """Return the first half; a neighbour's piece is shared with the rank that folded into it."""
    halving = _Halving(ranks, elements)
    steps = [*halving.fold(), *halving.halve(), *halving.share()]
    whole = Ranges.whole(range(ranks), elements)
    return _schedule(Collective.REDUCE_SCATTER, halving, steps, whole, halving.parts())


def halving_doubling_all_gather(ranks: int, elements: int) -> Schedule:
    """Return the second half, from where the first one ends."""
    halving = _Halving(ranks, elements)
    steps = [*halving.share(back=True), *halving.double(), *halving.unfold()]
    whole = Ranges.whole(range(ranks), elements)
    return _schedule(Collective.ALL_GATHER, halving, steps, halving.parts(), whole)


def _schedule(
    collective: Collective, halving: _Halving, steps: list[Step], given: Ranges, wanted: Ranges
) -> Schedule:
    return Schedule(
        NAME, collective, halving.ranks, halving.elements, chained(steps), given, wanted
    )


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


class _Halving:
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
        """Each member gives its partner the half that is the partner's."""
        return [self._exchange(mask, halve=True) for mask in self._masks()]

    def double(self) -> list[Step]:
        """Each member sends its partner what it has."""
        return [self._exchange(mask, halve=False) for mask in self._masks()[::-1]]

    def fold(self) -> list[Step]:
        """Let ranks beyond the core add all their data to their neighbour's."""
        spoken = self._rank[: self.extra]
        step = make_step(spoken + 1, spoken, 0, self.elements, combine=True)
        return [step] if self.extra else []

    def unfold(self) -> list[Step]:
        """Give them the whole sum."""
        spoken = self._rank[: self.extra]
        step = make_step(spoken, spoken + 1, 0, self.elements, combine=False)
        return [step] if self.extra else []

    def share(self, *, back: bool = False) -> list[Step]:
        """Let them receive, or return, the second half of their neighbour's piece."""
        if not self.extra:
            return []
        spoken = self._rank[: self.extra]
        halves = [part(*self._piece(member), 2, 1) for member in range(self.extra)]
        starts, stops = zip(*halves, strict=True)
        ends = (spoken + 1, spoken) if back else (spoken, spoken + 1)
        return [make_step(*ends, starts, stops, combine=False)]

    def _piece(self, member: int) -> tuple[int, int]:
        place = int(self._place[member])
        return int(self._edges[place]), int(self._edges[place + 1])

    def parts(self) -> Ranges:
        """Which rank holds which piece between the halves."""
        rows = []
        for member, rank in enumerate(self._rank.tolist()):
            start, stop = self._piece(member)
            if member < self.extra:
                rows += [(rank, *part(start, stop, 2, 0)), (rank + 1, *part(start, stop, 2, 1))]
            else:
                rows.append((rank, start, stop))
        return Ranges.of(rows)
