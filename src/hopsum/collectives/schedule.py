"""A collective as data: senders, receivers and ranges of the tensor, in steps.

Every node has one buffer of `elements`. A transfer adds elements [start, stop) of its source's
buffer to its target's, or copies them over. A transfer of a step waits, element by element, for
what the steps in its `after` (and in theirs, and so on) bring to its source, and writes after what
they read and write at its target; nothing else orders steps. All transfers of a step (and of one
repetition) read what stood there before it. So work on different ranges overlaps by itself.

A schedule of many equal steps stays small: a step holds arrays and may be repeated, its ranges
moving on by one place each time. A ring of n ranks is two steps of n rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hopsum.collectives.choices import Collective
from hopsum.protocol.errors import InputError

Numbers = NDArray[np.int64]


class ScheduleError(InputError):
    """A schedule that does not perform its collective; the message names step, rank and element."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One transfer of a schedule written out; `step` and `repetition` order it."""

    step: int
    repetition: int
    source: int
    target: int
    start: int
    stop: int
    combine: bool

    @property
    def turn(self) -> tuple[int, int]:
        """Step and repetition: equal for transfers that read the same state."""
        return self.step, self.repetition


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Elements [starts[i], stops[i]) of the buffer of node nodes[i]; arrays of shape (n,)."""

    nodes: Numbers
    starts: Numbers
    stops: Numbers

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int, int]]) -> Ranges:
        """Return ranges from rows of (node, start, stop); empty ranges are left out."""
        kept = [row for row in rows if row[1] < row[2]]
        table = np.array(kept, dtype=np.int64).reshape(-1, 3)
        return cls(table[:, 0], table[:, 1], table[:, 2])

    @classmethod
    def whole(cls, nodes: Sequence[int], elements: int) -> Ranges:
        """Return the whole tensor at each of these nodes."""
        return cls.of((node, 0, elements) for node in nodes)

    def rows(self) -> list[list[int]]:
        """Return the ranges as a list of [node, start, stop]."""
        columns = (self.nodes.tolist(), self.starts.tolist(), self.stops.tolist())
        return [list(row) for row in zip(*columns, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Simultaneous transfers, which read the same state.

    Row i sends [starts[i], stops[i]) to targets[i]. Arrays of shape (n,); a row with start == stop
    sends nothing. `combine`: targets add, else they copy. `after`: numbers of earlier steps that
    this one waits for. `repeat`: how many times, each time after the time before. Rows form groups
    of `period`; in repetition k row j of a group carries the range of its row (j - k) mod period,
    from its own source to its own target.
    """

    sources: Numbers
    targets: Numbers
    starts: Numbers
    stops: Numbers
    combine: bool
    after: tuple[int, ...] = ()
    repeat: int = 1
    period: int = 1

    def __len__(self) -> int:
        return len(self.sources)

    def ranges(self, repetition: int) -> tuple[Numbers, Numbers]:
        """Return starts and stops (n,) of a repetition, from 0."""
        shift = repetition % self.period
        if not shift:
            return self.starts, self.stops
        return self._rolled(self.starts, shift), self._rolled(self.stops, shift)

    def _rolled(self, values: Numbers, shift: int) -> Numbers:
        return np.roll(values.reshape(-1, self.period), shift, axis=1).ravel()

    def volumes(self) -> Numbers:
        """Return the elements (n,) that each row sends in all repetitions together."""
        turns, rest = divmod(self.repeat, self.period)
        sizes = (self.stops - self.starts).reshape(-1, self.period)
        total = np.repeat(turns * sizes.sum(axis=1, keepdims=True), self.period, axis=1)
        if rest:
            # Row j sends the sizes of rows j, j - 1, ..., j - rest + 1: a sum over a window.
            sums = np.cumsum(np.concatenate([sizes, sizes], axis=1), axis=1)
            upper = sums[:, self.period :]
            total = total + upper - sums[:, self.period - rest : 2 * self.period - rest]
        return total.ravel()


def make_step(
    sources: ArrayLike,
    targets: ArrayLike,
    starts: ArrayLike,
    stops: ArrayLike,
    *,
    combine: bool,
    after: Iterable[int] = (),
    repeat: int = 1,
    period: int = 1,
) -> Step:
    """Return a step from array-like arguments; scalars apply to every row."""
    parts = np.broadcast_arrays(
        *(np.asarray(part, dtype=np.int64) for part in (sources, targets, starts, stops))
    )
    rows = [np.atleast_1d(part) for part in parts]
    return Step(
        rows[0], rows[1], rows[2], rows[3], combine, tuple(sorted(set(after))), repeat, period
    )


@dataclass(frozen=True, eq=False)
class Schedule:
    """Steps, in an order in which they may be executed sequentially.

    Nodes 0..ranks-1 are the ranks. Nodes ranks..ranks+relays-1 (switches, servers) start with
    zeros, combine and forward, and need no result. `given`: contributions of nodes; elsewhere their
    buffers count as zeros. `wanted`: where the sum of all contributions to an element must finally
    be. `block`: a node forwards received data in blocks of this many elements; 0: complete
    transfers. (It affects time and memory, not correctness.) `names`: of the nodes in a network, or
    empty.

    Raises ScheduleError for an invalid form; `schedule_checker` checks that it performs its
    collective.
    """

    algorithm: str
    collective: Collective
    ranks: int
    elements: int
    steps: tuple[Step, ...]
    given: Ranges
    wanted: Ranges
    relays: int = 0
    block: int = 0
    names: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        self._expect(self.ranks >= 1, f"{self.ranks} ranks: expected at least one")
        for name in ("elements", "relays", "block"):
            value = getattr(self, name)
            self._expect(value >= 0, f"{name} {value}: expected 0 or more")
        self._expect(
            not self.names or len(self.names) == len(set(self.names)) == self.nodes,
            f"{len(self.names)} names: expected one a node, {self.nodes}, all different",
        )
        for name, held in (("given", self.given), ("wanted", self.wanted)):
            self._check_rows(name, [held.nodes], held.starts, held.stops)
        for number, step in enumerate(self.steps):
            self._check_step(number, step)

    @property
    def nodes(self) -> int:
        """Ranks and relays."""
        return self.ranks + self.relays

    def named(self, names: Sequence[str]) -> Schedule:
        """Return the same schedule between nodes of these names."""
        return replace(self, names=tuple(names))

    def name(self, node: int) -> str:
        """Return a node's name, or its kind and number."""
        if self.names:
            return self.names[node]
        return f"rank {node}" if node < self.ranks else f"relay {node - self.ranks}"

    def _expect(self, holds: bool, message: str) -> None:
        if not holds:
            raise self._wrong(message)

    def _wrong(self, message: str) -> ScheduleError:
        return ScheduleError(f"{self.algorithm} schedule: {message}")

    # Messages are made only for errors: formatting arrays takes longer than checking them.

    def _check_rows(
        self, where: str, ends: Sequence[Numbers], starts: Numbers, stops: Numbers
    ) -> None:
        arrays = [*ends, starts, stops]
        if any(array.ndim != 1 or len(array) != len(starts) for array in arrays):
            shapes = [array.shape for array in arrays]
            raise self._wrong(f"{where}: arrays of shapes {shapes}: expected one length")
        for nodes in ends:
            wrong = np.flatnonzero((nodes < 0) | (nodes >= self.nodes))
            if len(wrong):
                raise self._wrong(
                    f"{where}, row {wrong[:1]}: there is no node {nodes[wrong[:1]]}; "
                    f"expected 0 to {self.nodes - 1}"
                )
        wrong = np.flatnonzero((starts < 0) | (starts > stops) | (stops > self.elements))
        if len(wrong):
            raise self._wrong(
                f"{where}, row {wrong[:1]}: range {starts[wrong[:1]]} to {stops[wrong[:1]]}; "
                f"expected one inside 0 to {self.elements}"
            )

    def _check_step(self, number: int, step: Step) -> None:
        where = f"step {number}"
        self._check_rows(where, [step.sources, step.targets], step.starts, step.stops)
        if not all(0 <= other < number for other in step.after):
            raise self._wrong(
                f"{where} waits for steps {list(step.after)}: expected earlier ones only"
            )
        if step.repeat < 1:
            raise self._wrong(f"{where}: repeat {step.repeat}: expected 1 or more")
        if step.period < 1 or len(step) % step.period != 0:
            raise self._wrong(
                f"{where}: {len(step)} rows in groups of {step.period}: expected whole groups"
            )
        own = np.flatnonzero(step.sources == step.targets)
        if len(own):
            raise self._wrong(
                f"{where}, row {own[:1]}: node {step.sources[own[:1]]} sends to itself"
            )

    @cached_property
    def chains(self) -> tuple[int, ...]:
        """For every step the number of its chain: steps of two chains never wait for each other."""
        chain = list(range(len(self.steps)))

        def first(step: int) -> int:
            while chain[step] != step:
                chain[step] = chain[chain[step]]
                step = chain[step]
            return step

        for number, step in enumerate(self.steps):
            for other in step.after:
                one, two = sorted((first(number), first(other)))
                chain[two] = one
        numbers: dict[int, int] = {}
        return tuple(numbers.setdefault(first(s), len(numbers)) for s in range(len(chain)))

    def transfers(self) -> Iterator[Transfer]:
        """Yield every transfer, in order of step and repetition, without empty ones."""
        for number, step in enumerate(self.steps):
            for repetition in range(step.repeat):
                yield from self._written_out(number, repetition, np.arange(len(step)))

    def sends(self, node: int) -> tuple[Transfer, ...]:
        """Return the transfers that a node sends, in order."""
        return self._of(node, "sources")

    def receives(self, node: int) -> tuple[Transfer, ...]:
        """Return the transfers that a node receives, in order."""
        return self._of(node, "targets")

    def _of(self, node: int, end: str) -> tuple[Transfer, ...]:
        found: list[Transfer] = []
        for number, step in enumerate(self.steps):
            rows = np.flatnonzero(getattr(step, end) == node)
            if len(rows):
                for repetition in range(step.repeat):
                    found += self._written_out(number, repetition, rows)
        return tuple(found)

    def _written_out(self, number: int, repetition: int, rows: Numbers) -> Iterator[Transfer]:
        step = self.steps[number]
        group, place = np.divmod(rows, step.period)
        ranged = group * step.period + (place - repetition) % step.period
        table = zip(
            step.sources[rows].tolist(),
            step.targets[rows].tolist(),
            step.starts[ranged].tolist(),
            step.stops[ranged].tolist(),
            strict=True,
        )
        for source, target, start, stop in table:
            if start < stop:
                yield Transfer(number, repetition, source, target, start, stop, step.combine)


def check_counts(algorithm: str, ranks: int, elements: int) -> None:
    """Raise ScheduleError unless there is a rank, and no negative number of elements."""
    if ranks < 1:
        raise ScheduleError(f"{algorithm}: {ranks} ranks: expected at least one")
    if elements < 0:
        raise ScheduleError(f"{algorithm}: {elements} elements: expected 0 or more")


def part(start: int, stop: int, parts: int, index: int) -> tuple[int, int]:
    """Return part `index` of `parts` nearly equal parts of [start, stop)."""
    length = stop - start
    return start + length * index // parts, start + length * (index + 1) // parts


def borders(elements: int, parts: int) -> Numbers:
    """Return the borders of `parts` nearly equal parts of the tensor: shape (parts + 1,)."""
    return np.array([elements * index // parts for index in range(parts + 1)], dtype=np.int64)
