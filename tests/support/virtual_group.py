"""A group of processes in virtual time: the real state machines over modelled messages."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from hopsum.coordination.events import CoordinationOptions, Event
from hopsum.coordination.messages import Frame
from hopsum.coordination.participant import Participant
from hopsum.coordination.reduction import AndAllReduce
from hopsum.coordination.tree import CoordinationTree

Delivery = Callable[[Frame], Iterable[float]]
"""Extra delays of a frame's copies: a single 0 is a perfect network, no copy a loss."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of messages: `overhead` of a process per message, `latency` in transit.

    The overhead is paid once a message, one after the other, at the end that has many of them:
    by the receiver on the way up the tree (and on a ring), by the sender on the way down. This is
    the model under which a central coordinator takes 2 (n - 1) overhead + 2 latency. Empty frames
    cost nothing. Any unit of time; with whole numbers all times are exact.
    """

    overhead: float = 0.0
    latency: float = 0.0


class VirtualGroup:
    """All processes of a tree, a clock, and events: `events[rank]` as (time, event)."""

    def __init__(
        self,
        tree: CoordinationTree,
        *,
        costs: Costs | None = None,
        options: CoordinationOptions | None = None,
        deliver: Delivery | None = None,
        reductions: Sequence[AndAllReduce] | None = None,
    ) -> None:
        self.tree = tree
        self.now: float = 0
        self.participants = [
            Participant(
                tree, rank, rank + 1, 0, options, None if reductions is None else reductions[rank]
            )
            for rank in range(len(tree.names))
        ]
        self.events: list[list[tuple[float, Event]]] = [[] for _ in tree.names]
        self.failed_at: dict[int, float] = {}
        self._costs = costs or Costs()
        self._deliver = deliver or (lambda frame: (0,))
        self._busy: dict[int, float] = dict.fromkeys(range(len(tree.names)), 0)
        self._wakes: dict[int, float] = {}
        self._dead: set[int] = set()
        self._numbers = count()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        for rank in range(len(tree.names)):
            self._after(rank)

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Schedule an action at a time, or now if that has passed."""
        heapq.heappush(self._heap, (max(time, self.now), next(self._numbers), action))

    def call(self, time: float, rank: int, action: Callable[[Participant], None]) -> None:
        """Schedule an action at a process, unless it is dead by then."""

        def act() -> None:
            if rank not in self._dead:
                action(self.participants[rank])
                self._after(rank)

        self.at(time, act)

    def kill(self, rank: int) -> None:
        """Kill a process now."""
        self._dead.add(rank)

    def step(self) -> bool:
        """Execute the next event; return False if there is none."""
        if not self._heap:
            return False
        self.now, _, action = heapq.heappop(self._heap)
        action()
        return True

    def run(self, until: float) -> None:
        """Execute all events up to and including a time."""
        while self._heap and self._heap[0][0] <= until:
            self.step()
        self.now = max(self.now, until)

    def settle(self) -> float:
        """Execute all events; return the time of the last one.

        Only for groups whose timers are so far off that they never run: heartbeats go on for ever.
        """
        while self.step():
            pass
        return self.now

    def inject(self, frame: Frame) -> None:
        """Inject a frame into the network now."""
        self._travel(frame)

    def _after(self, rank: int) -> None:
        """Collect a process's frames and events, and set its timer."""
        participant = self.participants[rank]
        for frame in participant.take_output():
            self._travel(frame)
        self.events[rank].extend((self.now, event) for event in participant.take_events())
        if participant.failure is not None:
            self.failed_at.setdefault(rank, self.now)
        deadline = participant.deadline
        if deadline is not None and not participant.done:
            wake = self._wakes.get(rank)
            if wake is None or deadline < wake:
                self._wakes[rank] = deadline
                self.at(deadline, lambda: self._wake(rank, deadline))

    def _wake(self, rank: int, due: float) -> None:
        if self._wakes.get(rank) == due:
            del self._wakes[rank]
        if rank not in self._dead and not self.participants[rank].done:
            self.participants[rank].tick(self.now)
            self._after(rank)

    def _travel(self, frame: Frame) -> None:
        down = self.tree.parents[frame.target] == frame.source
        overhead = 0 if frame.message is None else self._costs.overhead
        leaves = self._occupy(frame.source, overhead) if down else self.now
        for extra in self._deliver(frame):
            arrives = leaves + self._costs.latency + extra
            if down or not overhead:
                self.at(arrives, lambda: self._arrive(frame))
            else:
                self.at(arrives, lambda: self._handle(frame, overhead))

    def _occupy(self, rank: int, overhead: float) -> float:
        """Return when a process is done with a message that it starts now at the earliest."""
        self._busy[rank] = max(self.now, self._busy[rank]) + overhead
        return self._busy[rank]

    def _handle(self, frame: Frame, overhead: float) -> None:
        self.at(self._occupy(frame.target, overhead), lambda: self._arrive(frame))

    def _arrive(self, frame: Frame) -> None:
        if frame.target not in self._dead:
            self.participants[frame.target].receive(frame, self.now)
            self._after(frame.target)
