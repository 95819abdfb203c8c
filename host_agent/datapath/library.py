"""The compiled data path: its constants, its functions, and room for the frames it makes."""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from importlib import resources
from typing import Self

import numpy as np

from hopsum.host_agent import codec
from hopsum.host_agent.c_structures import c_fields
from hopsum.host_agent.codec import Frames, Matcher, group_by_length
from hopsum.protocol.tos import URGENT
from hopsum.protocol.wire import (
    CHECK_LANES,
    CHILD_MASK,
    CHILD_SHIFT,
    ETHERNET_BYTES,
    HOP_BYTES,
    IPV4_BYTES,
    Flag,
    Kind,
    Reduction,
    carries_lanes,
)
from p4switch.packet_io.compile import FLAGS, compile_shared

STRIDE = 2048
"""Bytes of a row for a frame: above the 1514 of a full Ethernet frame."""
ROOM = 512
"""Rows of an output, unless more are asked for."""


def _bare(*, up: bool) -> int:
    """Return by bit, the reduction's number, whether packets have no lanes in a direction."""
    return sum([1 << each for each in Reduction if not carries_lanes(each, up=up)])


_CONSTANTS = {
    "FIRST": codec.FIRST,
    "LAST": codec.LAST,
    "KIND": codec.KIND_AT,
    "FLAGS": codec.FLAGS_AT,
    "REDUCTION": codec.REDUCTION_AT,
    "EXPONENT": codec.EXPONENT_AT,
    "HOPS": codec.HOPS_AT,
    "EPOCH": codec.EPOCH_AT,
    "WORKER": codec.WORKER_AT,
    "WEIGHT": codec.WEIGHT_AT,
    "SEQUENCE": codec.SEQUENCE_AT,
    "FRAGMENT": codec.FRAGMENT_AT,
    "TOS": codec.TOS_AT,
    "TOTAL_LENGTH": codec.TOTAL_LENGTH_AT,
    "CHECKSUM": codec.CHECKSUM_AT,
    "UDP_LENGTH": codec.UDP_LENGTH_AT,
    "URGENT": URGENT,
    "STACK": codec.STACK_START,
    "HOP_BYTES": HOP_BYTES,
    "CHILD_SHIFT": CHILD_SHIFT,
    "CHILD_MASK": CHILD_MASK,
    "MAC_BYTES": codec.MAC_BYTES,
    "IPV4": ETHERNET_BYTES,
    "IPV4_BYTES": IPV4_BYTES,
    "SOURCE_IP": codec.SOURCE_IP_AT,
    "DESTINATION_IP": codec.DESTINATION_IP_AT,
    "IP_BYTES": codec.IP_BYTES,
    "KNOWN_REDUCTIONS": sum([1 << each for each in Reduction]),
    "CHECK_LANES": CHECK_LANES,
    "BARE_UP": _bare(up=True),
    "BARE_DOWN": _bare(up=False),
    **{each.name: int(each) for each in Kind},
    **{str(each.name): int(each) for each in Flag},
    **{each.name: codec.reduction_byte(each) for each in Reduction},
}
_TEXTS = ("frames.h", "links.h", "check_lanes.h", "../flow.h", "server.c")
"""One program, in this order."""
_EXACT = ("-fno-math-errno", "-ffp-contract=off")
"""Flags with which numbers are the same with every compiler, to the last bit."""
_STRICT = ("-Wall", "-Wextra", "-Werror", "-Wno-unused-function")


def program() -> str:
    """Return the text of the compiled data path."""
    here = resources.files("hopsum.host_agent.datapath")
    text = "".join(f"#define {name} {value}\n" for name, value in _CONSTANTS.items())
    return text + "".join([here.joinpath(name).read_text() for name in _TEXTS])


def compiled(text: str) -> ctypes.PyDLL:
    """Return a program of this kind, compiled. Raises NoCompilerError."""
    path = compile_shared("datapath", text, (*FLAGS, "-O3", *_EXACT, *_STRICT))
    return ctypes.PyDLL(str(path))  # calls are too short to let other threads run


@cache
def library() -> ctypes.PyDLL:
    """Return the compiled data path. Raises NoCompilerError."""
    return compiled(program())


class Flow(ctypes.Structure):
    """`struct flow` of flow.h."""

    _fields_ = c_fields("flow.h", "flow")


class Matching(ctypes.Structure):
    """`struct matcher` of frames.h."""

    _fields_ = c_fields("datapath/frames.h", "matcher")

    @classmethod
    def of(cls, matcher: Matcher, bare: Matcher) -> Self:
        """Return those of frames with lanes and without, whose arrays must be kept."""
        arrays = matcher.belongs, matcher.plain, matcher.expected, bare.expected
        return cls(*[each.ctypes.data for each in arrays])


class SentLog(ctypes.Structure):
    """`struct sent_log` of links.h."""

    _fields_ = c_fields("datapath/links.h", "sent_log")


class CheckLanes(ctypes.Structure):
    """`struct check_lanes` of check_lanes.h."""

    _fields_ = c_fields("datapath/check_lanes.h", "check_lanes")


NESTED = {"flow": Flow, "matcher": Matching, "sent_log": SentLog, "check_lanes": CheckLanes}
"""Structures that are parts of others."""


class _Output(ctypes.Structure):
    """`struct output` of frames.h."""

    _fields_ = c_fields("datapath/frames.h", "output")


class Output:
    """Room for frames that the data path makes: `room` rows of STRIDE bytes."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._rows = np.empty((room, STRIDE), np.uint8)
        self._lengths = np.empty(room, np.uint32)
        self._state = _Output(
            frames=self._rows.ctypes.data,
            lengths=self._lengths.ctypes.data,
            stride=STRIDE,
            room=room,
        )

    def begin(self, *, whole: bool) -> int:
        """Empty it; return its address.

        `whole`: frames without lanes on the wire keep lanes of zeros, for the same host's use.
        """
        self._state.made, self._state.whole = 0, whole
        return ctypes.addressof(self._state)

    def take(self) -> list[Frames]:
        """Return copies of the frames made since `begin`, in order; each batch has one length."""
        made = self._state.made
        return [batch.copy() for batch in group_by_length(self._rows[:made], self._lengths[:made])]


class _Local(threading.local):
    output: Output | None = None


_local = _Local()


def shared_output(room: int) -> Output:
    """Return the thread's output, of at least `room` rows; what is in it must be taken at once."""
    output = _local.output
    if output is None or output.room < room:
        output = _local.output = Output(max(room, ROOM))
    return output
