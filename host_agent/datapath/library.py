"""The compiled data path: its constants, its functions, and room for the frames it makes."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, Self

import numpy as np

from hopsum.host_agent import codec
from hopsum.host_agent.c_library import CLibrary, program_of
from hopsum.host_agent.c_structures import c_fields
from hopsum.host_agent.codec import Frames, Matcher, group_by_length
from hopsum.host_agent.congestion import LEAST_WINDOW, NO_QUEUE
from hopsum.host_agent.elements import Element
from hopsum.host_agent.options import STEADY_PROBES
from hopsum.host_agent.process_calls import BARRIER, DONE, MOST_MEMORIES
from hopsum.protocol.tos import URGENT
from hopsum.protocol.wire import (
    CHECK_LANES,
    CHILD_MASK,
    CHILD_SHIFT,
    ETHERNET_BYTES,
    HOP_BYTES,
    IPV4_BYTES,
    VALUE_REDUCTIONS,
    Flag,
    Kind,
    Reduction,
    Width,
    carries_lanes,
)

STRIDE = 2048
"""Bytes of a row for a frame: above the 1514 of a full Ethernet frame."""
ROOM = 512
"""Rows of an output, unless more are asked for."""
GAPS = 64
"""Numbers after which a missing frame is no longer requested, a power of two."""


def _bare(*, up: bool) -> int:
    """Return by bit, the reduction's number, whether packets have no lanes in a direction."""
    return sum([1 << each for each in Reduction if not carries_lanes(each, up=up)])


CONSTANTS = {
    "FIRST": codec.FIRST,
    "LAST": codec.LAST,
    "KEY": codec.JOB_START,
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
    "VALUE_REDUCTIONS": sum([1 << each for each in VALUE_REDUCTIONS]),
    "CHECK_LANES": CHECK_LANES,
    "LEAST_WINDOW": LEAST_WINDOW,
    "NO_QUEUE": NO_QUEUE,
    "STEADY_PROBES": STEADY_PROBES,
    "MOST_MEMORIES": MOST_MEMORIES,
    "BARRIER": BARRIER,
    "DONE": DONE,
    "GAPS": GAPS,
    "BARE_UP": _bare(up=True),
    "BARE_DOWN": _bare(up=False),
    **{each.name: int(each) for each in Kind},
    **{str(each.name): int(each) for each in Flag},
    **{each.name: codec.reduction_byte(each) for each in Reduction},
    **{each.name: int(each) for each in (*Width, *Element)},
}
_TEXTS = (
    *("flow.h", "frames.h", "links.h", "check_lanes.h", "numbers.h"),
    *("round_trip.h", "congestion.h"),
    *("server.h", "server_frames.h", "server_sums.h", "server.c"),
    *("stream.h", "stream_values.h", "stream_sending.h", "stream_recovery.h", "stream_results.h"),
    *("stream.c", "calls.c", "stream_flow.c", "root.c"),
)
"""One program, in this order."""


def program() -> str:
    """Return the text of the compiled data path."""
    return program_of(CONSTANTS, [f"host_agent/datapath/{name}" for name in _TEXTS])


_AT, _NUMBER, _TIME, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double, ctypes.c_int
_U32, _U64 = ctypes.c_uint32, ctypes.c_uint64
_RECEIVE = (_U32, _AT, _AT, _U32, _U32, _U64, _TIME, _INT, _AT)
_SEND = (None, _AT, _TIME, _AT)
_CONVERT = (None, _AT, _NUMBER, _AT, _NUMBER, ctypes.c_uint8, _AT)
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "check_restart": (None, _AT, ctypes.c_char_p, _NUMBER, _NUMBER, _NUMBER),
    "exponent_codes": (_NUMBER, _NUMBER, _AT, _NUMBER, _NUMBER, _AT),
    "make_wide": _CONVERT,
    "take_wide": _CONVERT,
    "write_narrow": _CONVERT,
    "read_narrow": _CONVERT,
    "round_trip_start": (None, _AT),
    "round_trip_sample": (None, _AT, _TIME),
    "round_trip_back_off": (_INT, _AT, _TIME, _TIME),
    "congestion_start": (None, _AT),
    "congestion_move": (None, _AT),
    "congestion_overtaken": (None, _AT, _NUMBER),
    "congestion_answered": (None, _AT, _NUMBER, _NUMBER, _NUMBER, _TIME, _INT),
    "server_layout": (_U64, _AT, _AT),
    "server_restart": (None, _AT),
    "server_adopt": (None, _AT, _AT, _INT),
    "server_receive": _RECEIVE,
    "server_send_history": (_NUMBER, _AT, _NUMBER, _AT),
    "server_oldest": (_NUMBER, _AT, _AT, _AT),
    "server_heard": (_INT, _AT, _NUMBER, _NUMBER),
    "server_state": (_U64, _AT, _AT),
    "stream_layout": (_U64, _AT, _AT),
    "stream_start": (None, _AT, _NUMBER),
    "stream_receive": _RECEIVE,
    "stream_adopt": _SEND,
    "stream_fill": _SEND,
    "stream_tick": _SEND,
    "stream_resume": _SEND,
    "stream_hand_over": _SEND,
    "stream_retry": (None, _AT, _NUMBER, _INT, _TIME, _AT),
    "stream_postpone": (None, _AT, _TIME),
    "stream_deadline": (_TIME, _AT),
    "stream_deferrable": (_NUMBER, _AT),
    "stream_enter": (None, _AT, _AT),
    "root_exchange": (_INT, _AT, _TIME, _AT),
    "root_receive": (_U32, _AT, _AT, _U32, _U32, _U64, _TIME, _AT),
    "root_enter": (None, _AT, _AT),
}
"""Types of the result of each function, and of its arguments."""


def datapath(text: str) -> CLibrary:
    """Return a program of this kind."""
    return CLibrary("hopsum.host_agent.datapath", "datapath", text, _FUNCTIONS)


def compiled(text: str) -> ctypes.PyDLL:
    """Return a program of this kind, compiled. Raises NoCompilerError."""
    return datapath(text).load()


@cache
def library() -> ctypes.PyDLL:
    """Return the compiled data path. Raises NoCompilerError."""
    return compiled(program())


class OutputRows(ctypes.Structure):
    """`struct output` of flow.h."""

    _fields_ = c_fields("datapath/flow.h", "output")


class Flow(ctypes.Structure):
    """`struct flow` of flow.h."""

    _fields_ = c_fields("datapath/flow.h", "flow")


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


class Arrivals(ctypes.Structure):
    """`struct arrivals` of links.h."""

    _fields_ = c_fields("datapath/links.h", "arrivals")


class CheckLanes(ctypes.Structure):
    """`struct check_lanes` of check_lanes.h."""

    _fields_ = c_fields("datapath/check_lanes.h", "check_lanes")


class ScaleFactors(ctypes.Structure):
    """`struct factors` of numbers.h."""

    _fields_ = c_fields("datapath/numbers.h", "factors")


class RoundTrip(ctypes.Structure):
    """`struct round_trip` of round_trip.h."""

    _fields_ = c_fields("datapath/round_trip.h", "round_trip")


class Congestion(ctypes.Structure):
    """`struct congestion` of congestion.h."""

    _fields_ = c_fields("datapath/congestion.h", "congestion")


NESTED: dict[str, type[ctypes.Structure]] = {
    "flow": Flow,
    "matcher": Matching,
    "sent_log": SentLog,
    "arrivals": Arrivals,
    "check_lanes": CheckLanes,
    "factors": ScaleFactors,
    "round_trip": RoundTrip,
    "congestion": Congestion,
}
"""Structures that are parts of others."""


class Output:
    """Room for frames that the data path makes: `room` rows of STRIDE bytes, in `rows` for C."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._frames = np.empty((room, STRIDE), np.uint8)
        self._lengths = np.empty(room, np.uint32)
        self.rows = OutputRows(
            frames=self._frames.ctypes.data,
            lengths=self._lengths.ctypes.data,
            stride=STRIDE,
            room=room,
        )
        self._address = ctypes.addressof(self.rows)

    def begin(self, *, whole: bool) -> int:
        """Empty it; return its address.

        `whole`: frames without lanes on the wire keep lanes of zeros, for the same host's use.
        """
        self.rows.made, self.rows.whole = 0, whole
        return self._address

    def take(self) -> list[Frames]:
        """Return copies of the frames made since `begin`, in order; each batch has one length."""
        return self.copies(0, self.rows.made)

    def copies(self, start: int, stop: int) -> list[Frames]:
        """Return copies of rows with frames, in order; each batch has one length."""
        rows, lengths = self._frames[start:stop], self._lengths[start:stop]
        return [batch.copy() for batch in group_by_length(rows, lengths)]


class _Local(threading.local):
    output: Output | None = None


_local = _Local()


def shared_output(room: int) -> Output:
    """Return the thread's output, of at least `room` rows; what is in it must be taken at once."""
    output = _local.output
    if output is None or output.room < room:
        output = _local.output = Output(max(room, ROOM))
    return output


def receive(
    function: Callable[..., int], address: int, frames: Frames, now: float, room: int, *more: int
) -> list[Frames]:
    """Give frames (n, length) to a function of the data path; return what it sends.

    `room`: rows for what one frame makes, at least. `more`: further arguments, behind the time.
    """
    if frames.strides[1] != 1:
        frames = np.ascontiguousarray(frames)
    (n, length), stride, start = frames.shape, frames.strides[0], frames.ctypes.data
    sent: list[Frames] = []
    taken = 0
    while taken < n:
        output = shared_output(room)
        at, into = start + taken * stride, output.begin(whole=False)
        taken += function(address, at, n - taken, length, stride, now, *more, into)
        sent += output.take()
    return sent
