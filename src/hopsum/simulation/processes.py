"""Processes that hand tensors to an agent, without processes: each end of their sockets in turn.

The sockets are real ones (socketpair), and so are the agent's end of them and the memory that both
share. What one end says is there for the other at once; nothing here waits, or knows the time.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopsum.host_agent.io.process_connection import MESSAGE_BYTES
from hopsum.host_agent.io.process_socket import ProcessSocket
from hopsum.host_agent.numbers import exponent_codes
from hopsum.host_agent.process_calls import BARRIER, CALL, DONE, SUM, CallPacket

Message = dict[str, Any]


class Process:
    """A process's end of a socket of its agent (docs/agent-socket.md)."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.socket.setblocking(False)
        self.ends: dict[int, str] = {}
        """Of each call that has ended `done`, or why there is no result."""
        self.memories: list[NDArray[np.uint8]] = []
        self._number = 0

    def say(self, message: Message, *descriptors: int) -> None:
        """Send a message; nothing happens if nobody is there any more."""
        self._send(json.dumps(message).encode(), *descriptors)

    def share(self, size: int) -> None:
        """Share another memory, of some bytes."""
        descriptor = os.memfd_create("memory", os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        number = len(self.memories)
        self.say({"kind": "memory", "memory": number, "bytes": size}, descriptor)
        with os.fdopen(descriptor, "r+b") as file:
            self.memories.append(np.memmap(file, np.uint8))

    def barrier(self) -> int:
        """Call for a barrier; return the call's number."""
        return self._call(CallPacket(BARRIER, *[0] * 9))

    def call(self, packet: CallPacket, values: NDArray[Any]) -> int:
        """Make a call of values, in the memory of its packet; return its number."""
        self.memories[packet.memory][: values.nbytes] = values.view(np.uint8)
        magnitude = 0
        if packet.kind == SUM and not packet.reduction:
            magnitude = magnitude_of(values)
        return self._call(packet._replace(elements=len(values), magnitude=magnitude))

    def _call(self, packet: CallPacket) -> int:
        number, self._number = self._number, self._number + 1
        self._send(CALL.pack(*packet._replace(number=number)))
        return number

    def _send(self, data: bytes, *descriptors: int) -> None:
        try:
            socket.send_fds(self.socket, [data], descriptors)
        except (BrokenPipeError, ConnectionResetError):
            return

    @property
    def all_ended(self) -> bool:
        """Whether all its calls have ended."""
        return len(self.ends) == self._number

    def hear(self) -> list[Message]:
        """Take in the agent's messages; return them, those of results as `done`.

        The last one is `closed` if the connection is.
        """
        heard: list[Message] = []
        while True:
            try:
                data = self.socket.recv(MESSAGE_BYTES)
            except BlockingIOError:
                return heard
            except ConnectionResetError:
                data = b""
            if not data:
                return [*heard, {"kind": "closed"}]
            if data[0] == DONE:
                message: Message = {"kind": "done", "call": int.from_bytes(data[8:], "little")}
            else:
                message = json.loads(data)
            match message["kind"]:
                case "done":
                    self.ends[message["call"]] = "done"
                case "failed":
                    self.ends[message["call"]] = f"{message['why']} {message['whose']}"
            heard.append(message)


def magnitude_of(values: NDArray[Any]) -> int:
    """Return the magnitude of the values of a sum, as in its packet."""
    if values.dtype == np.int32:
        return int(np.abs(values.astype(np.int64)).max())
    finite = np.where(np.isfinite(values), values, np.float32(0))
    return int(exponent_codes(finite, len(values), "")[0])


class ProcessDoor:
    """Where the processes of a virtual host meet its agent: connected by pairs of sockets."""

    def __init__(self, host: str) -> None:
        self._inside, self._outside = select.poll(), select.poll()
        self._wake: dict[int, Callable[[], None]] = {}
        self.socket = ProcessSocket(
            host,
            "",
            _submit,
            lambda descriptor: self._inside.register(descriptor, select.POLLIN),
            self._inside.unregister,
        )

    def connect(self, wake: Callable[[], None]) -> socket.socket:
        """Return a process's end of a new connection; `wake`: called when it may have news."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._outside.register(theirs, select.POLLIN)
        self._wake[theirs.fileno()] = wake
        self.socket.accept(ours)
        return theirs

    def disconnect(self, process: socket.socket) -> None:
        """Close a process's end."""
        self._outside.unregister(process)
        del self._wake[process.fileno()]
        process.close()

    def turn(self) -> bool:
        """Let the agent's end take what is there; return whether there was anything."""
        ready = {descriptor for descriptor, _ in self._inside.poll(0)}
        if ready:
            self.socket.turn(ready)
        return bool(ready)

    def wake(self) -> None:
        """Wake the processes that have news, in the order in which they came."""
        news = {descriptor for descriptor, _ in self._outside.poll(0)}
        for wake in [wake for descriptor, wake in self._wake.items() if descriptor in news]:
            wake()


def _submit(name: str, ranks: Sequence[str], *, immediate: bool, user: int) -> int:
    raise AssertionError(f"job {name}: virtual processes attend jobs that others submit")
