"""Exchanges of a part of a tensor: over the plan's trees, or by a schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol

import numpy as np

from hopsum.collectives.execution import Channel, Execution, channels
from hopsum.collectives.schedule import Schedule
from hopsum.host_agent.io.tcp_collective import PROGRESS_SECONDS
from hopsum.host_agent.node.environment import Environment, ScheduleGroup, Transport
from hopsum.host_agent.segment import AS_PLANNED, CallOptions, Tensor
from hopsum.host_agent.sure_calls import SureCalls
from hopsum.host_agent.worker import FlowCalls, Worker
from hopsum.network.model import Network


class Exchange(Protocol):
    """Sums tensors with the other workers of a job; `several`: concurrently."""

    several: bool

    def begin(
        self, tensor: Tensor, out: Tensor, now: float, options: CallOptions = AS_PLANNED
    ) -> int:
        """Start summing `tensor` (flat) into `out`, an array like it; return the call's number.

        `options`: over trees alone.
        """

    def done(self, call: int) -> bool:
        """Return whether the sum of a call is in place; raises the job's error."""

    @property
    def retransmissions(self) -> int:
        """Retransmitted packets so far."""


class TreeExchange:
    """Exchange over the trees of the plan, hop by hop in the switches."""

    several = True

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def begin(
        self, tensor: Tensor, out: Tensor, now: float, options: CallOptions = AS_PLANNED
    ) -> int:
        """Submit a call."""
        return self._worker.submit(tensor, now, out=out, **options._asdict())

    def expect(self, calls: SureCalls | None) -> None:
        """Let flows take a process's calls, see `Worker.expect`."""
        self._worker.expect(calls)

    def only_tree(self, elements: int) -> int | None:
        """Return the index in `plan.trees` of the tree that sums all of a tensor, if one does."""
        return self._worker.only_tree(elements)

    def taken(self) -> FlowCalls:
        """Return what flows have done with them since."""
        return self._worker.taken()

    def done(self, call: int) -> bool:
        """Return, once, whether a call is complete; JobFailed if it never will be."""
        return self._worker.result(call) is not None

    @property
    def retransmissions(self) -> int:
        """Retransmitted fragments."""
        return int(self._worker.statistics.retransmissions)


class ScheduleExchange:
    """Exchange by a schedule among hosts.

    `schedule`: returns the schedule for a number of elements; `host` is one of its nodes, a worker
    or a relay. `lengths`: of all parts to come, so that connections are made once. Call `connect`
    first, once the other hosts are ready. `tos`: as for `mark`. `patience`: as of `ScheduleGroup`.
    """

    several = False

    def __init__(
        self,
        schedule: Callable[[int], Schedule],
        network: Network,
        host: str,
        lengths: Sequence[int],
        job: int,
        part: int,
        tos: int = 0,
        patience: float = PROGRESS_SECONDS,
    ) -> None:
        self._schedule = cache(schedule)
        self._lengths = sorted(set(lengths))
        names = self._schedule(self._lengths[0]).names
        self._rank = names.index(host)
        hosts = tuple(network.hosts[name] for name in names)
        self._meeting = job, part, hosts, self._rank, self._channels
        self._tos = tos
        self._patience = patience
        self._transport: Transport | None = None

    def _channels(self) -> tuple[Sequence[Channel], Sequence[Channel]]:
        # Rounding may make other pairs exchange for another length.
        used = [channels(self._schedule(length), self._rank) for length in self._lengths]
        targets = dict.fromkeys(channel for each, _ in used for channel in each)
        sources = dict.fromkeys(channel for _, each in used for channel in each)
        return list(targets), list(sources)

    def connect(self, environment: Environment) -> None:
        """Start connecting to the other hosts."""
        self._transport = environment.transport(
            ScheduleGroup(*self._meeting, self._tos, self._patience)
        )

    def begin(
        self, tensor: Tensor, out: Tensor, now: float, options: CallOptions = AS_PLANNED
    ) -> int:
        """Run the schedule in place, on a copy in `out`; a relay's tensor is of zeros."""
        assert options.reduction is None, "hosts can only add"
        out[...] = tensor
        assert self._transport is not None
        self._transport.run(lambda: Execution(self._schedule(len(out)), self._rank, out))
        return 0

    def mark(self, tos: int) -> None:
        """Set the IP ToS byte of future packets, also of operations in progress."""
        self._tos = tos
        if self._transport is not None:
            self._transport.mark(tos)

    def postpone(self) -> None:
        """Restart the timeout of the operation in progress, since the network is known to have
        failed."""
        if self._transport is not None:
            self._transport.postpone()

    def done(self, call: int = 0) -> bool:
        """Whether it is idle."""
        return self._transport is None or not self._transport.busy

    @property
    def retransmissions(self) -> int:
        """Retransmitted TCP segments."""
        return 0 if self._transport is None else self._transport.retransmissions

    @property
    def sent_bytes(self) -> int:
        """Bytes of tensors sent so far."""
        return 0 if self._transport is None else self._transport.sent_bytes

    def close(self) -> None:
        """Close the connections, at once or when the operation in progress has ended."""
        if self._transport is not None:
            self._transport.close()


def like(tensor: Tensor) -> Tensor:
    """Buffer for a tensor's sum."""
    return np.empty(tensor.shape, tensor.dtype)
