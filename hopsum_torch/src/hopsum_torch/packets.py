"""Packets of calls and of their ends (docs/agent-socket.md); all other messages are JSON."""

from __future__ import annotations

import struct

SUM, COPY, BARRIER, DONE = 1, 2, 3, 4
"""First bytes of packets."""
NARROW = "float32 in 16 bits"
"""Type of float32 whose values take 16 bits in packets; others take as many as in memory."""
TYPES = ("float32", "int32", NARROW, "int8", "int16")
REDUCTIONS = ("sum", "max", "min", "and", "or", "xor")
PASSED = "passed"
"""Fault code of values that are not all finite, and go into the result."""
FAULTS = (None, "nan", "inf", "-inf", PASSED)
ALL, PARTS, ROOT = 0, 1, 2
"""Targets: all ranks; a part for each rank; ROOT + r: rank r."""

CALL = struct.Struct("<4BIQ4I")
"""Kind, type, reduction, fault; target; number; memory, elements, magnitude, element at fault."""
END = struct.Struct("<B7xQ")
"""DONE; number of the call."""


def fault_code(fault: tuple[str, int] | None) -> tuple[int, int]:
    """Return the code of a fault, and the element; zeros if there is none."""
    return (0, 0) if fault is None else (FAULTS.index(fault[0]), fault[1])
