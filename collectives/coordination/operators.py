"""Collective operators, the order table that all processes share, and bit vectors over it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

WORD_BITS = 32
"""A lane of hopsum's packets: vectors can be combined in the switches as they are."""


@dataclass(frozen=True, slots=True)
class Operator:
    """A collective that processes call by name; all must agree on what it works on."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    collective: str = "all-reduce"

    def __str__(self) -> str:
        return f"{self.collective} of {self.dtype} {self.shape}"


@dataclass(frozen=True, slots=True)
class BitVector:
    """`length` bits; bit i of `bits` is the operator at place i of the table."""

    length: int
    bits: int = 0

    def __and__(self, other: BitVector) -> BitVector:
        if self.length != other.length:
            raise ValueError(f"vectors of {self.length} and {other.length} bits")
        return BitVector(self.length, self.bits & other.bits)

    @property
    def words(self) -> tuple[int, ...]:
        """ceil(length / 32) words of 32 bits, the lowest bits first."""
        return tuple(
            self.bits >> low & (1 << WORD_BITS) - 1 for low in range(0, self.length, WORD_BITS)
        )

    @classmethod
    def from_words(cls, length: int, words: Sequence[int]) -> BitVector:
        """The vector of its words, which may be given as signed integers."""
        expected = -(-length // WORD_BITS)
        if len(words) != expected:
            raise ValueError(f"{len(words)} words for {length} bits; expected {expected}")
        mask = (1 << WORD_BITS) - 1
        bits = sum((int(word) & mask) << WORD_BITS * i for i, word in enumerate(words))
        return cls(length, bits & (1 << length) - 1)


@dataclass(frozen=True)
class OrderTable:
    """The operator order table (004 claim 5): operators in the order in which they start.

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
        """The operator of this name, if it is in the table."""
        place = self._places.get(name)
        return None if place is None else self.operators[place]

    def vector(self, ready: Iterable[Operator]) -> BitVector:
        """The vector with the bits of those ready operators that are in the table just so."""
        bits = 0
        for operator in ready:
            place = self._places.get(operator.name)
            if place is not None and self.operators[place] == operator:
                bits |= 1 << place
        return BitVector(len(self), bits)

    def chosen(self, vector: BitVector) -> list[Operator]:
        """The operators whose bits are set, in order."""
        bits, chosen = vector.bits, []
        while bits:
            low = bits & -bits
            chosen.append(self.operators[low.bit_length() - 1])
            bits ^= low
        return chosen

    def amended(
        self, version: int, removed: Iterable[str], added: Iterable[Operator]
    ) -> OrderTable:
        """The next version: without the names removed, with what is added at the end."""
        gone = set(removed)
        kept = (operator for operator in self.operators if operator.name not in gone)
        return OrderTable(version, (*kept, *added))
