"""The ways a part of a tensor can be exchanged: over the plan's trees, or a schedule over TCP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Protocol

import numpy as np

from collectives.execution import Execution, channels
from collectives.schedule import Schedule
from host_agent.io.tcp_collective import BASE_PORT, TcpCollective
from host_agent.segment import Tensor
from host_agent.worker import Worker
from network.model import Network

PORTS = 8192
"""Jobs' TCP ports are the BASE_PORT and those after it, by job number and part."""

Apart = Callable[[Callable[[], Any]], int]
"""Runs work that waits for other hosts; gives the number under which it will complete."""


class Exchange(Protocol):
    """Sums one tensor at a time with the other workers of a job."""

    def begin(self, tensor: Tensor, out: Tensor, now: float) -> None:
        """Start summing `tensor` (flat) into `out`, an array like it."""

    def done(self) -> bool:
        """Whether the sum is in place; raises what ended the job."""

    @property
    def retransmissions(self) -> int:
        """Packets sent again so far."""

    def close(self) -> None:
        """Give back what it holds."""


class TreeExchange:
    """Over the trees of the plan, hop by hop in the switches."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._call: int | None = None

    def begin(self, tensor: Tensor, out: Tensor, now: float) -> None:
        """Submit a call."""
        self._call = self.worker.submit(tensor, now, out=out)

    def done(self) -> bool:
        """Whether the call is complete; JobFailed if it never will be."""
        if self._call is not None and self.worker.result(self._call) is not None:
            self._call = None
        return self._call is None

    @property
    def retransmissions(self) -> int:
        """Fragments sent again."""
        return self.worker.statistics.retransmissions

    def close(self) -> None:
        """Nothing is held."""


class ScheduleExchange:
    """By a schedule over TCP, in a thread of its own.

    `schedule`: the one for so many elements; `host` is one of the nodes that it names, a worker or
    a relay. `lengths`: of all parts it will be given, so that connections are made once. `connect`
    comes first, once the other hosts are there. `tos`: as for `mark`; `whose`: as of
    `TcpCollective`.
    """

    def __init__(
        self,
        schedule: Callable[[int], Schedule],
        network: Network,
        host: str,
        lengths: Iterable[int],
        apart: Apart,
        port: int = BASE_PORT,
        tos: int = 0,
        whose: int = 0,
    ) -> None:
        self._tos = tos
        self._whose = whose
        self._schedule = cache(schedule)
        sizes = sorted(set(lengths))
        names = self._schedule(sizes[0]).names
        self._node = names.index(host)
        self._apart = apart
        self._port = port
        self._addresses = [network.hosts[name].ip for name in names]
        self._collective: TcpCollective | None = None
        self._waits_for: int | None = None
        self._closing = threading.Lock()
        self._closed = self._busy = False
        # Rounding may make other pairs exchange for another size.
        used = [channels(self._schedule(elements), self._node) for elements in sizes]
        self._targets = list(dict.fromkeys(channel for targets, _ in used for channel in targets))
        self._sources = list(dict.fromkeys(channel for _, sources in used for channel in sources))

    def connect(self) -> None:
        """Meet the other workers, off the loop; `done` when it is."""

        def meet() -> None:
            collective = TcpCollective(
                self._node,
                self._addresses,
                targets=self._targets,
                sources=self._sources,
                port=self._port,
                whose=self._whose,
                tos=self._tos,
            )
            with self._closing:
                self._collective = collective
                # It may have changed since.
                collective.mark(self._tos)

        self._apart_until_closed(meet)

    def begin(self, tensor: Tensor, out: Tensor, now: float) -> None:
        """Run the schedule in place, on a copy in `out`; a relay's tensor is of zeros."""
        out[...] = tensor

        collective = self._collective
        assert collective is not None

        def run() -> None:
            collective.run(Execution(self._schedule(len(out)), self._node, out))

        self._apart_until_closed(run)

    def _apart_until_closed(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            finally:
                with self._closing:
                    self._busy = False
                    if self._closed:
                        self._give_back()

        self._busy = True
        self._waits_for = self._apart(guarded)

    def mark(self, tos: int) -> None:
        """Give packets this IP ToS byte from now on, whatever is under way."""
        with self._closing:
            self._tos = tos
            if self._collective is not None:
                self._collective.mark(tos)

    def completed(self, number: int) -> None:
        """Take in that a piece of work is done."""
        if number == self._waits_for:
            self._waits_for = None

    def done(self) -> bool:
        """Whether nothing is under way."""
        return self._waits_for is None

    @property
    def retransmissions(self) -> int:
        """TCP segments sent again."""
        return 0 if self._collective is None else self._collective.retransmissions

    @property
    def sent_bytes(self) -> int:
        """Bytes of tensors sent so far."""
        return 0 if self._collective is None else self._collective.sent_bytes

    def close(self) -> None:
        """Close the connections, at once or when what is under way has given up."""
        with self._closing:
            self._closed = True
            if not self._busy:
                self._give_back()
            elif self._collective is not None:
                self._collective.abort()

    def _give_back(self) -> None:
        if self._collective is not None:
            self._collective.close()
            self._collective = None


def port_of(job: int, part: int) -> int:
    """The TCP port of a job's schedule number `part`; jobs 1 and 8193 share theirs."""
    return BASE_PORT + (job - 1 + 1021 * part) % PORTS


def like(tensor: Tensor) -> Tensor:
    """Room for a tensor's sum."""
    return np.empty(tensor.shape, tensor.dtype)
