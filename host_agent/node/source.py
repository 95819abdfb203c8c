"""Sources of a member's tensors: in lock step, or in the order that the workers agree on."""

from __future__ import annotations

from collections import deque

import numpy as np

from hopsum.collectives.choices import Collective
from hopsum.collectives.operation import reduction_of, tree_ranges
from hopsum.collectives.plan import JobPlan
from hopsum.coordination.operators import Operator
from hopsum.host_agent.io.coordination import started
from hopsum.host_agent.node.environment import Coordination, NamedTensor, Operate
from hopsum.host_agent.node.vectors import VectorQueue
from hopsum.host_agent.operator_training import OperatorTraining
from hopsum.host_agent.segment import CallOptions, Tensor
from hopsum.host_agent.workload import Workload, bits_of


class LockStep:
    """A workload whose tensors are the same, in the same order, at all workers."""

    in_place = False
    deadline: float | None = None

    def __init__(self, workload: Workload, operate: Operate, plan: JobPlan) -> None:
        self.workload = workload
        self._plan = plan
        self.prepared = False
        self.over = False
        self._operate = operate
        self._tensor: Tensor | None = None
        self._type = np.dtype(np.float32)
        """Of the tensor under way."""

    def prepare(self) -> None:
        """Make the workload's first tensor."""
        self._operate(self.workload.next_tensor, self._made)

    def _made(self, tensor: Tensor | None, now: float) -> None:
        self._tensor = tensor
        self.over = tensor is None
        self.prepared = True

    def start(self, now: float) -> None:
        """Return True: nothing more is needed."""

    def next(self, now: float) -> NamedTensor | None:
        """Return the next tensor, once the last one's sum is processed."""
        tensor, self._tensor = self._tensor, None
        if tensor is None:
            return None
        collective = self.workload.collective
        if collective is Collective.ALL_REDUCE:
            return NamedTensor("", tensor, CallOptions(width=self.workload.width))
        self._type = tensor.dtype
        ranges = tree_ranges(self._plan, collective, len(tensor))
        options = CallOptions(reduction_of(self._plan, collective), ranges=ranges)
        if not collective.sums:
            return NamedTensor("", bits_of(tensor), options)
        return NamedTensor("", tensor, options._replace(width=self.workload.width))

    def finish(self, name: str, result: Tensor, now: float) -> None:
        """Process the sum, and make the next tensor."""

        def go_on() -> Tensor | None:
            collective = self.workload.collective
            self.workload.take_result(result if collective.sums else result.view(self._type))
            return self.workload.next_tensor()

        self._operate(go_on, self._made)

    def tick(self, now: float) -> None:
        """Nothing is ever due."""

    def close(self, why: str) -> None:
        """End work in progress."""
        self.workload.stop()


class AgreedOrder:
    """Operators that become ready in this worker's own order, and start in the agreed one.

    `gradient_seconds`: between two operators of a step that become ready. `vectors`: the
    coordination's, where the switches combine them. Raises what ends the coordination, such as
    ProcessLost with the name of a dead host.
    """

    in_place = False

    def __init__(
        self,
        training: OperatorTraining,
        coordination: Coordination,
        operate: Operate,
        gradient_seconds: float = 0.0,
        vectors: VectorQueue | None = None,
    ) -> None:
        self.workload = training
        self.prepared = False
        self.over = False
        self._coordination = coordination
        self._operate = operate
        self._gradient_seconds = gradient_seconds
        self._vectors = vectors
        if vectors is not None:
            vectors.combined = coordination.combined
            vectors.broken = coordination.close
        self._operators: list[Operator] | None = None
        self._arising: deque[tuple[float, Operator]] = deque()
        self._started: deque[str] = deque()
        self._going = self._left = False

    def prepare(self) -> None:
        """Compute the next step's gradient."""
        self._operate(self.workload.begin_step, self._made)

    def _made(self, operators: list[Operator] | None, now: float) -> None:
        self._operators = operators
        self.prepared = True
        if self._going:
            self._announce(now)

    def start(self, now: float) -> None:
        """Meet the other workers; announce what is ready."""
        self._going = True
        self._coordination.start()
        self._announce(now)

    def _announce(self, now: float) -> None:
        """Start the next step, or leave if there is none."""
        operators, self._operators = self._operators, None
        if operators is None:
            self._coordination.leave()
            self._left = True
            return
        self._coordination.begin_iteration(self.workload.step)
        self._arising.extend(
            (now + place * self._gradient_seconds, operator)
            for place, operator in enumerate(operators)
        )
        self.tick(now)

    def next(self, now: float) -> NamedTensor | None:
        """Return the next tensor that may start."""
        for event in self._coordination.events():
            operator = started(event)
            if operator is not None:
                self._started.append(operator.name)
        if self._left and self._coordination.done:
            self.over = True
            self._end_vectors()
        if not self._started:
            return None
        name = self._started.popleft()
        return NamedTensor(name, self.workload.tensor(name))

    def finish(self, name: str, result: Tensor, now: float) -> None:
        """Process a sum; after the last one of a step the next step starts."""
        self._operate(lambda: self.workload.take_result(name, result), self._taken)

    def _taken(self, last: bool, now: float) -> None:
        if last:
            self.prepare()

    def tick(self, now: float) -> None:
        """Announce gradients that have become ready."""
        while self._arising and self._arising[0][0] <= now:
            self._coordination.ready(self._arising.popleft()[1])
            if not self._arising:
                self._coordination.end_iteration()

    @property
    def deadline(self) -> float | None:
        """Time when the next gradient is ready."""
        return self._arising[0][0] if self._arising else None

    def close(self, why: str) -> None:
        """Close the connections without waiting for the last messages."""
        self.workload.stop()
        self._end_vectors()
        self._coordination.close()

    def _end_vectors(self) -> None:
        if self._vectors is not None:
            self._vectors.end()
