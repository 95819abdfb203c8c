"""Where a member's tensors come from: in lock step, or in the order that all workers agree on."""

from __future__ import annotations

import threading
from typing import Protocol

from collectives.coordination.tree import CoordinationTree
from collectives.network import Network
from host_agent.coordination import Coordinator
from host_agent.node.exchange import PORTS
from host_agent.operator_training import OperatorTraining
from host_agent.segment import Tensor
from host_agent.tcp_collective import BASE_PORT
from host_agent.workload import Judged, Workload

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

    def first(self) -> Following:
        """The first tensor."""

    def after(self, name: str, result: Tensor) -> Following:
        """Take in a tensor's sum; the next tensor."""

    def close(self) -> None:
        """Give back what it holds."""


class LockStep:
    """A workload whose tensors are the same, in the same order, at all workers."""

    waits = False

    def __init__(self, workload: Workload) -> None:
        self.workload = workload

    def first(self) -> Following:
        """The workload's first tensor."""
        tensor = self.workload.next_tensor()
        return None if tensor is None else ("", tensor)

    def after(self, name: str, result: Tensor) -> Following:
        """The workload's next tensor."""
        self.workload.take_result(result)
        return self.first()

    def close(self) -> None:
        """Nothing is held."""


class AgreedOrder:
    """Operators that become ready in an order of this worker's own, started in the agreed one.

    Raises what ends the coordination, such as ProcessLost with the name of a dead host.
    """

    waits = True

    def __init__(self, training: OperatorTraining, coordinator: Coordinator) -> None:
        self.workload = training
        self._coordinator = coordinator
        coordinator.start()

    def first(self) -> Following:
        """Begin the first step; what all workers are ready for first."""
        self._begin()
        return self._next()

    def after(self, name: str, result: Tensor) -> Following:
        """What starts next; None once no worker needs anything any more."""
        if self.workload.take_result(name, result) and not self._begin():
            self._coordinator.leave()
            self._coordinator.wait_done()
            return None
        return self._next()

    def _begin(self) -> bool:
        operators = self.workload.begin_step()
        if operators is None:
            return False
        self._coordinator.begin_iteration(self.workload.step)
        for operator in operators:
            self._coordinator.ready(operator)
        return True

    def _next(self) -> Following:
        operator = self._coordinator.next_start()
        return operator.name, self.workload.tensor(operator.name)

    def close(self) -> None:
        """Close the connections, without holding up the caller for the last words."""
        threading.Thread(target=self._coordinator.close, name="closing coordination").start()


def coordinator_of(network: Network, tree: CoordinationTree, rank: int, job: int) -> Coordinator:
    """The coordination of a job; the tree's processes have the names of their hosts."""
    port = BASE_PORT + PORTS + (job - 1) % COORDINATION_PORTS
    return Coordinator(tree, rank, [(network.hosts[name].ip, port) for name in tree.names])
