"""Packets of calls and of their completions at the agent's socket (docs/agent-socket.md).

All other messages are JSON; these come with every tensor, and flows read and write them in C
(`datapath/calls.c`).
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SUM, COPY, BARRIER, DONE = 1, 2, 3, 4
"""First byte of a packet: the kind of a call, or DONE for its completion."""
NARROW, MODULO, SHORT = "float32 in 16 bits", "int8", "int16"
TYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "int32": np.dtype(np.int32),
    NARROW: np.dtype(np.float32),
    MODULO: np.dtype(np.int8),
    SHORT: np.dtype(np.int16),
}
"""Types of tensors in memory. In packets values of NARROW take 16 bits, those of MODULO, which are
summed modulo 256, and SHORT as many as in memory."""
REDUCTIONS = {
    "float32": ("sum", "max", "min"),
    "int32": ("sum", "max", "min", "and", "or", "xor"),
    NARROW: ("sum",),
    MODULO: ("sum",),
    SHORT: ("max", "min"),
}
"""How the values of each type can be combined; packets have an index into those of int32."""
PASSED = "passed"
FAULTS = ("nan", "inf", "-inf", PASSED)
"""What can be wrong with an element. PASSED: of a sum of float32 some are not finite, and these are
to be in the result (`hopsum.host_agent.node.nonfinite`)."""
ALL, PARTS, ROOT = 0, 1, 2
"""Whose the elements are, of a result or of what is copied: every rank's; part r rank r's; and with
ROOT + r all of them rank r's."""

MOST_MEMORIES = 4096
"""Maximum number of memories of one process: each takes a descriptor and a mapping of the agent."""

CALL = struct.Struct("<4BIQ4I")
_DONE = struct.Struct("<B7xQ")


class CallPacket(NamedTuple):
    """A call's packet. `fault`: 0, or one more than an index of FAULTS; `element` has it."""

    kind: int
    type: int
    reduction: int
    fault: int
    target: int
    number: int
    memory: int
    elements: int
    magnitude: int
    element: int

    @property
    def named_type(self) -> str | None:
        """Name of the type, if there is one."""
        return _at(tuple(TYPES), self.type)

    @property
    def named_reduction(self) -> str | None:
        """Name of the reduction, if there is one."""
        return _at(REDUCTIONS["int32"], self.reduction)


def _at(names: tuple[str, ...], index: int) -> str | None:
    return names[index] if index < len(names) else None


def read_call(packet: bytes) -> CallPacket | None:
    """Return the call in a packet, None if it is of another length or kind."""
    if len(packet) != CALL.size or packet[0] not in (SUM, COPY, BARRIER):
        return None
    return CallPacket(*CALL.unpack(packet))


def done_packet(number: int) -> bytes:
    """Return the completion of a call."""
    return _DONE.pack(DONE, number)


class Mailbox:
    """Where a process's packets come, and the memories that it shares, as C needs them.

    `addresses` (0: none) and `sizes` (bytes) are by number. `open` until the socket is closed.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.open = True
        self.addresses: NDArray[np.uint64] = np.zeros(MOST_MEMORIES, np.uint64)
        self.sizes: NDArray[np.int64] = np.zeros(MOST_MEMORIES, np.int64)

    def add(self, number: int, memory: NDArray[np.uint8]) -> None:
        """Add a memory, which must stay mapped while this is open."""
        self.addresses[number], self.sizes[number] = memory.ctypes.data, len(memory)
