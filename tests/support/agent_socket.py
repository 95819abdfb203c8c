"""An agent's socket without the agent, and processes at it."""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hopsum.host_agent.io import process_connection
from hopsum.host_agent.io.process_socket import ProcessSocket
from hopsum.host_agent.io.socket_peers import peer_of
from hopsum.host_agent.process_calls import (
    ALL,
    BARRIER,
    CALL,
    COPY,
    DONE,
    PARTS,
    SUM,
    CallPacket,
)
from hopsum.protocol.errors import OperationError
from tests.support.machine import PATIENCE

JOB = 7
FLOAT32, INT32 = 0, 1

SUMMED = CallPacket(SUM, INT32, 0, 0, ALL, number=0, memory=0, elements=4, magnitude=1, element=0)
COPIED = SUMMED._replace(kind=COPY, target=PARTS, magnitude=0)


def barrier(number: int) -> CallPacket:
    return CallPacket(BARRIER, 0, 0, 0, 0, number, 0, 0, 0, 0)


class Host:
    """An agent's socket, and what its loop would do."""

    def __init__(self, name: str) -> None:
        self.watched: set[int] = set()
        self.submitted: list[tuple[str, list[str], bool]] = []
        self.users: list[int] = []
        self.socket = ProcessSocket(
            "h1", name, self._submit, self.watched.add, self.watched.discard
        )

    def _submit(self, name: str, ranks: Sequence[str], *, immediate: bool, user: int) -> int:
        self.users.append(user)
        if "h9" in ranks:
            raise OperationError(f"job {name}: no host h9")
        self.submitted.append((name, list(ranks), immediate))
        return JOB

    def turn(self) -> None:
        readable = select.poll()
        for descriptor in self.watched:
            readable.register(descriptor, select.POLLIN)
        self.socket.turn({descriptor for descriptor, _ in readable.poll(0)})


class Process:
    """A process of the host, by hand."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        name = host.socket.name
        self.socket.connect(f"\0{name[1:]}" if name.startswith("@") else name)
        host.turn()
        assert self.hear()["kind"] == "hello"

    def say(self, message: dict[str, Any] | bytes | CallPacket, *descriptors: int) -> None:
        if isinstance(message, CallPacket):
            message = CALL.pack(*message)
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        socket.send_fds(self.socket, [data], descriptors)
        self._host.turn()

    def submit(self, name: str, ranks: list[str]) -> None:
        self.say({"kind": "submit", "name": name, "ranks": ranks, "immediate": False})

    def hear(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        # Submissions are answered by a thread.
        while not select.select([self.socket], [], [], 0.001)[0]:
            assert time.monotonic() < deadline, "the agent says nothing"
            self._host.turn()
        data = self.socket.recv(1 << 17)
        assert data, "the agent has ended the connection"
        if data[0] == DONE:
            return {"done": data}
        message: dict[str, Any] = json.loads(data)
        return message

    def share(self, size: int, *, sealed: bool = True) -> np.ndarray[Any, np.dtype[np.uint8]]:
        descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, size)
        if sealed:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self.say({"kind": "memory", "memory": 0, "bytes": size}, descriptor)
        return np.memmap(os.fdopen(descriptor, "r+b"), np.uint8)


def attending(host: Host, *ranks: int) -> list[Process]:
    """Processes that have said which rank of the job each is."""
    processes = [Process(host) for _ in ranks]
    for process, rank in zip(processes, ranks, strict=True):
        process.say({"kind": "attend", "job": JOB, "rank": rank})
    return processes


def as_user(host: Host, user: int) -> Process:
    """A process that connects as one of another user would."""

    def peer(connected: socket.socket) -> tuple[int, int]:
        return peer_of(connected)[0], user

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(process_connection, "peer_of", peer)
        return Process(host)
