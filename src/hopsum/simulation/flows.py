"""The port's loop over flows (`packet_run` of host_agent/io/mmsg.c), in virtual time."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from itertools import groupby

import numpy as np

from hopsum.host_agent.codec import JOB_START, TREE_AT, Frames
from hopsum.host_agent.datapath import library
from hopsum.host_agent.datapath.library import STRIDE, Flow, shared_output
from hopsum.host_agent.io.loop import Machine
from hopsum.host_agent.timeout import earliest

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
    function = RECEIVE(flow.receive)
    return library.receive(function, address, rows[:, :length], now, flow.most_output)


def tick(address: int, now: float) -> list[Frames]:
    """Let a flow do what is due; return what it sends."""
    flow = Flow.from_address(address)
    output = shared_output(flow.most_output)
    TICK(flow.tick)(address, now, output.begin(whole=False))
    return output.take()


def call(address: int, now: float) -> tuple[bool, list[Frames]]:
    """Let a flow take a call of a process; return whether there was one, and what is sent."""
    flow = Flow.from_address(address)
    output = shared_output(flow.most_output)
    taken = CALL(flow.call)(address, now, output.begin(whole=False))
    return bool(taken), output.take()


class VirtualPort:
    """The flows of a machine, between one `enter` and its `leave`; what they send is kept.

    The world lets them take frames and their timers (`World.flush`); at a host with processes that
    does `run`.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._flows: dict[int, int] | None = None
        """Addresses by job << 8 | tree, None while there are no flows."""
        self._output: list[Frames] = []
        self.called = 0
        """Calls of processes that flows have taken."""

    @property
    def runs(self) -> bool:
        """Whether frames are left to flows."""
        return self._flows is not None

    @property
    def deadline(self) -> float | None:
        """When timers of flows are due."""
        dues = (
            []
            if self._flows is None
            else [Flow.from_address(at).due for at in self._flows.values()]
        )
        return earliest(*[due for due in dues if due < np.inf])

    def run(self, frames: Frames, now: float, *, calls: bool = False) -> Frames | None:
        """Let flows take frames (n, length), their timers, and `calls` that wait at sockets.

        Return None if they go on; else they have ended, and the frames returned are left.
        """
        flows = self.enter()
        taken, finished = 0, False
        for key, count in _runs(frames):
            if key not in flows:
                break
            at = flows[key]
            self._send(at, receive(at, frames[taken : taken + count], now))
            taken += count
            finished |= bool(Flow.from_address(at).finished)
        called = False
        for at in flows.values():
            flow = Flow.from_address(at)
            if calls and flow.call:
                made, output = call(at, now)
                self._send(at, output)
                self.called += made
                called |= made
                finished |= made and bool(flow.finished)
            if flow.tick and flow.due <= now:
                self._send(at, tick(at, now))
                finished |= bool(flow.finished)
        if taken == len(frames) and not finished and called == calls:
            return None
        self.leave(now)
        return frames[taken:]

    def enter(self) -> dict[int, int]:
        """Leave frames and timers to flows; return their addresses by job << 8 | tree."""
        if self._flows is None:
            addresses = self._machine.enter()
            self._flows = {Flow.from_address(at).key: at for at in addresses}
        return self._flows

    def leave(self, now: float) -> None:
        """End the flows, if there are any."""
        if self._flows is not None:
            self._flows = None
            self._machine.leave(now)

    def take_output(self) -> list[Frames]:
        """Return what flows have sent."""
        taken, self._output = self._output, []
        return taken

    def _send(self, address: int, output: list[Frames]) -> None:
        Flow.from_address(address).sent_bytes += sum([batch.nbytes for batch in output])
        self._output += output


def _runs(frames: Frames) -> Iterator[tuple[int, int]]:
    """Yield job << 8 | tree of frames that follow each other, and their number."""
    if not TREE_AT < frames.shape[1] <= STRIDE:
        keys = [-1] * len(frames)
    else:
        keys = [int.from_bytes(row.tobytes(), "big") for row in frames[:, JOB_START : TREE_AT + 1]]
    for key, group in groupby(keys):
        yield key, len([*group])
