"""Where simulated members' tensors come from: in lock step, or in the order that all agree on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from coordination.encoding import framed
from coordination.events import GivenUp, Start
from coordination.failure import OperatorError
from coordination.messages import Frame
from coordination.operators import Operator
from coordination.participant import Participant
from host_agent.operator_training import OperatorTraining
from host_agent.workload import Judged, Tensor, Workload
from network.model import Network
from network.paths import PlainRoutes

READY_SECONDS = 1e-4
"""Between two gradients of a step that become ready at one worker."""
TCP_HEADERS = 66
"""Ethernet, IPv4 and TCP with timestamps, bytes."""

Named = tuple[str, Tensor]


class Source(Protocol):
    """The tensors that a member sums, one after the other."""

    @property
    def workload(self) -> Judged:
        """Whose tensors they are."""

    @property
    def over(self) -> bool:
        """Whether no tensor will come any more."""

    def next(self, now: float) -> Named | None:
        """The next tensor to sum, flat, and its name; None if there is none now."""

    def finish(self, name: str, result: Tensor, now: float) -> None:
        """Take in the sum of a tensor."""

    def tick(self, now: float) -> None:
        """Do what is due."""

    @property
    def deadline(self) -> float | None:
        """When to call `tick`, at the latest."""


class LockStep:
    """A workload whose tensors are the same, in the same order, at all workers."""

    deadline: float | None = None

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.over = False
        self._waiting = False

    def next(self, now: float) -> Named | None:
        """The next tensor, unless the last one's sum is not there yet."""
        if self._waiting or self.over:
            return None
        tensor = self.workload.next_tensor()
        if tensor is None:
            self.over = True
            return None
        self._waiting = True
        return "", tensor

    def finish(self, name: str, result: Tensor, now: float) -> None:
        """Take in the sum."""
        self._waiting = False
        self.workload.take_result(result)

    def tick(self, now: float) -> None:
        """Nothing is ever due."""


class AgreedOrder:
    """Operators that become ready in an order of the worker's own; the participant says when."""

    def __init__(self, training: OperatorTraining, participant: Participant) -> None:
        self.workload = training
        self.participant = participant
        self._arising: deque[tuple[float, Operator]] = deque()
        self._started: deque[str] = deque()
        self._say: Callable[[Frame], None] | None = None
        self._begin(0.0)

    def connect(self, say: Callable[[Frame], None]) -> None:
        """From now on `say` takes what the participant has to say, at once."""
        self._say = say
        self._speak()

    def _speak(self) -> None:
        if self._say is not None:
            for frame in self.participant.take_output():
                self._say(frame)

    def _begin(self, now: float) -> None:
        """Begin the next step, or leave if there is none."""
        operators = self.workload.begin_step()
        if operators is None:
            self.participant.leave(now)
            self._speak()
            return
        self.participant.begin_iteration(self.workload.step, now)
        self._arising.extend(
            (now + place * READY_SECONDS, operator) for place, operator in enumerate(operators)
        )
        self.tick(now)

    @property
    def over(self) -> bool:
        """Whether all processes have left."""
        return self.participant.done

    def next(self, now: float) -> Named | None:
        """The next tensor that may start. Raises what ended the coordination."""
        if self.participant.failure is not None:
            raise self.participant.failure
        for event in self.participant.take_events():
            if isinstance(event, Start):
                self._started.append(event.operator.name)
            elif isinstance(event, GivenUp):
                raise OperatorError(f"operator {event.operator.name}: {event.reason}")
        if not self._started:
            return None
        name = self._started.popleft()
        return name, self.workload.tensor(name)

    def finish(self, name: str, result: Tensor, now: float) -> None:
        """Take in a sum; with the last of a step the next one begins."""
        if self.workload.take_result(name, result):
            self._begin(now)

    def combined(self, now: float) -> None:
        """Go on now that the switches have combined a vector."""
        self.participant.advance(now)
        self._speak()

    def receive(self, frame: Frame, now: float) -> None:
        """Take in what another process says."""
        self.participant.receive(frame, now)
        self._speak()

    def tick(self, now: float) -> None:
        """Gradients become ready; the participant does what is due."""
        while self._arising and self._arising[0][0] <= now:
            self.participant.ready(self._arising.popleft()[1], now)
            if not self._arising:
                self.participant.end_iteration(now)
        if self.participant.deadline is not None and self.participant.deadline <= now:
            self.participant.tick(now)
        self._speak()

    @property
    def deadline(self) -> float | None:
        """When the next gradient is ready, or the participant wants its tick."""
        deadlines = [self._arising[0][0]] if self._arising else []
        if self.participant.deadline is not None:
            deadlines.append(self.participant.deadline)
        return min(deadlines, default=None)


class FrameTimes:
    """When a frame between two workers arrives over TCP: links one after the other, none busy.

    Frames from one worker to another keep their order. What they add to the links' load is left
    out: it is a few hundred bytes a step.
    """

    def __init__(self, network: Network, workers: Sequence[str]) -> None:
        self._network = network
        self._routes = PlainRoutes(network)
        self._workers = workers
        self._ways: dict[tuple[int, int], tuple[float, float]] = {}
        self._last: dict[tuple[int, int], float] = {}

    def arrival(self, frame: Frame, now: float) -> float:
        """When a frame that is sent now is there."""
        ends = frame.source, frame.target
        if ends not in self._ways:
            self._ways[ends] = self._way(self._workers[ends[0]], self._workers[ends[1]])
        latency, seconds_a_byte = self._ways[ends]
        arrival = now + latency + (TCP_HEADERS + len(framed(frame))) * seconds_a_byte
        self._last[ends] = max(arrival, self._last.get(ends, 0.0))
        return self._last[ends]

    def _way(self, source: str, target: str) -> tuple[float, float]:
        hops = self._routes.next_hops(target)
        latency = seconds_a_byte = 0.0
        while source != target:
            link = self._network.link(source, hops[source])
            latency += link.latency
            seconds_a_byte += 8 / link.bandwidth if link.bandwidth else 0.0
            source = hops[source]
        return latency, seconds_a_byte
