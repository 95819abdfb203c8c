"""A tree with its root at a worker's host: its stream and server, joined (datapath/root.c)."""

from __future__ import annotations

import copy
import ctypes
from typing import Any, Self

import numpy as np

from hopsum.host_agent.c_structures import c_fields
from hopsum.host_agent.codec import Frames
from hopsum.host_agent.datapath.library import NESTED, ROOM, Output, library, receive, shared_output
from hopsum.host_agent.server import Server
from hopsum.host_agent.stream import Stream
from hopsum.host_agent.sure_calls import SureCalls


class _State(ctypes.Structure):
    """`struct root` of root.c."""

    _fields_ = c_fields("datapath/root.c", "root", NESTED)


class Root:
    """Stream and server of one tree of a job, at the host with the MAC address `address`.

    What one sends to the other, the other takes at once.
    """

    def __init__(self, stream: Stream, server: Server, address: bytes) -> None:
        self.stream = stream
        self.server = server
        self._mac = np.frombuffer(address, np.uint8)
        self._join()

    def _join(self) -> None:
        self._up, self._down = Output(2 * self.stream.most_output), Output(self.server.most_output)
        self._state = _State(
            stream=self.stream.address,
            server=self.server.address,
            address=self._mac.ctypes.data,
            up=self._up.begin(whole=True),
            down=self._down.begin(whole=True),
        )
        self._address = ctypes.addressof(self._state)
        self.stream.junction = self
        self.server.joined = True
        self._number()

    def _number(self) -> None:
        """Take the worker's numbers from the plan of its stream."""
        stream = self.stream
        self._state.worker = stream.worker
        self._state.child = stream.tree.up[stream.worker][0].child

    def adopt(self, now: float) -> list[Frames]:
        """Go on under a new epoch, which stream and server have; return frames to send."""
        self._number()
        sent: list[Frames] = []
        position = 0 if self.server.repeats_history else -1
        while position >= 0:
            position = library().server_send_history(self.server.address, position, self.down)
            sent += self.exchange(now)
        self.stream.settle()
        return sent

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copied = object.__new__(type(self))
        memo[id(self)] = copied
        copied._mac = self._mac
        copied.stream = copy.deepcopy(self.stream, memo)
        copied.server = copy.deepcopy(self.server, memo)
        copied._join()
        return copied

    @property
    def up(self) -> int:
        """The address of the output for frames of the stream."""
        return ctypes.addressof(self._up.rows)

    @property
    def down(self) -> int:
        """The address of the output for frames of the server."""
        return ctypes.addressof(self._down.rows)

    def exchange(self, now: float) -> list[Frames]:
        """Deliver what waits; return the frames to send, each batch of one length."""
        sent: list[Frames] = []
        done = False
        while not done:
            output = shared_output(ROOM)
            done = library().root_exchange(self._address, now, output.begin(whole=False))
            sent += output.take()
        return sent

    def receive(self, frames: Frames, now: float) -> list[Frames]:
        """Process frames (n, length) from the network; return those to send."""
        sent = receive(library().root_receive, self._address, frames, now, ROOM)
        sent += self.exchange(now)
        self.stream.settle()
        return sent

    def enter(self, calls: SureCalls | None) -> int:
        """Leave frames and timers to a flow (flow.h) until `leave`; return its address."""
        self.stream.enter(calls)
        library().root_enter(self._address, None if calls is None else calls.address)
        return self._address

    def leave(self, now: float) -> tuple[int, list[Frames]]:
        """Take over what the flow has done; return the bytes it has sent, and frames to send."""
        sent = int(self._state.flow.sent_bytes)
        self._state.flow.sent_bytes = 0
        left = self.exchange(now)
        self.stream.settle()
        return sent, left
