"""Processing of ordinary frames, in C.

Nearly all batches that come to a worker are ordinary: plain results of one tensor's fragments, each
sent once, in order. And so it is with fragments that are sent, and with sums that come to a server.
What `hopsum.host_agent.stream` and `hopsum.host_agent.server` do with those takes some seventy
operations on short arrays, and a pass in C a fifth of the time. Everything else is left to them,
and all where there is no C compiler or where check lanes are wanted; both ways do the same to the
last bit (tests/host_agent/test_ordinary.py).

A pass is also a flow (flow.h): while a port waits for frames it gives them to the passes of the
streams and servers that have entered, so that most of a tensor goes by without Python.
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib import resources
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hopsum.host_agent import codec
from hopsum.host_agent.c_structures import c_fields
from hopsum.host_agent.codec import Frames
from hopsum.host_agent.congestion import LEAST_WINDOW, NO_QUEUE, CongestionWindow
from hopsum.host_agent.datapath.library import Flow
from hopsum.host_agent.process_calls import BARRIER, DONE, MOST_MEMORIES
from hopsum.host_agent.recovery import Recovery
from hopsum.host_agent.segment import Segment
from hopsum.host_agent.sure_calls import SureCalls
from hopsum.host_agent.timeout import RoundTrip
from hopsum.protocol.tos import URGENT
from hopsum.protocol.wire import CHILD_MASK, CHILD_SHIFT, HOP_BYTES, Flag, Reduction, carries_lanes
from p4switch.packet_io.compile import FLAGS, NoCompilerError, compile_shared


def _bare(*, up: bool) -> int:
    """Return by bit, the reduction's number, whether packets have no lanes in a direction."""
    return sum([1 << each for each in Reduction if not carries_lanes(each, up=up)])


_LAYOUT = {
    "FIRST": codec.FIRST,
    "LAST": codec.LAST,
    "FLAGS": codec.FLAGS_AT,
    "REDUCTION": codec.REDUCTION_AT,
    "EXPONENT": codec.EXPONENT_AT,
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
    "OVERFLOW": int(Flag.OVERFLOW),
    "ECN": int(Flag.ECN),
    "SEQUENCED": int(Flag.SEQUENCED),
    "REPAIR": int(Flag.REPAIR),
    "LEAST_WINDOW": LEAST_WINDOW,
    "NO_QUEUE": NO_QUEUE,
    "MOST_MEMORIES": MOST_MEMORIES,
    "BARRIER": BARRIER,
    "DONE": DONE,
    "BARE_UP": _bare(up=True),
    "BARE_DOWN": _bare(up=False),
    **{each.name: codec.reduction_byte(each) for each in Reduction},
}
_POINTERS = {
    "fragment": "_flight.fragment",
    "wire": "_flight.wire",
    "result_wire": "_results.fragment",
    "order": "_flight.recovery.order",
    "last": "_last",
    "due": "_flight.due",
    "first_sent_at": "_flight.first_sent_at",
    "sent_at": "_flight.recovery.sent_at",
    "overtaken_at": "_flight.recovery.overtaken_at",
    "tries": "_flight.tries",
    "timeouts": "_flight.timeouts",
    "code": "_code",
    "quiet": "_flight.recovery.quiet",
    "result_code": "_results.code",
    "result_reduction": "_results.reduction",
    "result_lanes": "_results.lanes",
    "frames": "_flight.frames",
    "log": "_links.sent.fragments",
    "plain": "_matcher.plain",
    "expected": "_matcher.expected",
    "prefix": "_up.prefix",
    "up": "_factors.up",
    "down": "_factors.down",
    "step": "_factors.step",
}
"""Arrays of `struct stream`, and where a `Stream` has them."""
_CONSTANTS = {
    "window": "_window",
    "lanes": "plan.lanes",
    "log_size": "_links.sent.size",
    "prefix_bytes": "_up.lanes_start",
    "lanes_at": "_down.lanes_start",
    "flags": "_flags",
    "numbered": "_numbered",
    "end_to_end": "_links.end_to_end",
    "limit": "_factors.limit",
    "bits": "_bits",
}
"""Its scalars."""
_BOUNDS = {
    "least_timeout": "_flight.round_trip.least",
    "most_timeout": "_flight.round_trip.most",
    "deadline": "_options.deadline",
    "min_probe": "_flight.recovery.min_probe",
    "max_probe": "_flight.recovery.most_patience",
}
"""Its bounds, in seconds."""
_STATE = {
    "arrived": ("_links.arrivals.0", "newest"),
    "log_next": ("_links.sent", "next"),
    "next": ("_flight.recovery", "next"),
    "newest": ("_flight.recovery", "newest"),
    "newest_void": ("_flight.recovery", "void"),
    "open": ("_flight", "open"),
    "probes": ("_flight.recovery", "probes"),
    "answered_at": ("_flight.recovery", "answered_at"),
    "shortest": ("_flight.recovery", "shortest"),
    "last_sent_at": ("_flight.recovery", "last_sent_at"),
    "variation": ("_flight.round_trip", "variation"),
    "timeout": ("_flight.round_trip", "timeout"),
    "next_due": ("_flight", "next_due"),
    "repair_due": ("_flight.recovery", "due"),
    "size": ("_flight.congestion", "size"),
    "most": ("_flight.congestion", "most"),
    "shortest_round": ("_flight.congestion", "shortest"),
    "reacted": ("_flight.congestion", "reacted"),
    "round": ("_flight.congestion", "round"),
}
"""What changes with every batch: whose it is, and its name there."""
_COUNTERS = {"sent": "_statistics", "accepted": "_statistics", "ecn": "_statistics"}
"""Counters since `load`, and whose they are."""


_FLOW = {"flow": Flow}


class _Stream(ctypes.Structure):
    """`struct stream` of ordinary_results.c."""

    _fields_ = c_fields("ordinary_results.c", "stream", _FLOW)


_TEXTS = (
    "flow.h",
    "frames.h",
    "ordinary_results.c",
    "sure_calls.c",
)
"""One program, in this order."""
_EXACT = ("-fno-math-errno", "-ffp-contract=off")
"""Flags with which times and numbers are numpy's to the last bit."""


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled passes, or None without a compiler."""
    here = resources.files("hopsum.host_agent")
    text = "".join(f"#define {name} {value}\n" for name, value in _LAYOUT.items())
    text += "".join([here.joinpath(name).read_text() for name in _TEXTS])
    try:
        path = compile_shared("ordinary", text, (*FLAGS, "-O3", *_EXACT))
    except NoCompilerError:
        return None
    loaded = ctypes.CDLL(str(path))
    batch = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    out = ctypes.c_void_p, ctypes.c_uint64
    loaded.ordinary_look.argtypes = batch
    loaded.ordinary_take.argtypes = (*batch, ctypes.c_double, *out, ctypes.c_uint32)
    loaded.ordinary_prologue.argtypes = (*batch[:2], ctypes.c_double)
    loaded.ordinary_send.argtypes = (*batch[:3], ctypes.c_double, ctypes.c_void_p)
    loaded.ordinary_take.restype = ctypes.c_uint32
    return loaded


_UNKNOWN = -1
"""Smoothed round trip, or exponent byte, while none is known."""


class _Pass:
    """A pass over the arrays of one owner; bound to them by `bind`.

    `load` and `save` copy what changes from batch to batch, from the owner and back to it. A copy
    of a pass is bound to nothing: the arrays of the owner's copy are others.
    """

    _struct: type[ctypes.Structure]
    _pointers: dict[str, str]
    _constants: dict[str, str]
    _shared: dict[str, tuple[str, str]]
    _counters: dict[str, str]
    _functions: tuple[str, str | None]
    """Its `process` and `expire`, see flow.h."""

    def __init__(self) -> None:
        self.bound = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)()

    def bind(self, owner: Any) -> None:
        """Work on an owner's arrays, which must not move, and by its numbers as they are now."""
        self.bound = True
        self._library = library()
        self._arrays = {name: _find(owner, at) for name, at in self._pointers.items()}
        self._state: Any = self._struct(
            **{name: each.ctypes.data for name, each in self._arrays.items()},
            **{name: _find(owner, at) for name, at in self._constants.items()},
        )
        self._parts = [(name, _find(owner, at), part) for name, (at, part) in self._shared.items()]
        self._counts = [(name, _find(owner, at)) for name, at in self._counters.items()]
        flow = self._state.flow
        flow.key, flow.due = owner.plan.job << 8 | owner.tree.tree, np.inf
        flow.process, flow.expire = map(_address_of, self._functions)
        self._address = ctypes.addressof(self._state)
        self._length = self._state.prefix_bytes + 4 * self._state.lanes

    @property
    def available(self) -> bool:
        """Whether there is a C compiler."""
        return self._library is not None

    def load(self) -> None:
        """Take over the owner's state."""
        state = self._state
        for name, part, attribute in self._parts:
            setattr(state, name, getattr(part, attribute))

    def save(self) -> None:
        """Give the owner its state back, and what was counted since."""
        state = self._state
        for name, part, attribute in self._parts:
            setattr(part, attribute, getattr(state, name))
        for name, part in self._counts:
            count = getattr(state, name)
            if count:
                setattr(part, name, getattr(part, name) + count)
                setattr(state, name, 0)

    def flow(self) -> int:
        """Return the address of this pass as a flow (flow.h)."""
        flow = self._state.flow
        flow.deferrable = flow.finished = flow.sent_bytes = 0
        return self._address

    @property
    def sent_bytes(self) -> int:
        """Bytes of the frames that the flow has sent since `flow`."""
        return int(self._state.flow.sent_bytes)

    def _set(self, frames: Frames) -> bool:
        """Set another batch; return False if its memory layout does not fit the pass."""
        if self._library is None or frames.strides[1] != 1:
            return False
        self._frames = frames.ctypes.data, len(frames), frames.strides[0]
        return True

    def _room(self, frames: int) -> Frames:
        return np.empty((frames, self._length), dtype=np.uint8)


def _address_of(function: str | None) -> int | None:
    """Return the address of a function in C; None if there is none, or no compiler."""
    loaded = library()
    if function is None or loaded is None:
        return None
    return ctypes.cast(getattr(loaded, function), ctypes.c_void_p).value


def _find(owner: Any, path: str) -> Any:
    """Return what is at a dotted path of attributes; numbers index."""
    for step in path.split("."):
        owner = owner[int(step)] if step.isdigit() else getattr(owner, step)
    return owner


class Ordinary(_Pass):
    """What a stream does with ordinary results and fragments."""

    _struct = _Stream
    _pointers = _POINTERS
    _constants = _CONSTANTS | _BOUNDS
    _shared = _STATE
    _counters = _COUNTERS
    _functions = ("ordinary_results", "ordinary_expire")
    segment: Segment | None = None
    """Segment of the next results."""

    def bind(self, owner: Any) -> None:
        """Work on a stream's arrays."""
        super().bind(owner)
        self._recovery: Recovery = owner._flight.recovery
        self._round_trip: RoundTrip = owner._flight.round_trip
        self._congestion: CongestionWindow = owner._flight.congestion
        self._state.progress = ctypes.addressof(self._recovery.progress.shared)
        self._with_calls = _address_of("sure_results"), _address_of("sure_call")

    def load(self) -> None:
        """Take over the state of the stream and of its segment."""
        super().load()
        state, smoothed = self._state, self._round_trip.smoothed
        state.smoothed = _UNKNOWN if smoothed is None else smoothed
        path = self._congestion.path
        state.congestible = path is not None
        if path is not None:
            state.path_round_trip, state.path_step = path
        if self.segment is not None:
            remark, code = self.segment.call.remark, self.segment.first_window_code
            waits = self.segment.call.prologues
            state.first_code = _UNKNOWN if waits or code is None else code
            state.alone, state.begun = waits == 1, _UNKNOWN
            state.left, state.remarked = self.segment.open, remark is not None
            state.remark = 0 if remark is None else remark.maximum

    def save(self) -> None:
        """Give stream and segment their state back."""
        super().save()
        state = self._state
        self._round_trip.smoothed = None if state.smoothed < 0 else state.smoothed
        if self.segment is not None:
            self.segment.open = state.left
            if state.begun != _UNKNOWN:
                self.segment.begin(state.begun)
            if self.segment.call.remark is not None:
                self.segment.call.remark.maximum = state.remark

    def enter(self, end: int, due: float, calls: SureCalls | None) -> None:
        """Prepare for processing in a flow; `load` comes first.

        `end`: of the stream; `due`: of its timers, in seconds; `calls`: to take from a process.
        """
        state = self._state
        state.end_of_stream, state.flow.due, state.refill = end, due, 0
        if calls is not None:
            state.calls = calls.address
            state.flow.process, state.flow.call = self._with_calls
        elif state.calls:
            state.calls = state.flow.call = None
            state.flow.process = _address_of(self._functions[0])

    @property
    def first(self) -> int:
        """First fragment of the tensor in hand, which a flow may have begun."""
        return int(self._state.first)

    @property
    def end(self) -> int:
        """End of the stream."""
        return int(self._state.end_of_stream)

    def follow(self, segment: Segment) -> None:
        """Take the tensor that the flow has begun for this segment."""
        self.segment = segment

    @property
    def refill(self) -> bool:
        """Whether idle slots have fragments to send that are not the segment's."""
        return bool(self._state.refill)

    def tensor(self, segment: Segment | None) -> None:
        """Set the segment of the next results; None: no segment."""
        if segment is self.segment:
            return
        self.segment = segment
        if segment is None:
            return
        state = self._state
        state.source, state.result = segment.source.ctypes.data, segment.result.ctypes.data
        state.announced = segment.exponents.ctypes.data
        state.first, state.prologue = segment.first, segment.prologue
        state.end, state.elements = segment.end, segment.stop - segment.start
        state.reduction, state.byte = segment.reduction, segment.byte

    def take(self, frames: Frames, end: int, now: float) -> Frames | None:
        """Process results (n, length); return the next fragments. `end`: of the stream.

        None, and nothing changes, if they are not all ordinary.
        """
        if not self._set(frames):
            return None
        assert self._library is not None
        self._state.end_of_stream = end
        if not self._library.ordinary_look(self._address, *self._frames):
            return None
        made = self._room(max(len(frames), self._state.window if self._limited else 0))
        sent = self._library.ordinary_take(
            self._address, *self._frames, now, made.ctypes.data, self._length, len(made)
        )
        return made[:sent]

    def take_prologue(self, frames: Frames, now: float) -> bool:
        """Process the result of the segment's prologue; return False if these frames are not it."""
        if len(frames) > 1 or not self._set(frames):
            return False
        assert self._library is not None
        return bool(self._library.ordinary_prologue(self._address, self._frames[0], now))

    @property
    def _limited(self) -> bool:
        """Whether results may let other slots send than their own."""
        state = self._state
        return bool(state.size < state.window or (state.marked and state.congestible))

    def send(self, fragments: NDArray[np.int64], now: float) -> Frames | None:
        """Send fragments (n,) of the segment from idle slots: their frames.

        None, and nothing changes, if they are not ordinary.
        """
        if self._library is None:
            return None
        made = self._room(len(fragments))
        fragments = np.ascontiguousarray(fragments, dtype=np.int64)
        if not self._library.ordinary_send(
            self._address, fragments.ctypes.data, len(fragments), now, made.ctypes.data
        ):
            return None
        return made
