"""The source of a job whose tensors come from a process of the host, such as a PyTorch training."""

from __future__ import annotations

import contextlib
import socket
import threading

import numpy as np

from collectives.plan import JobPlan
from host_agent.io.process_socket import (
    ANSWER,
    CODES,
    GOODBYE,
    HEAD,
    REFUSAL,
    TYPES,
    WORKERS,
    receive,
    socket_name,
)
from host_agent.segment import Tensor
from host_agent.workload import Judged, Verdict
from protocol.errors import OperationError


class ProcessGone(OperationError):
    """The process ended without a word, or says what is no tensor; names host and job."""


class _Unjudged(Judged):
    """Only the processes know what they summed."""

    def cut_as(self, plan: JobPlan) -> None:
        """Nothing is compared."""

    def verdict(self) -> Verdict:
        """Nothing is compared."""
        return Verdict()


class ProcessTensors:
    """Takes tensors from one process on host `host`, and gives it their sums (`Handover`).

    All processes of the job hand in tensors of the same lengths and types in the same order. Calls
    but `close` may wait, each in one thread at a time.
    """

    def __init__(self, host: str, job: int, workers: int) -> None:
        self.workload = _Unjudged()
        self._what = f"job {job}: the process on {host}"
        self._end = f"the job has ended at {host}; `hopsum job {job}` says why"
        self._workers = workers
        self._name = socket_name(host, job)
        self._server = socket.socket(socket.AF_UNIX)
        self._process: socket.socket | None = None
        self._changing = threading.Lock()
        self._answering = threading.Lock()
        self._closed = False

    def prepare(self) -> None:
        """Listen. Raises OSError if another agent does in the same namespace."""
        self._server.bind(self._name)
        self._server.listen(1)

    def first(self) -> tuple[str, Tensor] | None:
        """Wait for the process and its first tensor. Raises ProcessGone."""
        process, _ = self._server.accept()
        # One process a host: to others it is as if no agent were here.
        self._server.close()
        with self._changing:
            self._process = process
            if self._closed:
                self._refuse()
        try:
            process.sendall(WORKERS.pack(self._workers))
        except OSError:
            raise ProcessGone(f"{self._what} is gone") from None
        return self._next(process)

    def after(self, name: str, result: Tensor) -> tuple[str, Tensor] | None:
        """Give a sum; wait for the next tensor. Raises ProcessGone."""
        process = self._process
        assert process is not None
        try:
            with self._answering:
                process.sendall(HEAD.pack(ANSWER, result.size))
                process.sendall(np.ascontiguousarray(result).data.cast("B"))
        except OSError:
            raise ProcessGone(f"{self._what} is gone") from None
        return self._next(process)

    def _next(self, process: socket.socket) -> tuple[str, Tensor] | None:
        try:
            code, size = HEAD.unpack(receive(process, HEAD.size))
            if code == GOODBYE:
                return None
            if code not in TYPES:
                raise ProcessGone(
                    f"{self._what} sends {code}; expected one of {sorted(CODES.values())}, the "
                    "types of tensors"
                )
            return "", np.frombuffer(receive(process, size * TYPES[code].itemsize), TYPES[code])
        except (EOFError, OSError):
            raise ProcessGone(f"{self._what} is gone, without a goodbye") from None

    def close(self) -> None:
        """End; a process that waits for a sum gets an error."""
        with self._changing:
            self._closed = True
            with contextlib.suppress(OSError):
                self._server.shutdown(socket.SHUT_RDWR)
            self._server.close()
            self._refuse()

    def _refuse(self) -> None:
        process = self._process
        if process is None:
            return
        reason = self._end.encode()
        with contextlib.suppress(OSError):
            # Never in the middle of a sum: it would be taken for values.
            if self._answering.acquire(blocking=False):
                process.sendall(HEAD.pack(REFUSAL, len(reason)) + reason)
            process.shutdown(socket.SHUT_RDWR)
