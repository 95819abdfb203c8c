"""What a port's `run` does with the flows of a machine, in steps of virtual time."""

from __future__ import annotations

import ctypes
from itertools import compress
from operator import not_

import numpy as np

from hopsum.host_agent.codec import JOB_START, TREE_AT, Frames, group_by_length, tos_of
from hopsum.host_agent.datapath.library import Flow
from hopsum.host_agent.io.loop import Machine
from hopsum.protocol.tos import URGENT

_STRIDE = 2048
PROCESS = ctypes.CFUNCTYPE(
    ctypes.c_uint32,
    *[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64],
    *[ctypes.c_double, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p],
)
CALL = ctypes.CFUNCTYPE(
    ctypes.c_int,
    *[ctypes.c_void_p, ctypes.c_double, ctypes.c_void_p, ctypes.c_uint64],
    *[ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p],
)
EXPIRE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_double)


def receive(
    machine: Machine, frames: Frames, now: float, output: list[Frames], room: int = 512
) -> int:
    """Give frames (n, length) of one tree to the machine's flow, and what it leaves to the machine.

    Adds what both send to `output`, where urgent frames overtake others. Returns how many frames
    the flow has processed.
    """
    flows = {Flow.from_address(each).key: each for each in machine.enter()}
    address = flows.get(int.from_bytes(frames[0, JOB_START : TREE_AT + 1].tobytes(), "big"))
    taken = 0
    while address is not None and taken < len(frames):
        done, made = process(address, frames[taken:], now, room)
        if not done:
            break
        taken += done
        output += made
    machine.leave(now)
    if taken < len(frames):
        machine.receive(frames[taken:], now)
    left = machine.take_output()
    urgent = [bool(tos_of(each)[0] & URGENT) for each in left]
    output[:0] = compress(left, urgent)
    output += compress(left, map(not_, urgent))
    return taken


def process(address: int, frames: Frames, now: float, room: int) -> tuple[int, list[Frames]]:
    """Give a flow frames (n, length); return how many it processes, and what it sends."""
    count, length = frames.shape
    rows = np.zeros((count, _STRIDE), dtype=np.uint8)
    rows[:, :length] = frames
    out, lengths = np.zeros((room, _STRIDE), np.uint8), np.zeros(room, np.uint32)
    made = ctypes.c_uint32()
    taking = PROCESS(Flow.from_address(address).process)
    where = out.ctypes.data, lengths.ctypes.data, room, ctypes.addressof(made)
    done = taking(address, rows.ctypes.data, count, length, _STRIDE, now, *where)
    if not done:
        assert not made.value
        np.testing.assert_array_equal(rows[:, :length], frames, "left whole")
    return done, group_by_length(out[: made.value], lengths[: made.value])


def expire(machine: Machine, now: float) -> int:
    """Let the flows of a machine do what is due; return how many had nothing left to do."""
    done = 0
    for address in machine.enter():
        flow = Flow.from_address(address)
        if flow.due <= now and flow.expire:
            done += EXPIRE(flow.expire)(address, now)
    machine.leave(now)
    return done
