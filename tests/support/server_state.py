"""What a compiled server keeps."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hopsum.host_agent.c_structures import c_fields
from hopsum.host_agent.server import Server
from hopsum.protocol.wire import LANE_BYTES


class Finished(ctypes.Structure):
    """`struct finished` of datapath/server.h."""

    _fields_ = c_fields("datapath/server.h", "finished")


def finished_at(server: Server) -> Iterator[tuple[int, NDArray[np.int32]]]:
    """The fragments in a server's history, and their lanes."""
    state = server.state
    size = LANE_BYTES * state.lanes
    for slot in range(state.window):
        fragment: int = Finished.from_address(
            state.finished + slot * ctypes.sizeof(Finished)
        ).fragment
        if fragment >= 0:
            lanes = ctypes.string_at(state.finished_lanes + slot * size, size)
            yield fragment, np.frombuffer(lanes, ">i4").astype(np.int32)
