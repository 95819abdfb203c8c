"""Where a member's tensors come from: in lock step, or in the order that all workers agree on."""

from __future__ import annotations

import threading
from typing import Protocol

from coordination.operators import Operator
from coordination.tree import CoordinationTree
from host_agent.io.coordination import Coordinator
from host_agent.io.tcp_collective import BASE_PORT
from host_agent.node.exchange import PORTS
from host_agent.node.vectors import VectorQueue
from host_agent.operator_training import OperatorTraining
from host_agent.segment import Tensor
from host_agent.workload import Judged, Workload
from network.model import Network

COORDINATION_PORTS = 4096
"""Jobs' ports for coordination, after those of their schedules."""

Following = tuple[str, Tensor] | None
"""The next tensor to sum, flat, and its name; None when all are summed."""


class Source(Protocol):
    """The tensors of one job at one host; they are summed one at a time.

    `waits`: whether `first` and `after` wait for other hosts.
    """

    waits: bool

    @property
    def workload(self) -> Judged:
        """Whose tensors they are."""

    def prepare(self) -> None:
        """Compute what is there to begin with, without the other hosts."""

    def first(self) -> Following:
        """The first tensor, once the job has started."""

    def after(self, name: str, result: Tensor) -> Following:
        """Take in a tensor's sum; the next tensor."""

    def close(self) -> None:
        """Give back what it holds."""


class LockStep:
    """A workload whose tensors are the same, in the same order, at all workers."""

    waits = False

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self._tensor: Tensor | None = None

    def prepare(self) -> None:
        """Make the workload's first tensor."""
        self._tensor = self.workload.next_tensor()

    def first(self) -> Following:
        """The workload's first tensor."""
        return None if self._tensor is None else ("", self._tensor)

    def after(self, name: str, result: Tensor) -> Following:
        """The workload's next tensor."""
        self.workload.take_result(result)
        self.prepare()
        return self.first()

    def close(self) -> None:
        """Let what goes on end."""
        self.workload.stop()


class AgreedOrder:
    """Operators that become ready in an order of this worker's own, started in the agreed one.

    `vectors`: the coordinator's, where the switches combine them. Raises what ends the
    coordination, such as ProcessLost with the name of a dead host.
    """

    waits = True

    def __init__(
        self,
        training: OperatorTraining,
        coordinator: Coordinator,
        vectors: VectorQueue | None = None,
    ) -> None:
        self.workload = training
        self._coordinator = coordinator
        self._vectors = vectors
        if vectors is not None:
            vectors.combined = coordinator.combined
            vectors.broken = self._close_apart
        self._operators: list[Operator] | None = None

    def prepare(self) -> None:
        """Compute the first step's gradient."""
        self._operators = self.workload.begin_step()

    def first(self) -> Following:
        """Meet the other workers; what all are ready for first."""
        self._coordinator.start()
        self._announce()
        return self._next()

    def after(self, name: str, result: Tensor) -> Following:
        """What starts next; None once no worker needs anything any more."""
        if self.workload.take_result(name, result):
            self.prepare()
            if self._operators is None:
                self._coordinator.leave()
                self._coordinator.wait_done()
                self._end_vectors()
                return None
            self._announce()
        return self._next()

    def _announce(self) -> None:
        self._coordinator.begin_iteration(self.workload.step)
        for operator in self._operators or ():
            self._coordinator.ready(operator)
        self._coordinator.end_iteration()

    def _next(self) -> Following:
        operator = self._coordinator.next_start()
        return operator.name, self.workload.tensor(operator.name)

    def close(self) -> None:
        """Close the connections, without holding up the caller for the last words."""
        self.workload.stop()
        self._end_vectors()
        self._close_apart()

    def _close_apart(self) -> None:
        threading.Thread(target=self._coordinator.close, name="closing coordination").start()

    def _end_vectors(self) -> None:
        if self._vectors is not None:
            self._vectors.end()


def coordinator_of(
    network: Network,
    tree: CoordinationTree,
    rank: int,
    job: int,
    vectors: VectorQueue | None = None,
) -> Coordinator:
    """The coordination of a job; the tree's processes have the names of their hosts.

    `vectors`: where its bit vectors go, None: over the tree or its ring.
    """
    port = BASE_PORT + PORTS + (job - 1) % COORDINATION_PORTS
    return Coordinator(
        tree,
        rank,
        [(network.hosts[name].ip, port) for name in tree.names],
        reduction=None if vectors is None else vectors.reduction,
    )
