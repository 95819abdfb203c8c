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

from hopsum.collectives.choices import Collective
from hopsum.collectives.schedule import Numbers, Ranges, Schedule, ScheduleError, Step

Words = NDArray[np.uint64]
"""Sets as bits, 64 per word, in the last axis."""

_BUDGET = 1 << 26
"""Bytes of sets per pass; more cells take several passes."""


def check_schedule(schedule: Schedule) -> None:
    """Prove that a schedule does its collective.

    Time grows with the (transfer, cell) pairs times ranks / 64: a ring of 512 ranks, 500,000 pairs,
    takes about a second. Raises ScheduleError naming a rank, an element and the contribution that
    is missing or there more than once, or the two steps that would race.
    """
    _check_goal(schedule)
    _check_races(schedule, _ancestors(schedule))
    edges = [np.array([0, schedule.elements])]
    for step in schedule.steps:
        edges += [step.starts, step.stops]
    for held in (schedule.given, schedule.wanted):
        edges += [held.starts, held.stops]
    borders = np.unique(np.concatenate(edges))
    words = _words(schedule.ranks)
    size = max(1, _BUDGET // (16 * schedule.nodes * words))
    for first in range(0, len(borders) - 1, size):
        cells = _Cells(schedule, borders[first : first + size + 1], words)
        for number, step in enumerate(schedule.steps):
            for repetition in range(step.repeat):
                starts, stops = step.ranges(repetition)
                rows, at = cells.covered(starts, stops)
                if len(rows):
                    sources, targets = step.sources[rows], step.targets[rows]
                    cells.move(number, sources, targets, at)
        cells.check_end()


def _check_goal(schedule: Schedule) -> None:
    """Raise ScheduleError unless `given` and `wanted` are those of the collective."""
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
    """Raise ScheduleError unless exactly these nodes hold the whole tensor, each once."""
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
    """Raise ScheduleError unless every element is at exactly one rank."""
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
    """Return a set for each member, of that member alone: shape (64 * words, words)."""
    sets = np.zeros((64 * words, words), dtype=np.uint64)
    members = np.arange(64 * words)
    sets[members, members // 64] = np.uint64(1) << (members % 64).astype(np.uint64)
    return sets


def _members(row: Words) -> Iterator[int]:
    """Yield the members of one set (words,), in order."""
    for word, bits in enumerate(row.tolist()):
        while bits:
            yield 64 * word + (bits & -bits).bit_length() - 1
            bits &= bits - 1


def _ancestors(schedule: Schedule) -> Words:
    """Return, for every step, itself and the steps that it waits for, directly or not."""
    words = max(1, _words(len(schedule.steps)))
    sets = _bits(words)[: len(schedule.steps)]
    for number, step in enumerate(schedule.steps):
        for other in step.after:
            sets[number] |= sets[other]
    return sets


@dataclass(slots=True)
class _Cells:
    """The contributions in the buffers of all nodes, for the cells between `borders`.

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
        """Return pairs (row, cell) of ranges and the cells here that they cover; shapes (n,)."""
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
        """Execute transfers of one cell each, which all read the previous state."""
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
        """Raise ScheduleError unless the result is as required."""
        expected = np.zeros((len(self.borders) - 1, self.words), dtype=np.uint64)
        for nodes, cells in self._alike(self.schedule.given):
            expected[cells] |= np.bitwise_or.reduce(_bits(self.words)[nodes], axis=0)
        for nodes, cells in self._alike(self.schedule.wanted):
            missing = expected[cells] & ~self.seen[nodes, cells]
            self._expect_none(missing, nodes, cells, "missing")
            self._expect_none(self.double[nodes, cells], nodes, cells, "there more than once")

    def _alike(self, held: Ranges) -> Iterator[tuple[Numbers, slice]]:
        """Yield the nodes that hold a range, and its cells here, for every range that has some."""
        order = np.lexsort((held.stops, held.starts))
        starts, stops = held.starts[order], held.stops[order]
        new = (np.diff(starts) != 0) | (np.diff(stops) != 0)
        for chosen in np.split(order, np.flatnonzero(new) + 1):
            if len(chosen):
                where = [held.starts[chosen[0]], held.stops[chosen[0]]]
                first, last = np.searchsorted(self.borders, where).tolist()
                last = min(last, len(self.borders) - 1)
                if first < last and where[1] > self.borders[0]:
                    yield held.nodes[chosen], slice(first, last)

    def _expect_none(self, sets: Words, nodes: Numbers, cells: slice, what: str) -> None:
        """Report the sets (nodes, cells, words) of wrong contributions."""
        if not sets.any():
            return
        node, cell = np.argwhere(sets.any(axis=2))[0].tolist()
        schedule = self.schedule
        raise ScheduleError(
            f"{schedule.algorithm} {schedule.collective}: {schedule.name(int(nodes[node]))}, "
            f"element {self.borders[cells][cell]}: the contribution of "
            f"{schedule.name(next(_members(sets[node, cell])))} is {what}; expected exactly once"
        )


def _without_repeats(keys: Numbers) -> Iterator[Numbers]:
    """Yield indices of keys in groups in which no key comes twice."""
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


@dataclass(frozen=True, slots=True)
class _Accesses:
    """The reads and writes of a step in all repetitions: rows of (node, start, stop)."""

    nodes: frozenset[int]
    low: int
    high: int
    read: Numbers
    written: Numbers


def _accesses(step: Step) -> _Accesses:
    turns = [step.ranges(repetition) for repetition in range(min(step.repeat, step.period))]
    starts = np.concatenate([turn[0] for turn in turns])
    stops = np.concatenate([turn[1] for turn in turns])
    some = starts < stops
    sources, targets = (np.tile(ends, len(turns))[some] for ends in (step.sources, step.targets))
    starts, stops = starts[some], stops[some]
    return _Accesses(
        frozenset(np.unique(np.concatenate([sources, targets])).tolist()),
        int(starts.min()) if len(starts) else 0,
        int(stops.max()) if len(stops) else 0,
        np.stack([sources, starts, stops], axis=1),
        np.stack([targets, starts, stops], axis=1),
    )


def _check_races(schedule: Schedule, ancestors: Words) -> None:
    """Raise ScheduleError if two steps of which none waits for the other may interfere."""
    touched = [_accesses(step) for step in schedule.steps]
    low = np.array([each.low for each in touched])
    high = np.array([each.high for each in touched])
    for number, after in enumerate(touched):
        # Steps on other ranges do not conflict, nor do those for which this one waits.
        close = np.flatnonzero((low[:number] < after.high) & (high[:number] > after.low))
        if len(close):
            ordered = set(_members(ancestors[number]))
            for other in close.tolist():
                if other not in ordered and touched[other].nodes & after.nodes:
                    _check_pair(schedule, (other, touched[other]), (number, after))


def _check_pair(schedule: Schedule, one: tuple[int, _Accesses], two: tuple[int, _Accesses]) -> None:
    (first, before), (second, after) = one, two
    conflicts = [(before.read, after.written), (before.written, after.read)]
    if not (schedule.steps[first].combine and schedule.steps[second].combine):
        conflicts.append((before.written, after.written))
    for ours, theirs in conflicts:
        shared = _overlap(ours, theirs, schedule.elements)
        if shared is not None:
            node, element = shared
            raise ScheduleError(
                f"steps {first} and {second} both use element {element} of "
                f"{schedule.name(node)}, and neither waits for the other; put {first} in the "
                f"`after` of step {second}"
            )


def _overlap(ours: Numbers, theirs: Numbers, elements: int) -> tuple[int, int] | None:
    """Return a node and element that both tables (n, 3) of node, start, stop cover, if any."""
    if not len(ours) or not len(theirs):
        return None
    # All nodes' ranges on one line; theirs in order, with the farthest end so far.
    begins, ends = (table[:, 0] * elements + table[:, k] for table, k in ((theirs, 1), (theirs, 2)))
    order = np.argsort(begins, kind="stable")
    begins, reach = begins[order], np.maximum.accumulate(ends[order])
    starts, stops = ours[:, 0] * elements + ours[:, 1], ours[:, 0] * elements + ours[:, 2]
    last = np.searchsorted(begins, stops) - 1
    hit = np.flatnonzero((last >= 0) & (reach[last] > starts))
    if not len(hit):
        return None
    row = hit[0]
    # The first of theirs, in order, that reaches beyond our start is one that overlaps.
    their = np.searchsorted(reach, starts[row], side="right")
    node, element = divmod(int(max(starts[row], begins[their])), elements)
    return node, element
