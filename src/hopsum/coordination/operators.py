"""Collective operators, the order table that all processes share, and bit vectors over it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

WORD_BITS = 32
"""Bits of a lane of hopsum's packets, so that switches can combine vectors."""
_WORD = (1 << WORD_BITS) - 1

NO_MORE = _WORD
"""Iteration of a process that has left, above every other. Numbers do not wrap."""


@dataclass(frozen=True, slots=True)
class Operator:
    """A collective that processes request by name; all must agree on its details."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    collective: str = "all-reduce"

    def __str__(self) -> str:
        return f"{self.collective} of {self.dtype} {self.shape}"


@dataclass(frozen=True, slots=True)
class BitVector:
    """`length` bits; bit i of `bits` is the operator at place i of the table, in `iteration`.

    Vectors of different iterations have no operator in common: they combine to a vector without
    bits, of iteration 0.
    """

    length: int
    bits: int = 0
    iteration: int = 0

    def __and__(self, other: BitVector) -> BitVector:
        if self.length != other.length:
            raise ValueError(f"vectors of {self.length} and {other.length} bits")
        if self.iteration != other.iteration:
            return BitVector(self.length)
        return BitVector(self.length, self.bits & other.bits, self.iteration)

    @property
    def words(self) -> tuple[int, ...]:
        """ceil(length / 32) words of 32 bits, the lowest bits first."""
        return tuple(self.bits >> low & _WORD for low in range(0, self.length, WORD_BITS))

    @property
    def tagged_words(self) -> tuple[int, ...]:
        """`words`, then the iteration and its complement.

        In a bitwise and of such words, by nodes unaware of iterations, the last two are
        complementary if and only if they were the same everywhere.
        """
        return (*self.words, self.iteration, self.iteration ^ _WORD)

    @classmethod
    def from_tagged_words(cls, length: int, words: Sequence[int]) -> BitVector:
        """Return the vector of combined `tagged_words`, without bits if the iterations differed."""
        if len(words) < 2:
            raise ValueError(f"{len(words)} words; expected 2 at least, for the iteration")
        *bits, iteration, complement = (int(word) & _WORD for word in words)
        if iteration ^ complement != _WORD:
            bits, iteration = [0] * len(bits), 0
        return cls.from_words(length, bits, iteration)

    @classmethod
    def from_words(cls, length: int, words: Sequence[int], iteration: int = 0) -> BitVector:
        """Return the vector of its words, which may be given as signed integers."""
        expected = -(-length // WORD_BITS)
        if len(words) != expected:
            raise ValueError(f"{len(words)} words for {length} bits; expected {expected}")
        bits = sum((int(word) & _WORD) << WORD_BITS * i for i, word in enumerate(words))
        return cls(length, bits & (1 << length) - 1, iteration)


@dataclass(frozen=True)
class OrderTable:
    """The operator order table ([004 claim 5][004]): operators in the order in which they start.

    `version`: 0 before the first iteration is over, then one more with every amendment.
    """

    version: int = 0
    operators: tuple[Operator, ...] = ()

    @cached_property
    def _places(self) -> dict[str, int]:
        return {operator.name: place for place, operator in enumerate(self.operators)}

    def __len__(self) -> int:
        return len(self.operators)

    def find(self, name: str) -> Operator | None:
        """Return the operator of this name, if it is in the table."""
        place = self._places.get(name)
        return None if place is None else self.operators[place]

    def vector(self, ready: Iterable[Operator], iteration: int) -> BitVector:
        """Return the vector of the ready operators that the table has with equal details."""
        bits = 0
        for operator in ready:
            place = self._places.get(operator.name)
            if place is not None and self.operators[place] == operator:
                bits |= 1 << place
        return BitVector(len(self), bits, iteration)

    def chosen(self, vector: BitVector) -> list[Operator]:
        """Return the operators whose bits are set, in order."""
        bits, chosen = vector.bits, []
        while bits:
            low = bits & -bits
            chosen.append(self.operators[low.bit_length() - 1])
            bits ^= low
        return chosen

    def amended(
        self, version: int, removed: Iterable[str], added: Iterable[Operator]
    ) -> OrderTable:
        """Return the next version: without the removed names, with additions at the end."""
        gone = set(removed)
        kept = (operator for operator in self.operators if operator.name not in gone)
        return OrderTable(version, (*kept, *added))
