"""Which gradients are reduced next: one rank's part in the agreement of all, without any I/O.

After document [004][]. The *order table* has the names of all gradients, and a vector has bits for
its places. In each cycle every rank contributes its vector, all vectors are combined by AND, and
every rank draws the same conclusions from the result: so the order in which reductions start, the
end of an iteration and the table are the same at all ranks. The order of the first iteration
becomes the table.

A vector says of each place whether the rank can take part in the reduction, and whether it lacks
the gradient; of each rank whether its iteration is sound; and whether the rank has ended its
iteration. A rank that has ended can take part in all: with zeros where it lacks the gradient. What
all lack is not reduced. The iteration's number and its complement follow, which are complementary
in the result if and only if all ranks are in the same iteration (`tagged_words` of
hopsum.coordination.operators, the same layout).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WORD_BITS = 32
_WORD = (1 << WORD_BITS) - 1


def tagged_words(length: int, bits: int, iteration: int) -> NDArray[np.int32]:
    """Return ceil(length / 32) words of bits, the lowest first, the iteration, its complement."""
    words = [bits >> low & _WORD for low in range(0, length, WORD_BITS)]
    return np.array([*words, iteration, iteration ^ _WORD], np.uint32).view(np.int32)


def from_tagged_words(words: NDArray[np.int32]) -> int | None:
    """Return the bits of combined words; None if their iterations differ."""
    *bits, iteration, complement = map(int, words.view(np.uint32))
    if iteration ^ complement != _WORD:
        return None
    return sum(word << WORD_BITS * place for place, word in enumerate(bits))


@dataclass(frozen=True, slots=True)
class Decision:
    """The conclusions from a cycle, the same at all ranks.

    `start`: gradients to reduce now, in order. `over`: none are left in this iteration. `at_fault`:
    ranks whose iteration is not sound; then it has failed at all. `apart`: the ranks are in
    different iterations.
    """

    start: tuple[str, ...] = ()
    over: bool = False
    at_fault: tuple[int, ...] = ()
    apart: bool = False


class Agreement:
    """The part of one rank of `size`. `names`: of all gradients, equal at all ranks, in an order.

    `iteration`: number of the first, from 0 to 2^31 - 1. After a decision that the iteration is
    over or has failed, and once the rank has ended it, `begin` begins the next one.
    """

    def __init__(self, names: Sequence[str], rank: int, size: int, iteration: int = 0) -> None:
        self.table = tuple(names)
        self.iteration = iteration
        self._rank, self._size = rank, size
        self._recorded = False
        self._clear()

    def _clear(self) -> None:
        self.ended = self.failed = False
        self.fault = ""
        """Why this rank's iteration is not sound."""
        self._held: set[str] = set()
        self._started: dict[str, None] = {}

    def holds(self, name: str) -> bool:
        """Return whether the rank has said in this iteration that it has a gradient."""
        return name in self._held

    @property
    def pending(self) -> bool:
        """Whether the rank has gradients whose reductions have not started."""
        return not self.failed and not self._held <= self._started.keys()

    def ready(self, name: str) -> None:
        """Record that the rank has a gradient; twice in an iteration is a fault."""
        if name in self._held:
            why = "a second backward() before synchronize(); no_sync() accumulates gradients"
            self.refuse(f"{name} became ready twice: {why}")
        self._held.add(name)

    def refuse(self, why: str) -> None:
        """Record a fault of this rank, by which the iteration fails at all; the first counts."""
        self.fault = self.fault or why

    def end(self) -> None:
        """Record that the rank will have no more gradients in this iteration."""
        self.ended = True

    def contribution(self) -> NDArray[np.int32]:
        """Return this rank's vector for the next cycle, to be combined by AND."""
        count = len(self.table)
        held = sum(1 << place for place, name in enumerate(self.table) if name in self._held)
        every, ranks = (1 << count) - 1, (1 << self._size) - 1
        able = every if self.ended else held
        sound = ranks ^ bool(self.fault) << self._rank
        bits = able | (every ^ held) << count | sound << 2 * count
        bits |= self.ended << 2 * count + self._size
        return tagged_words(2 * count + self._size + 1, bits, self.iteration)

    def conclude(self, combined: NDArray[np.int32]) -> Decision:
        """Return what follows from the combined vectors of all ranks."""
        bits = from_tagged_words(combined)
        if bits is None:
            return Decision(apart=True)
        count = len(self.table)
        sound = bits >> 2 * count
        at_fault = tuple(rank for rank in range(self._size) if not sound >> rank & 1)
        if at_fault:
            self.failed = True
            return Decision(at_fault=at_fault)
        # What all lack, though all are able, all have ended without.
        wanted = bits & ~(bits >> count)
        start = tuple(
            name
            for place, name in enumerate(self.table)
            if wanted >> place & 1 and name not in self._started
        )
        self._started.update(dict.fromkeys(start))
        return Decision(start, over=bool(sound >> self._size & 1))

    def begin(self) -> None:
        """Begin the next iteration; the order of the first that has not failed is the table."""
        if not (self.failed or self._recorded):
            others = (name for name in self.table if name not in self._started)
            self.table = (*self._started, *others)
            self._recorded = True
        self.iteration += 1
        self._clear()
