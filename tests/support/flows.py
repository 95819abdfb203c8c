"""Flows as a port drives them, in steps of virtual time."""

from __future__ import annotations

import ctypes

import numpy as np

from hopsum.host_agent.codec import Frames
from hopsum.host_agent.datapath.library import STRIDE, Flow, Output

RECEIVE = ctypes.CFUNCTYPE(
    ctypes.c_uint32,
    *[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64],
    *[ctypes.c_double, ctypes.c_void_p],
)
TICK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_double, ctypes.c_void_p)
CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_double, ctypes.c_void_p)


def receive(address: int, frames: Frames, now: float) -> list[Frames]:
    """Give a flow frames (n, length) of its tree; return what it sends."""
    count, length = frames.shape
    rows = np.zeros((count, STRIDE), dtype=np.uint8)
    rows[:, :length] = frames
    flow = Flow.from_address(address)
    sent: list[Frames] = []
    taken = 0
    while taken < count:
        output = Output(flow.most_output)
        at = rows.ctypes.data + taken * STRIDE
        more = RECEIVE(flow.receive)(
            address, at, count - taken, length, STRIDE, now, output.begin(whole=False)
        )
        assert more or output.rows.made
        taken += more
        sent += output.take()
    return sent


def tick(address: int, now: float) -> list[Frames]:
    """Let a flow do what is due; return what it sends."""
    flow = Flow.from_address(address)
    output = Output(flow.most_output)
    TICK(flow.tick)(address, now, output.begin(whole=False))
    return output.take()


def call(address: int, now: float) -> tuple[bool, list[Frames]]:
    """Let a flow take a call of a process; return whether there was one, and what is sent."""
    flow = Flow.from_address(address)
    output = Output(flow.most_output)
    taken = CALL(flow.call)(address, now, output.begin(whole=False))
    return bool(taken), output.take()
