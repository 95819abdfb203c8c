"""Random groups at work: processes that become ready in any order, stall, change and fail."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

from hopsum.coordination.events import CoordinationOptions, Rejection, Start
from hopsum.coordination.link import LinkOptions
from hopsum.coordination.messages import Frame
from hopsum.coordination.operators import Operator
from hopsum.coordination.participant import Participant
from hopsum.coordination.tree import CoordinationTree
from tests.support.virtual_group import Costs, VirtualGroup

OPTIONS = CoordinationOptions(
    LinkOptions(heartbeat=0.5, silence=5.0, join=20.0, resend=1.2), cycle=0.03, stall=60.0
)


def operator(name: str, *shape: int) -> Operator:
    return Operator(name, shape or (8,), "float32")


def random_tree(random: Random, most: int = 7) -> CoordinationTree:
    """Any tree at all, sometimes with a ring."""
    count = random.randint(1, most)
    parents = [-1] + [random.randrange(rank) for rank in range(1, count)]
    places = random.sample(range(count), count)
    named = [-1] * count
    for rank, parent in enumerate(parents):
        named[places[rank]] = places[parent] if parent >= 0 else -1
    ring = tuple(random.sample(range(count), count)) if random.random() < 0.4 else ()
    return CoordinationTree(tuple(f"w{rank}" for rank in range(count)), tuple(named), ring)


def rough(random: Random, loss: float, doubled: float, spread: float) -> object:
    """Frames that get lost, doubled and overtake each other."""

    def deliver(frame: Frame) -> Iterable[float]:
        if random.random() < loss:
            return ()
        copies = 2 if random.random() < doubled else 1
        return [random.random() * spread for _ in range(copies)]

    return deliver


@dataclass
class Work:
    """One process's work: per iteration its operators, each after a pause, in its own order."""

    rank: int
    iterations: list[list[tuple[float, Operator]]]
    iteration: int = 0
    open: set[str] = field(default_factory=set)
    started: list[Operator] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)
    seen: int = 0
    todo: int = 0


class Training:
    """Processes that do iterations one after the other; the next begins when all is started."""

    def __init__(self, group: VirtualGroup, works: list[Work]) -> None:
        self.group = group
        self.works = works
        for work in works:
            self._next(work)

    def _next(self, work: Work) -> None:
        group = self.group
        now = group.now
        if work.iteration == len(work.iterations):
            group.call(now, work.rank, lambda p: p.leave(group.now))
            return
        plan = work.iterations[work.iteration]
        work.iteration += 1
        number = work.iteration
        work.todo = len(plan)
        group.call(now, work.rank, lambda p: p.begin_iteration(number, group.now))
        for pause, wanted in plan:

            def become_ready(participant: Participant, wanted: Operator = wanted) -> None:
                participant.ready(wanted, group.now)

            group.call(now + pause, work.rank, become_ready)
        if not plan:
            self._next(work)

    def look(self) -> None:
        for work in self.works:
            events = self.group.events[work.rank]
            while work.seen < len(events):
                _, event = events[work.seen]
                work.seen += 1
                if isinstance(event, Start):
                    work.started.append(event.operator)
                    work.todo -= 1
                elif isinstance(event, Rejection):
                    work.given_up.append(event.operator.name)
                    work.todo -= 1
                if work.todo == 0:
                    self._next(work)

    def run(self, limit: float) -> None:
        while self.group.now < limit and not self.finished:
            self.group.step()
            self.look()

    @property
    def finished(self) -> bool:
        return all(participant.done for participant in self.group.participants)


def costs(random: Random) -> Costs:
    return Costs(random.choice([0.0, 0.001]), random.choice([0.0, 0.001, 0.05]))
