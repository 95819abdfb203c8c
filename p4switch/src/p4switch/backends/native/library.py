"""The compiled switch's functions with ctypes signatures; calls release the GIL."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int64, c_uint16, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from p4switch.packet_io.receive_ring import RingState


class BatchResult(ctypes.Structure):
    """control.h, batch_result."""

    _fields_ = (
        ("count", c_uint64),
        ("bytes", c_uint64),
        ("data", c_void_p),
        ("offsets", c_void_p),
        ("lengths", c_void_p),
        ("ports", c_void_p),
    )


_WORDS = POINTER(c_uint64)
_PACKED_WORDS = c_char_p
"""Words that a function only reads, as bytes, which are passed without a copy."""

FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "create": (c_void_p, (c_uint32, c_uint32, c_uint32, c_uint32, c_uint32, c_uint64)),
    "destroy": (None, (c_void_p,)),
    "process": (
        c_int,
        (
            c_void_p,
            c_uint32,
            c_void_p,
            c_void_p,
            c_void_p,
            c_void_p,
            c_uint64,
            c_uint32,
            POINTER(BatchResult),
        ),
    ),
    "set_waiting": (None, (c_void_p, c_uint32, _WORDS)),
    "queue_depth": (None, (c_void_p, c_uint32, c_uint32, c_uint32)),
    "queue_rate": (None, (c_void_p, c_uint32, c_uint32, c_uint32)),
    "set_crc": (
        None,
        (c_void_p, c_uint32, c_uint32, c_uint32, c_uint32, c_uint32, c_uint32, c_uint32),
    ),
    "interrupt": (None, (c_void_p,)),
    "log": (None, (c_void_p, c_uint32)),
    "table_insert": (
        c_int,
        (
            c_void_p,
            c_uint32,
            c_uint32,
            _PACKED_WORDS,
            _PACKED_WORDS,
            c_uint32,
            c_uint32,
            c_uint32,
            c_uint32,
            _PACKED_WORDS,
            c_uint64,
        ),
    ),
    "table_modify": (
        None,
        (c_void_p, c_uint32, c_uint32, c_uint32, c_uint32, c_uint32, _PACKED_WORDS),
    ),
    "table_delete": (None, (c_void_p, c_uint32, c_uint32)),
    "table_default": (None, (c_void_p, c_uint32, c_uint32, _PACKED_WORDS)),
    "entry_read": (None, (c_void_p, c_uint32, c_uint32, _WORDS)),
    "entry_count": (None, (c_void_p, c_uint32, c_uint32, c_uint64, c_uint64)),
    "entry_meter": (None, (c_void_p, c_uint32, c_uint32, POINTER(c_int64))),
    "profile_member": (c_int, (c_void_p, c_uint32, c_uint32, c_uint32, _PACKED_WORDS)),
    "profile_group": (c_int, (c_void_p, c_uint32, c_uint32, c_uint32, POINTER(c_uint32))),
    "group": (c_int, (c_void_p, c_uint32, c_uint32, POINTER(c_uint16))),
    "session": (c_int, (c_void_p, c_uint32, c_uint32, POINTER(c_uint16), c_uint32, c_uint32)),
    "register_read": (None, (c_void_p, c_uint32, c_uint64, c_uint64, c_char_p)),
    "register_write": (None, (c_void_p, c_uint32, c_uint64, c_char_p)),
    "register_fill": (None, (c_void_p, c_uint32, c_char_p)),
    "register_bytes": (c_uint32, (c_uint32,)),
    "counter_read": (None, (c_void_p, c_uint32, c_uint64, _WORDS)),
    "counter_write": (None, (c_void_p, c_uint32, c_uint64, c_uint64, c_uint64)),
    "meter": (None, (c_void_p, c_uint32, c_uint64, POINTER(c_int64))),
    "value_set": (c_int, (c_void_p, c_uint32, c_uint32, _PACKED_WORDS)),
    "take_digests": (c_uint64, (c_void_p, _WORDS, c_uint64)),
    "take_messages": (c_uint64, (c_void_p, _WORDS, c_uint64)),
    "statistics": (None, (c_void_p, _WORDS)),
    "output_create": (c_void_p, ()),
    "output_destroy": (None, (c_void_p,)),
    "loop_create": (c_void_p, (c_void_p, c_uint32)),
    "loop_destroy": (None, (c_void_p,)),
    "loop_add_port": (c_int, (c_void_p, c_uint32, c_int, POINTER(RingState))),
    "loop_run": (c_int, (c_void_p,)),
    "loop_stop": (None, (c_void_p, c_uint32)),
    "loop_inject": (c_int, (c_void_p, c_char_p, c_uint32)),
    "loop_take_cpu": (c_uint64, (c_void_p, c_void_p, POINTER(BatchResult))),
    "loop_cpu_event": (c_int, (c_void_p,)),
    "loop_clock": (c_uint64, (c_void_p,)),
    "loop_counts": (None, (c_void_p, c_uint32, _WORDS)),
    "loop_lost": (None, (c_void_p, _WORDS)),
}
"""Result and arguments of each exported function, by name without the prefix `p4_` (control.h)."""


class Library:
    """The functions as attributes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(self._library, f"p4_{name}")
            function.restype = result
            function.argtypes = arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{self.path} has no function p4_{name}")
