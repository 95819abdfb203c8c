"""One process at an agent's socket: its messages, the memories that it shares, and its calls."""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import select
import socket
import stat
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopsum.host_agent.io.socket_peers import peer_of
from hopsum.host_agent.process_calls import (
    ALL,
    BARRIER,
    COPY,
    FAULTS,
    PARTS,
    PASSED,
    REDUCTIONS,
    ROOT,
    TYPES,
    CallPacket,
    Mailbox,
    read_call,
)
from hopsum.protocol.errors import OperationError

MESSAGE_BYTES = 1 << 17
MOST_REQUESTS = 4096
"""Maximum number of pending calls of one process, and of messages that it has not read."""
MOST_OPEN = 1 << 14
"""Maximum number of calls of one process without an end, wherever they wait."""
MOST_ELEMENTS = (1 << 31) - 1
"""Maximum elements of a call: the words of checks are int32."""

Message = dict[str, Any]


class RefusedMessage(OperationError):
    """Invalid message of a process; the text is for the process."""


@dataclass(frozen=True, eq=False, slots=True)
class Request:
    """A call of a process. `kind`: sum, copy, barrier, leave.

    `tensor`: in memory that the process shares, of one of TYPES, flat; its sum goes to the same
    place. `magnitude`: of a sum; no int32 element is further from 0, and no float32 element has a
    higher exponent byte (`hopsum.host_agent.numbers`), of the finite ones where others are PASSED.
    `fault`: what is wrong with an element, one of FAULTS, and its index. `reduction`: one of
    REDUCTIONS. `target`: ALL, PARTS or from ROOT on, of a sum the ranks that it is for, of a copy
    those whose values all get. `type`: one of TYPES; empty: that of the tensor.
    """

    kind: str
    call: int = -1
    tensor: NDArray[Any] | None = None
    magnitude: int = 0
    fault: tuple[str, int] | None = None
    reduction: str = "sum"
    target: int = ALL
    type: str = ""

    @property
    def named_type(self) -> str:
        """Return the name of the type of the elements."""
        assert self.tensor is not None
        return self.type or self.tensor.dtype.name


class ProcessConnection:
    """One process. `user`: its user id. `left`: it has left. `ranks`: of its job, once started.

    `exit`: a descriptor that is readable once it has ended, if the kernel gives one.
    `ending`: it will be disconnected once it has been told why. `full`: watches for room in it.
    """

    def __init__(self, connected: socket.socket, full: select.epoll) -> None:
        process, self.user = peer_of(connected)
        self.exit = _exit_of(process)
        self.requests: list[Request] = []
        self.open_calls = 0
        """Number of its calls that have not ended, but for those that flows take."""
        self.waiting = 0
        """Number of jobs that are being submitted for it."""
        self.gone = self.left = self.ending = False
        self.ranks = 0
        self._full = full
        self._unsent: deque[bytes] = deque()
        """Messages that wait for room in its socket."""
        self.mailbox = Mailbox(connected.fileno())
        self._socket = connected
        self._memories: dict[int, NDArray[np.uint8]] = {}
        self._descriptors: list[int] = []

    @property
    def shared(self) -> int:
        """Number of memories that it shares."""
        return len(self._memories)

    @property
    def shared_bytes(self) -> int:
        """Bytes of these."""
        return sum(map(len, self._memories.values()))

    def receive(self) -> Message | CallPacket | None:
        """Return the next message, None if there is none now. Raises EOFError, RefusedMessage."""
        try:
            data, descriptors, flags, _ = socket.recv_fds(self._socket, MESSAGE_BYTES, 4)
        except BlockingIOError:
            return None
        self._descriptors += descriptors
        if not data:
            raise EOFError
        call = read_call(data)
        if call is not None:
            self._check_descriptors(None)
            return call
        try:
            if flags & socket.MSG_TRUNC:
                raise ValueError(f"longer than {MESSAGE_BYTES} bytes")
            message = json.loads(data.decode())
            if not isinstance(message, dict):
                raise ValueError("no object")
        except (ValueError, RecursionError) as error:
            raise RefusedMessage(
                f"message {data[:40]!r}: {error}; expected a JSON object, or a call"
            ) from None
        self._check_descriptors(message.get("kind"))
        return message

    def _check_descriptors(self, kind: object) -> None:
        """Refuse descriptors that no message of this kind has; `close` closes them."""
        count = len(self._descriptors)
        if count > (kind == "memory"):
            raise RefusedMessage(f"{count} descriptors: expected none, or one with memory")

    def say(self, message: Message) -> None:
        """Send a message; one that never reads is disconnected."""
        self.send(json.dumps(message).encode())

    def send(self, data: bytes) -> None:
        """Send a packet as `say` does, without waiting: what does not fit is kept for `flush`."""
        if self.gone or self.ending:
            return
        if self._unsent or not self._sent(data):
            if len(self._unsent) >= MOST_REQUESTS:
                self._shutdown()
                return
            if not self._unsent:
                self._full.register(self._socket, select.EPOLLOUT)
            self._unsent.append(data)

    def flush(self) -> None:
        """Send what has been waiting for room."""
        while self._unsent and self._sent(self._unsent[0]):
            self._unsent.popleft()
        if not self._unsent:
            self._full.unregister(self._socket)
            if self.ending:
                self._shutdown()

    def _sent(self, data: bytes) -> bool:
        """Send a packet if there is room; return whether there was, or nobody to read it."""
        try:
            self._socket.send(data)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def map_memory(self, number: int, most: int) -> None:
        """Map the memory of a received descriptor, of at most `most` bytes.

        Raises RefusedMessage.
        """
        if len(self._descriptors) != 1 or number in self._memories:
            raise RefusedMessage(
                f"memory {number}: {len(self._descriptors)} descriptors received; expected one, "
                "and an unused number"
            )
        descriptor = self._descriptors.pop()
        try:
            status = os.fstat(descriptor)
            # What can shrink while it is mapped can end the agent with SIGBUS.
            sealed = stat.S_ISREG(status.st_mode) and (
                fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
            )
            if not sealed or not status.st_size:
                raise ValueError("it can shrink, or is empty")
            if status.st_size > most:
                raise ValueError(f"{status.st_size} bytes, and {most} are left to its user")
            # So can what has huge pages: a hole gives them back, and others may take them.
            if os.fstatvfs(descriptor).f_bsize != mmap.PAGESIZE:
                raise ValueError("it has huge pages")
            mapped = mmap.mmap(descriptor, status.st_size)
        except (OSError, ValueError) as error:
            raise RefusedMessage(
                f"memory {number}: {error}; expected a memfd sealed with F_SEAL_SHRINK"
            ) from None
        finally:
            os.close(descriptor)
        memory = self._memories[number] = np.frombuffer(mapped, np.uint8)
        self.mailbox.add(number, memory)

    def called(self, call: CallPacket) -> None:
        """Add a call to the requests. Raises RefusedMessage."""
        if len(self.requests) >= MOST_REQUESTS or self.open_calls >= MOST_OPEN:
            raise RefusedMessage(
                f"{self.open_calls} calls are pending; expected no more before some have ended"
            )
        self.requests.append(self.request(call))
        self.open_calls += 1

    def request(self, call: CallPacket) -> Request:
        """Return the request that a call is. Raises RefusedMessage."""
        number = call.number
        if call.kind == BARRIER:
            return Request("barrier", number)
        kind = "copy" if call.kind == COPY else "sum"
        named = "int32" if call.kind == COPY else call.named_type
        memory = self._memories.get(call.memory)
        if named is None:
            raise RefusedMessage(
                f"call {number}: type {call.type}: expected 0 to {len(TYPES) - 1}: "
                f"{', '.join(TYPES)}"
            )
        dtype = TYPES[named]
        if memory is None or call.elements * dtype.itemsize > len(memory):
            size = "none of that number" if memory is None else f"{len(memory)} bytes"
            raise RefusedMessage(
                f"call {number}: {call.elements} {dtype} in memory {call.memory}: there is {size}"
            )
        if call.elements > MOST_ELEMENTS:
            raise RefusedMessage(
                f"call {number}: {call.elements} elements: expected at most {MOST_ELEMENTS}"
            )
        tensor = memory[: call.elements * dtype.itemsize].view(dtype)
        if not self._is_target(kind, call):
            raise RefusedMessage(
                f"call {number}: {kind} with target {call.target}, {call.elements} elements: "
                f"expected {f'{ALL} (all), ' if kind == 'sum' else ''}{PARTS} (parts), of elements "
                f"that {self.ranks} ranks can share, or {ROOT} + one of these ranks"
            )
        if kind == "copy":
            return Request(kind, number, tensor, target=call.target)
        reduction, possible = call.named_reduction, REDUCTIONS[named]
        if reduction is None or reduction not in possible:
            raise RefusedMessage(
                f"call {number}: reduction {call.reduction} of {dtype}: expected 0 to "
                f"{len(possible) - 1}: {', '.join(possible)}"
            )
        if call.fault > len(FAULTS):
            raise RefusedMessage(
                f"call {number}: fault {call.fault}: expected 0, or 1 to {len(FAULTS)}: "
                f"{', '.join(FAULTS)}"
            )
        fault = (FAULTS[call.fault - 1], call.element) if call.fault else None
        floats = dtype == np.float32
        if fault and fault[0] == PASSED and not (floats and reduction == "sum"):
            raise RefusedMessage(
                f"call {number}: fault {call.fault} of {reduction} of {dtype}: expected a sum of "
                "float32 where values that are not finite are to be in the result"
            )
        if call.magnitude > 1 << 31 or (fault and call.element >= call.elements):
            raise RefusedMessage(
                f"call {number}: magnitude {call.magnitude}, element {call.element} of "
                f"{call.elements}: expected at most 2^31, and one of the elements"
            )
        request = kind, number, tensor, call.magnitude, fault, reduction, call.target
        return Request(*request, named)

    def _is_target(self, kind: str, call: CallPacket) -> bool:
        """Return whether a call's target is possible for its number of elements."""
        if call.target == ALL:
            return kind == "sum"
        if call.target == PARTS:
            return self.ranks > 0 and not call.elements % self.ranks
        return call.target - ROOT < self.ranks

    def end(self, why: str) -> None:
        """Send the reason for the end, and shut down once everything is sent."""
        self.say({"kind": "ended", "why": why})
        self.ending = True
        self.mailbox.open = False
        if not self._unsent:
            self._shutdown()

    def _shutdown(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it; memory is released with the last pending call."""
        self.gone = True
        self.mailbox.open = False
        if not self.ranks:
            # Nobody waits for calls of a job that has not begun, and they keep memory.
            self.requests = [each for each in self.requests if each.kind == "leave"]
        if self._unsent:
            self._full.unregister(self._socket)
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._memories.clear()
        self._socket.close()
        if self.exit is not None:
            os.close(self.exit)


def _exit_of(process: int) -> int | None:
    """Return a descriptor that is readable once a process has ended (pidfd_open(2)).

    Its socket is not where it has forked others, which have it too. None for a process in a
    namespace where it has no number here, and where descriptors are short.
    """
    try:
        return os.pidfd_open(process)
    except OSError:
        return None
