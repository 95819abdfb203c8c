"""What a process calls for, in the words of a check: an operation and a number of elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from host_agent.io.process_socket import REDUCTIONS, TYPES, Request
from host_agent.node.reductions import COMBINED_BY
from protocol.wire import Reduction

BARRIER, LEAVE = 1, 2
_WAYS = {
    (reduction, dtype): code
    for code, (dtype, reduction) in enumerate(
        ((name, each) for name in TYPES for each in REDUCTIONS[name]), 3
    )
}
"""Codes of operations, by reduction and type."""
_CODES = {(reduction, TYPES[dtype]): code for (reduction, dtype), code in _WAYS.items()}
SUM_INT, SUM_FLOAT = _WAYS["sum", "int32"], _WAYS["sum", "float32"]
_KINDS = {BARRIER: "barrier", LEAVE: "leave"} | {
    code: f"{reduction} of {dtype}" for (reduction, dtype), code in _WAYS.items()
}
_COMBINED_BY = {code: COMBINED_BY.get(reduction) for (reduction, _), code in _WAYS.items()}
_SUBMITTED_AS = {
    code: TYPES[dtype if reduction == "sum" else "int32"]
    for (reduction, dtype), code in _WAYS.items()
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A rank's call: a code of _KINDS, and the number of elements."""

    code: int
    elements: int

    def __str__(self) -> str:
        if self.code == LEAVE:
            return "has left"
        if self.code == BARRIER:
            return _KINDS[self.code]
        return f"{_KINDS[self.code]}, {self.elements} elements"

    @property
    def values(self) -> bool:
        """Whether it has values to sum."""
        return self.code in _SUBMITTED_AS and self.elements > 0

    @property
    def type(self) -> np.dtype[Any]:
        """Type of the tensor that is submitted for it."""
        return _SUBMITTED_AS[self.code]

    @property
    def reduction(self) -> Reduction | None:
        """Reduction in the switches, if not sums."""
        return _COMBINED_BY.get(self.code)


def wanted(request: Request) -> Wanted:
    """Return the call of a request."""
    if request.tensor is not None:
        code = _CODES[request.reduction, request.tensor.dtype]
        return Wanted(code, len(request.tensor))
    return Wanted(BARRIER if request.kind == "barrier" else LEAVE, 0)
