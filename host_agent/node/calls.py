"""Calls of processes, and their encoding in a check's words: operation, elements, target."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hopsum.host_agent import process_calls
from hopsum.host_agent.io.process_connection import Request
from hopsum.host_agent.node.reductions import COMBINED_BY, encoding
from hopsum.host_agent.process_calls import (
    ALL,
    MODULO,
    NARROW,
    PARTS,
    REDUCTIONS,
    ROOT,
    SHORT,
    TYPES,
)
from hopsum.host_agent.sure_calls import ExpectedCall
from hopsum.protocol.wire import Reduction, Width

BARRIER, LEAVE, COPY = 1, 2, 3
_WAYS = {
    (reduction, dtype): code
    for code, (dtype, reduction) in enumerate(
        ((name, each) for name in TYPES for each in REDUCTIONS[name]), 4
    )
}
"""Codes of operations, by reduction and type."""
_NAMES = {code: way for way, code in _WAYS.items()}
SUM_INT, SUM_FLOAT = _WAYS["sum", "int32"], _WAYS["sum", "float32"]
_WIDTHS = {
    _WAYS["sum", NARROW]: Width.WIDTH_16,
    _WAYS["sum", MODULO]: Width.WIDTH_8,
    _WAYS["max", SHORT]: Width.WIDTH_16,
    _WAYS["min", SHORT]: Width.WIDTH_16,
}
_SUMS_OF_FLOATS = SUM_FLOAT, _WAYS["sum", NARROW]
_KINDS = {BARRIER: "barrier", LEAVE: "leave"} | {
    code: f"{reduction} of {dtype}" for (reduction, dtype), code in _WAYS.items()
}
_COMBINED_BY = {code: COMBINED_BY.get(reduction) for (reduction, _), code in _WAYS.items()} | {
    COPY: Reduction.XOR
}
_SUBMITTED_AS = {
    code: TYPES["int32" if dtype == "float32" and reduction != "sum" else dtype]
    for (reduction, dtype), code in _WAYS.items()
} | {COPY: TYPES["int32"], BARRIER: TYPES["int32"]}


class CallSpec(NamedTuple):
    """A rank's call: a code of _KINDS, the number of elements, and a target (`Request`)."""

    code: int
    elements: int
    target: int = ALL

    def __str__(self) -> str:
        if self.code == LEAVE:
            return "has left"
        if self.code == BARRIER:
            return _KINDS[self.code]
        if self.code == COPY:
            whose = f"broadcast from rank {self.target - ROOT}"
            return f"{'all-gather' if self.target == PARTS else whose}, {self.elements} words"
        to = {ALL: "", PARTS: ", to each rank a part"}
        root = f", to rank {self.target - ROOT}"
        return f"{_KINDS[self.code]}, {self.elements} elements{to.get(self.target, root)}"

    @classmethod
    def from_word(cls, word: int, elements: int) -> CallSpec:
        """Return the call of a `word` and a number of elements."""
        return cls(word & 0xFF, elements, word >> 16 & 0xFFFF)

    def word(self, fault: int) -> int:
        """Return operation, number of a fault (0: none) and target as an unsigned 32-bit word."""
        return self.code | fault << 8 | self.target << 16

    @property
    def values(self) -> bool:
        """Whether it has values to sum, or to copy."""
        return self.code in _SUBMITTED_AS and self.elements > 0

    @property
    def type(self) -> np.dtype[Any]:
        """Type of the tensor that is submitted for it."""
        return _SUBMITTED_AS[self.code]

    @property
    def width(self) -> Width | None:
        """Width of values in packets, if not 32 bits; there are no small calls of these."""
        return _WIDTHS.get(self.code)

    @property
    def sums_floats(self) -> bool:
        """Whether floats are summed, so that magnitudes are exponent bytes."""
        return self.code in _SUMS_OF_FLOATS

    @property
    def reduction(self) -> Reduction | None:
        """Reduction in the switches, if not sums: what is copied is combined with zeros."""
        return _COMBINED_BY.get(self.code)

    def expected(self, combined: Reduction, code: int) -> ExpectedCall | None:
        """Return this as a call that flows can take; None if it is a copy, narrow or not for all.

        `combined`: the operation in the switches; `code`: the remark expected of all.
        """
        if self.code == BARRIER:
            return ExpectedCall(process_calls.BARRIER, combined=combined)
        way = _NAMES.get(self.code)
        if way is None or self.target != ALL or self.width is not None:
            return None
        reduction, dtype = way
        return ExpectedCall(
            process_calls.SUM,
            dtype,
            reduction,
            self.elements,
            combined,
            self.code == SUM_FLOAT,
            *encoding(reduction, TYPES[dtype]),
            code,
        )

    def share(self, rank: int, ranks: int) -> tuple[int, int]:
        """Return which elements (start, stop) are a rank's, as the target says."""
        if self.target == PARTS:
            part = self.elements // ranks
            return rank * part, (rank + 1) * part
        return 0, self.elements if self.target in (ALL, ROOT + rank) else 0

    def result(self, rank: int, ranks: int) -> tuple[int, int]:
        """Return which elements (start, stop) of the result a rank wants."""
        return (0, self.elements) if self.code == COPY else self.share(rank, ranks)


def wanted(request: Request) -> CallSpec:
    """Return the call of a request."""
    if request.tensor is None:
        return CallSpec(BARRIER if request.kind == "barrier" else LEAVE, 0)
    code = COPY
    if request.kind == "sum":
        code = _WAYS[request.reduction, request.named_type]
    return CallSpec(code, len(request.tensor), request.target)
