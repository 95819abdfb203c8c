"""What a process and the agent of its host say to each other: tensors in, sums out.

Over a Unix stream socket with an abstract name, so that only processes in the host's own network
namespace reach it. Any user can take that name first, so the process looks who listens: its user
or root. The agent says how many workers the job has. Then the process sends a head (what, elements)
and the tensor's bytes, the agent a head (ANSWER, elements) and the sum's bytes, and so on until the
process says GOODBYE. Instead of a sum there may be a reason (REFUSAL, bytes of text). Heads are
big-endian, tensors as they lie in memory: both ends are one machine.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import OperationError

HEAD = struct.Struct(">BQ")
WORKERS = struct.Struct(">I")
GOODBYE, ANSWER, REFUSAL = 0, 1, 2
TYPES = {3: np.dtype(np.float32), 4: np.dtype(np.int32)}
"""What a tensor's head says its elements are."""
CODES = {kind: code for code, kind in TYPES.items()}
RETRY_SECONDS = 0.1
_CREDENTIALS = struct.Struct("iII")
"""What SO_PEERCRED gives: process, user, group (unix(7))."""


class SumRefused(OperationError):
    """There is no sum, or no agent that would make one; the message says why."""


def socket_name(host: str, job: int) -> str:
    """Where the agent of a host takes tensors for a job; the first byte makes it abstract."""
    return f"\0hopsum/{host}/{job}"


def receive(sock: socket.socket, size: int) -> bytearray:
    """Exactly so many bytes; EOFError if the other end is gone before."""
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        count = sock.recv_into(rest)
        if not count:
            raise EOFError
        rest = rest[count:]
    return data


class AgentSocket:
    """A process's end: `host` is its host's name in the network, `job` the number of its job.

    `workers`: how many the job has. Raises SumRefused if no agent takes tensors of that job here
    within `timeout` seconds.
    """

    def __init__(self, host: str, job: int, timeout: float) -> None:
        self._what = f"job {job} on host {host}"
        deadline = time.monotonic() + timeout
        self._sock = socket.socket(socket.AF_UNIX)
        while True:
            try:
                self._sock.connect(socket_name(host, job))
                break
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    self._sock.close()
                    raise SumRefused(
                        f"{self._what}: no agent takes tensors within {timeout:g} s; hand the job "
                        "in with `hopsum submit --from-processes`, one process a host, and run "
                        "`hopsum-agent serve` there"
                    ) from None
                time.sleep(RETRY_SECONDS)
        self._check_agent()
        (self.workers,) = WORKERS.unpack(self._receive(WORKERS.size))

    def _check_agent(self) -> None:
        """Raise SumRefused if what listens is neither root's nor this user's."""
        data = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        process, user, _ = _CREDENTIALS.unpack(data)
        if user not in (0, os.geteuid()):
            self._sock.close()
            raise SumRefused(
                f"{self._what}: process {process} of user {user} takes the tensors, and no agent "
                "of root or of this user; end it"
            )

    def _receive(self, size: int) -> bytearray:
        try:
            return receive(self._sock, size)
        except (EOFError, ConnectionError):
            raise SumRefused(f"{self._what}: the agent is gone") from None

    def sum(self, values: NDArray[Any]) -> None:
        """Sum a flat, contiguous array (float32 or int32) over all workers, in place."""
        try:
            self._sock.sendall(HEAD.pack(CODES[values.dtype], values.size))
            self._sock.sendall(values.data.cast("B"))
        except ConnectionError:
            # What the agent said before it went can still be read.
            pass
        code, size = HEAD.unpack(self._receive(HEAD.size))
        if code == REFUSAL:
            raise SumRefused(f"{self._what}: {self._receive(size).decode()}")
        values[:] = np.frombuffer(self._receive(values.nbytes), values.dtype)

    def close(self) -> None:
        """Say that no tensor will come any more; the job ends once all processes have."""
        with contextlib.suppress(OSError):
            self._sock.sendall(HEAD.pack(GOODBYE, 0))
        self._sock.close()
