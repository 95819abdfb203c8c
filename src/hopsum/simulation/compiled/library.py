"""The compiled virtual network: its constants, functions and structures."""

from __future__ import annotations

import ctypes
from functools import cache, partial
from socket import IPPROTO_TCP, IPPROTO_UDP
from typing import Any

from hopsum.host_agent.c_library import CLibrary, program_of
from hopsum.host_agent.c_structures import c_fields
from hopsum.host_agent.datapath.library import CONSTANTS
from hopsum.protocol.tos import LEVELS, UDP_PORT
from hopsum.protocol.wire import ETHERNET_BYTES, ETHERTYPE_IPV4, VERSION

PACKAGE = "hopsum.simulation.compiled"
QUEUE_FRAMES = 1000
"""Frames that a sender's queue holds: Linux's default txqueuelen."""
DOWN, COMPILED, PYTHON = range(3)
"""What does a node's work (nodes.c)."""
LEFT, LOST, ENTERED, ENTERED_DEAD, HANDLED = range(5)
"""What happens to frames (links.c)."""
_CONSTANTS = {
    **CONSTANTS,
    "ETHERTYPE": ETHERNET_BYTES - 2,
    "ETHERTYPE_IPV4": ETHERTYPE_IPV4,
    "PROTOCOL": ETHERNET_BYTES + 9,
    "TARGET_PORT": ETHERNET_BYTES + 22,
    "TCP_PROTOCOL": int(IPPROTO_TCP),
    "UDP_PROTOCOL": int(IPPROTO_UDP),
    "UDP_PORT": UDP_PORT,
    "VERSION": VERSION,
    "LEVELS": LEVELS,
    "QUEUE_FRAMES": QUEUE_FRAMES,
}
_AT, _INT, _TIME, _BYTES = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double, ctypes.c_char_p
_U32, _U64 = ctypes.c_uint32, ctypes.c_uint64
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "events_at": (_U64, _AT, _TIME),
    "events_next": (_TIME, _AT),
    "events_run": (_INT, _AT, _U64, _TIME),
    "events_free": (None, _AT),
    "world_create": (_AT, _AT, _AT),
    "world_free": (None, _AT),
    "world_use": (None, _AT, _AT),
    "frame_priority": (_U32, _BYTES, _U32),
    "world_deliver": (None, _AT, _TIME, _AT, _U32, _BYTES, _U32),
    "world_left": (_U64, _AT),
    "world_describe": (None, _AT, _AT, _AT, _AT),
    "world_taken": (None, _AT),
    "node_create": (_AT, _AT, _U32),
    "node_free": (None, _AT),
    "channel_create": (_AT, _AT, _U32, _AT, ctypes.c_int),
    "channel_free": (None, _AT),
    "channel_transmit": (None, _AT, _BYTES, _U32),
    "switch_forget": (None, _AT),
    "host_add_route": (None, _AT, _INT, _AT),
    "host_forget_trees": (None, _AT, _INT),
    "host_add_tree": (None, _AT, _INT, _AT),
    "host_send": (None, _AT, _AT, _U64, _U32, _U64, ctypes.c_int),
    "host_plan": (None, _AT, _TIME),
    "host_unplan": (None, _AT),
}
"""Types of the result of each function, and of its arguments."""


def network() -> CLibrary:
    """Return the program."""
    files = [f"host_agent/datapath/{name}" for name in ("flow.h", "frames.h")]
    compiled = ("events.c", "queues.c", "links.c", "nodes.c")
    files += [f"simulation/compiled/{name}" for name in compiled]
    return CLibrary(PACKAGE, "network", program_of(_CONSTANTS, files), _FUNCTIONS)


@cache
def library() -> ctypes.PyDLL:
    """Return the compiled virtual network. Raises NoCompilerError."""
    return network().load()


_fields = partial(c_fields, package=PACKAGE)


class Events(ctypes.Structure):
    """`struct events` of events.c."""

    _fields_ = _fields("events.c", "events")


class WorldView(ctypes.Structure):
    """`struct world_view` of links.c."""

    _fields_ = _fields("links.c", "world_view")


class NodeView(ctypes.Structure):
    """`struct node_view` of nodes.c."""

    _fields_ = _fields("nodes.c", "node_view")


class ChannelView(ctypes.Structure):
    """`struct channel_view` of links.c."""

    _fields_ = _fields("links.c", "channel_view")


OBSERVE = ctypes.CFUNCTYPE(
    None, ctypes.c_int, _TIME, _INT, _INT, ctypes.POINTER(ctypes.c_uint8), _U32
)
"""Type of `observe` of a world."""
