"""Proves schedules, symbolically: every contribution to every element arrives exactly once.

Elements between two neighbouring borders of ranges behave alike, so one stands for all. For each
of these cells and each node the checker follows which contributions the buffer sums (once, or more
often) through all steps, and that steps which touch the same cell of the same node, one of them
writing, wait for each other (additions commute and need not). A schedule that waits for earlier
steps only cannot deadlock; `Schedule` refuses others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectives.schedule import Collective, Numbers, Ranges, Schedule, ScheduleError

Words = NDArray[np.uint64]
"""Sets as bits, 64 a word, in the last axis."""

_BUDGET = 1 << 26
"""Bytes of sets that are followed at once; more cells are followed in several passes."""


def check_schedule(schedule: Schedule) -> None:
    """Prove that a schedule does its collective.

    Time grows with the (transfer, cell) pairs times ranks / 64: a ring of 512 ranks, 500,000 pairs,
    takes about a second. Raises ScheduleError naming a rank, an element and the contribution that
    is missing or there more than once, or the two steps that would race.
    """
    _check_goal(schedule)
    edges = [np.array([0, schedule.elements])]
    for step in schedule.steps:
        edges += [step.starts, step.stops]
    for held in (schedule.given, schedule.wanted):
        edges += [held.starts, held.stops]
    borders = np.unique(np.concatenate(edges))
    ancestors = _ancestors(schedule)
    words = _words(schedule.ranks)
    ordered = _totally_ordered(ancestors)
    a_cell = 8 * schedule.nodes * (2 * words + (0 if ordered else 3 * ancestors.shape[1]))
    size = max(1, _BUDGET // a_cell)
    for first in range(0, len(borders) - 1, size):
        cells = _Cells(schedule, borders[first : first + size + 1], words)
        races = None if ordered else _Races(schedule, cells, ancestors)
        for number, step in enumerate(schedule.steps):
            for repetition in range(step.repeat):
                starts, stops = step.ranges(repetition)
                rows, at = cells.covered(starts, stops)
                if len(rows):
                    sources, targets = step.sources[rows], step.targets[rows]
                    if races is not None:
                        races.follow(number, sources, targets, at)
                    cells.move(number, sources, targets, at)
        cells.check_end()


def _check_goal(schedule: Schedule) -> None:
    """Whether `given` and `wanted` are those of the collective."""
    given, wanted = schedule.given, schedule.wanted
    for name, held in (("given", given), ("wanted", wanted)):
        if len(held.nodes) and int(held.nodes.max()) >= schedule.ranks:
            raise ScheduleError(
                f"{name}: {schedule.name(int(held.nodes.max()))} is a relay; expected ranks only"
            )
    everyone = range(schedule.ranks)
    match schedule.collective:
        case Collective.ALL_REDUCE:
            _check_whole(schedule, "given", given, everyone)
            _check_whole(schedule, "wanted", wanted, everyone)
        case Collective.REDUCE_SCATTER:
            _check_whole(schedule, "given", given, everyone)
            _check_parts(schedule, "wanted", wanted)
        case Collective.ALL_GATHER:
            _check_parts(schedule, "given", given)
            _check_whole(schedule, "wanted", wanted, everyone)
        case Collective.BROADCAST:
            _check_whole(schedule, "given", given, np.unique(given.nodes)[:1].tolist())
            _check_whole(schedule, "wanted", wanted, everyone)
        case Collective.REDUCE:
            _check_whole(schedule, "given", given, everyone)
            _check_whole(schedule, "wanted", wanted, np.unique(wanted.nodes)[:1].tolist())


def _check_whole(schedule: Schedule, name: str, held: Ranges, nodes: range | list[int]) -> None:
    """Whether these nodes, and no others, hold the whole tensor, each once."""
    if not schedule.elements:
        return
    if not nodes:
        raise ScheduleError(f"{schedule.collective}: {name}: no rank holds anything")
    for node in nodes:
        mine = held.nodes == node
        _check_cover(schedule, name, held.starts[mine], held.stops[mine], schedule.name(node))
    others = np.setdiff1d(held.nodes, np.array(nodes))
    if len(others):
        raise ScheduleError(
            f"{schedule.collective}: {name}: {schedule.name(int(others[0]))} holds elements; "
            f"expected {schedule.name(nodes[0])} only"
        )


def _check_parts(schedule: Schedule, name: str, held: Ranges) -> None:
    """Whether every element is at exactly one rank."""
    _check_cover(schedule, name, held.starts, held.stops, "all ranks together")


def _check_cover(schedule: Schedule, name: str, starts: Numbers, stops: Numbers, who: str) -> None:
    order = np.argsort(starts, kind="stable")
    ends = np.concatenate(([0], stops[order]))
    begins = np.concatenate((starts[order], [schedule.elements]))
    wrong = np.flatnonzero(ends != begins)
    if len(wrong):
        end, begin = int(ends[wrong[0]]), int(begins[wrong[0]])
        what = "left out" if begin > end else "there twice"
        raise ScheduleError(
            f"{schedule.collective}: {name}: {who}: elements {min(begin, end)} to "
            f"{max(begin, end)} are {what}; expected each once"
        )


def _words(members: int) -> int:
    return -(-members // 64)


def _bits(words: int) -> Words:
    """One set a member, of that member alone: shape (64 * words, words)."""
    sets = np.zeros((64 * words, words), dtype=np.uint64)
    members = np.arange(64 * words)
    sets[members, members // 64] = np.uint64(1) << (members % 64).astype(np.uint64)
    return sets


def _members(row: Words) -> Iterator[int]:
    """The members of one set (words,), in order."""
    for word, bits in enumerate(row.tolist()):
        while bits:
            yield 64 * word + (bits & -bits).bit_length() - 1
            bits &= bits - 1


def _ancestors(schedule: Schedule) -> Words:
    """For every step the steps it waits for, directly or not, and itself."""
    words = max(1, _words(len(schedule.steps)))
    sets = _bits(words)[: len(schedule.steps)]
    for number, step in enumerate(schedule.steps):
        for other in step.after:
            sets[number] |= sets[other]
    return sets


def _totally_ordered(ancestors: Words) -> bool:
    counts = np.bitwise_count(ancestors).sum(axis=1, dtype=np.int64)
    return bool((counts == np.arange(1, len(ancestors) + 1)).all())


@dataclass(slots=True)
class _Cells:
    """What the buffers of all nodes sum in the cells between `borders`.

    `seen`: contributions that are there; `double`: those there more than once; both of shape
    (nodes, cells, words).
    """

    schedule: Schedule
    borders: Numbers
    words: int
    seen: Words
    double: Words

    def __init__(self, schedule: Schedule, borders: Numbers, words: int) -> None:
        self.schedule = schedule
        self.borders = borders
        self.words = words
        shape = (schedule.nodes, len(borders) - 1, words)
        self.seen = np.zeros(shape, dtype=np.uint64)
        self.double = np.zeros(shape, dtype=np.uint64)
        given = schedule.given
        rows, at = self.covered(given.starts, given.stops)
        self.seen[given.nodes[rows], at] = _bits(words)[given.nodes[rows]]

    def covered(self, starts: Numbers, stops: Numbers) -> tuple[Numbers, Numbers]:
        """Pairs (row, cell) of ranges and the cells here that they cover; shapes (n,)."""
        last = len(self.borders) - 1
        first = np.searchsorted(self.borders, starts)
        # A range that begins before these cells covers none of them before number 0.
        counts = np.minimum(np.searchsorted(self.borders, stops), last) - first
        counts[(stops <= self.borders[0]) | (starts >= stops)] = 0
        counts = np.maximum(counts, 0)
        rows = np.repeat(np.arange(len(starts)), counts)
        before = np.cumsum(counts) - counts
        return rows, np.arange(len(rows)) - before[rows] + first[rows]

    def move(self, number: int, sources: Numbers, targets: Numbers, at: Numbers) -> None:
        """Do transfers of one cell each, all reading the state before."""
        seen, double = self.seen[sources, at], self.double[sources, at]
        combine = self.schedule.steps[number].combine
        for chosen in _without_repeats(targets * len(self.borders) + at):
            if combine:
                place = targets[chosen], at[chosen]
                both = self.seen[place] & seen[chosen]
                self.double[place] |= double[chosen] | both
                self.seen[place] |= seen[chosen]
            elif len(chosen) == len(at):
                self.seen[targets, at] = seen
                self.double[targets, at] = double
            else:
                again = np.setdiff1d(np.arange(len(at)), chosen)[0]
                raise ScheduleError(
                    f"step {number}: {self.schedule.name(int(targets[again]))}, element "
                    f"{self.borders[at[again]]}: several transfers copy there at once; expected one"
                )

    def check_end(self) -> None:
        """Raise ScheduleError unless all that is wanted is there."""
        schedule = self.schedule
        rows, at = self.covered(schedule.given.starts, schedule.given.stops)
        expected = np.zeros((len(self.borders) - 1, self.words), dtype=np.uint64)
        np.bitwise_or.at(expected, at, _bits(self.words)[schedule.given.nodes[rows]])
        rows, at = self.covered(schedule.wanted.starts, schedule.wanted.stops)
        nodes = schedule.wanted.nodes[rows]
        missing = expected[at] & ~self.seen[nodes, at]
        for sets, what in ((missing, "missing"), (self.double[nodes, at], "there more than once")):
            wrong = np.flatnonzero(sets.any(axis=1))
            if len(wrong):
                where = int(wrong[0])
                contributor = schedule.name(next(_members(sets[where])))
                raise ScheduleError(
                    f"{schedule.algorithm} {schedule.collective}: {schedule.name(nodes[where])}, "
                    f"element {self.borders[at[where]]}: the contribution of {contributor} is "
                    f"{what}; expected exactly once"
                )


def _without_repeats(keys: Numbers) -> Iterator[Numbers]:
    """Indices of keys in groups in which no key comes twice."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    new = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    if new.all():
        yield np.arange(len(keys))
        return
    begins = np.flatnonzero(new)
    occurrence = np.arange(len(keys)) - np.repeat(begins, np.diff(np.append(begins, len(keys))))
    by_occurrence = np.argsort(occurrence, kind="stable")
    bounds = np.cumsum(np.bincount(occurrence))[:-1]
    for positions in np.split(by_occurrence, bounds):
        yield order[positions]


class _Races:
    """Which steps have read, added to and overwritten the cells; shape (nodes, cells, words)."""

    def __init__(self, schedule: Schedule, cells: _Cells, ancestors: Words) -> None:
        self._schedule = schedule
        self._cells = cells
        self._others = ~ancestors
        self._own = _bits(ancestors.shape[1])
        shape = (schedule.nodes, len(cells.borders) - 1, ancestors.shape[1])
        self._read = np.zeros(shape, dtype=np.uint64)
        self._added = np.zeros(shape, dtype=np.uint64)
        self._copied = np.zeros(shape, dtype=np.uint64)

    def follow(self, number: int, sources: Numbers, targets: Numbers, at: Numbers) -> None:
        """Note the reads and writes of a step; ScheduleError if another step may interfere."""
        combine = self._schedule.steps[number].combine
        read, written = (sources, at), (targets, at)
        self._expect_order(number, read, self._added[read] | self._copied[read], "reads")
        touched = self._read[written] | self._copied[written]
        if not combine:
            touched |= self._added[written]
        self._expect_order(number, written, touched, "writes")
        self._read[read] |= self._own[number]
        (self._added if combine else self._copied)[written] |= self._own[number]

    def _expect_order(
        self, number: int, place: tuple[Numbers, Numbers], touched: Words, does: str
    ) -> None:
        unordered = touched & self._others[number]
        if unordered.any():
            where = int(np.flatnonzero(unordered.any(axis=1))[0])
            node, element = int(place[0][where]), self._cells.borders[place[1][where]]
            raise ScheduleError(
                f"step {number} {does} element {element} of {self._schedule.name(node)}, which "
                f"step {next(_members(unordered[where]))} uses too: neither waits for the other; "
                f"put it in the `after` of step {number}"
            )
