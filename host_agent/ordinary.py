"""Processing of ordinary frames, in C.

Nearly all batches that come to a worker are ordinary: plain results of one tensor's fragments, each
sent once, in order. And so it is with fragments that are sent, and with sums that come to a
server. What `host_agent.stream` and
`host_agent.server` do with those takes some seventy operations on short arrays, and a pass in C a
fifth of the time. Everything else is left to them, and all where there is no C compiler or where
check lanes are wanted; both ways do the same to the last bit (tests/host_agent/test_ordinary.py).
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib import resources
from operator import attrgetter
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from host_agent import codec
from host_agent.codec import Frames
from host_agent.segment import Segment
from p4switch.packet_io.compile import FLAGS, NoCompilerError, compile_shared
from protocol.wire import Flag, Reduction

_LAYOUT = {
    "FIRST": codec.FIRST,
    "LAST": codec.LAST,
    "FLAGS": codec.FLAGS_AT,
    "REDUCTION": codec.REDUCTION_AT,
    "EXPONENT": codec.EXPONENT_AT,
    "WEIGHT": codec.WEIGHT_AT,
    "SEQUENCE": codec.SEQUENCE_AT,
    "FRAGMENT": codec.FRAGMENT_AT,
    "STACK": codec.STACK_START,
    "OVERFLOW": int(Flag.OVERFLOW),
    "ECN": int(Flag.ECN),
    "SEQUENCED": int(Flag.SEQUENCED),
    "REPAIR": int(Flag.REPAIR),
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
    "flags": "_flags",
    "numbered": "_numbered",
    "limit": "_factors.limit",
    "bits": "_bits",
}
"""Its scalars."""
_TENSOR = (
    ["source", "result", "announced"],
    ["first", "prologue", "end", "elements", "reduction", "byte"],
)
_BATCH = [
    "end_of_stream",
    "arrived",
    "log_next",
    "next",
    "newest",
    "newest_void",
    "open",
    "sequenced",
    "marked",
]
_SERVER_POINTERS = {
    "fragment": "_sums.fragment",
    "done": "_history.fragment",
    "done_number": "_numbers",
    "last": "_last",
    "own": "_own",
    "done_lanes": "_history.lanes",
    "done_code": "_history.code",
    "done_flags": "_history.flags",
    "done_reduction": "_history.reduction",
    "held": "_sums.held",
    "started": "_sums.started",
    "flags": "_sums.flags",
    "code": "_sums.code",
    "reduction": "_sums.reduction",
    "covered": "_sums.covered",
    "sum": "_sums.sum",
    "since": "_sums.since",
    "log": "_links.sent.fragments",
    "plain": "_matcher.plain",
    "expected": "_matcher.expected",
    "prefix": "_forms.replicated.prefix",
}
"""Arrays of `struct server`, and where a `Server` has them."""
_SERVER_CONSTANTS = {
    "window": "_window",
    "lanes": "plan.lanes",
    "log_size": "_links.sent.size",
    "prefix_bytes": "_forms.replicated.lanes_start",
    "workers": "_workers",
    "children": "_sums.children",
    "lanes_at": "_up.lanes_start",
}
"""Its scalars."""
_SERVER_BATCH = ["child", "weight", "arrived", "log_next", "completed", "overflowed"]


class _Stream(ctypes.Structure):
    """`struct stream` of ordinary.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _CONSTANTS),
        *((name, ctypes.c_void_p) for name in _TENSOR[0]),
        *((name, ctypes.c_int64) for name in _TENSOR[1]),
        ("now", ctypes.c_double),
        *((name, ctypes.c_int64) for name in _BATCH),
        ("oldest", ctypes.c_double),
        ("latest", ctypes.c_double),
    ]


class _Server(ctypes.Structure):
    """`struct server` of ordinary.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in _SERVER_POINTERS),
        *((name, ctypes.c_int64) for name in _SERVER_CONSTANTS),
        ("now", ctypes.c_double),
        *((name, ctypes.c_int64) for name in _SERVER_BATCH),
    ]


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled passes, or None without a compiler."""
    text = resources.files("host_agent").joinpath("ordinary.c").read_text()
    layout = "".join(f"#define {name} {value}\n" for name, value in _LAYOUT.items())
    try:
        path = compile_shared("ordinary", layout + text, (*FLAGS, "-O3", "-fno-math-errno"))
    except NoCompilerError:
        return None
    loaded = ctypes.CDLL(str(path))
    batch = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    loaded.ordinary_look.argtypes = loaded.ordinary_look_at_sums.argtypes = batch
    out = ctypes.c_void_p, ctypes.c_double
    loaded.ordinary_take.argtypes = (*batch, ctypes.c_uint64, ctypes.c_int, *out)
    loaded.ordinary_take.restype = ctypes.c_uint32
    loaded.ordinary_send.argtypes = (*batch[:3], *out)
    loaded.ordinary_take_sums.argtypes = (*batch, ctypes.c_void_p)
    loaded.ordinary_take_sums.restype = None
    return loaded


class _Pass:
    """A pass over the arrays of one owner; bound to them by `bind`.

    A copy is bound to nothing: the arrays of the owner's copy are others.
    """

    _struct: type[ctypes.Structure]
    _pointers: dict[str, str]
    _constants: dict[str, str]

    def __init__(self) -> None:
        self.bound = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)()

    def bind(self, owner: object) -> None:
        """Work on an owner's arrays, which must not move, and by its numbers as they are now."""
        self.bound = True
        self._library = library()
        self._arrays = {name: attrgetter(at)(owner) for name, at in self._pointers.items()}
        self._state: Any = self._struct(
            **{name: each.ctypes.data for name, each in self._arrays.items()},
            **{name: attrgetter(at)(owner) for name, at in self._constants.items()},
        )
        self._address = ctypes.addressof(self._state)
        self._length = self._state.prefix_bytes + 4 * self._state.lanes

    def _batch(self, frames: Frames, scalars: dict[str, int]) -> bool:
        """Set another batch; return False if its memory layout does not fit the pass."""
        if self._library is None or frames.strides[1] != 1:
            return False
        for name, value in scalars.items():
            setattr(self._state, name, value)
        self._frames = frames.ctypes.data, len(frames), frames.strides[0]
        return True

    def _room(self, frames: int) -> Frames:
        return np.empty((frames, self._length), dtype=np.uint8)


class Ordinary(_Pass):
    """What a stream does with ordinary results and fragments."""

    _struct = _Stream
    _pointers = _POINTERS
    _constants = _CONSTANTS
    _segment: Segment | None = None

    def tensor(self, segment: Segment | None) -> None:
        """Set the segment of the next results; None: no segment."""
        if segment is self._segment:
            return
        self._segment = segment
        if segment is None:
            return
        state = self._state
        state.source, state.result = segment.source.ctypes.data, segment.result.ctypes.data
        state.announced = segment.exponents.ctypes.data
        state.first, state.prologue = segment.first, segment.prologue
        state.end, state.elements = segment.end, segment.stop - segment.start
        state.reduction, state.byte = segment.reduction, segment.byte

    def look(self, frames: Frames, **scalars: int) -> _Stream | None:
        """Examine frames (n, length); return None if they are not all ordinary.

        `scalars`: the state of the stream, integers of `struct stream`.
        """
        if not self._batch(frames, scalars):
            return None
        assert self._library is not None
        if not self._library.ordinary_look(self._address, *self._frames):
            return None
        found: _Stream = self._state
        return found

    def take(self, lanes_at: int, now: float, due: float, *, go_on: bool) -> Frames:
        """Process the examined frames; return the next fragments, which are `due` then.

        `lanes_at`: where the lanes of results begin, bytes. `go_on`: if False, there are no next
        ones, and the slots become idle.
        """
        assert self._library is not None
        self._state.now = now
        made = self._room(self._frames[1] if go_on else 0)
        sent = self._library.ordinary_take(
            self._address, *self._frames, lanes_at, go_on, made.ctypes.data, due
        )
        return made[:sent]

    def send(
        self, fragments: NDArray[np.int64], now: float, due: float, **scalars: int
    ) -> tuple[Frames, int] | None:
        """Send fragments (n,) of the segment from idle slots: their frames, and the next number.

        None, and nothing changes, if they are not ordinary. `scalars`: as for `look`.
        """
        if self._library is None:
            return None
        for name, value in scalars.items():
            setattr(self._state, name, value)
        self._state.now = now
        made = self._room(len(fragments))
        fragments = np.ascontiguousarray(fragments, dtype=np.int64)
        if not self._library.ordinary_send(
            self._address, fragments.ctypes.data, len(fragments), made.ctypes.data, due
        ):
            return None
        return made, self._state.log_next


class OrdinarySums(_Pass):
    """What a server does with ordinary sums, whose results it sends to all."""

    _struct = _Server
    _pointers = _SERVER_POINTERS
    _constants = _SERVER_CONSTANTS

    def take(self, frames: Frames, now: float, **scalars: int) -> tuple[Frames, int] | None:
        """Process sums (n, length); return the results they complete, and how many wrapped around.

        None, and nothing is taken in, if they are not ordinary. `scalars`: as for `Ordinary.look`.
        """
        if not self._batch(frames, scalars):
            return None
        assert self._library is not None
        if not self._library.ordinary_look_at_sums(self._address, *self._frames):
            return None
        self._state.now = now
        made = self._room(len(frames))
        self._library.ordinary_take_sums(self._address, *self._frames, made.ctypes.data)
        return made[: self._state.completed], self._state.overflowed
