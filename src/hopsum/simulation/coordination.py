"""The processes of a coordination on virtual hosts, and the connections between them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Protocol

from hopsum.coordination.encoding import framed
from hopsum.coordination.events import Event
from hopsum.coordination.failure import CoordinationError
from hopsum.coordination.messages import Frame
from hopsum.coordination.operators import Operator
from hopsum.coordination.participant import Participant
from hopsum.coordination.reduction import ExternalAnd
from hopsum.coordination.tree import CoordinationTree
from hopsum.network.paths import PlainRoutes
from hopsum.simulation.wire import Way, WireOptions
from hopsum.simulation.world import World

TCP_HEADERS = 66
"""Ethernet, IPv4 and TCP with timestamps, bytes."""


class Host(Protocol):
    """The host of a process."""

    @property
    def now(self) -> float:
        """Return the reading of its clock."""

    def wake(self) -> None:
        """Let the agent advance by one step."""

    def go_on(self) -> None:
        """Let the agent process an event, and send the resulting frames."""


class Group:
    """The processes of one coordination, and the connections between them.

    Their load on links is not modelled: it is a few hundred bytes per step.
    """

    def __init__(self, world: World, tree: CoordinationTree) -> None:
        self.tree = tree
        self.members: dict[int, VirtualCoordination] = {}
        self._world = world
        self._routes = PlainRoutes(world.network)
        self._ways: dict[tuple[int, int], Way] = {}

    def say(self, frame: Frame) -> None:
        """Schedule the arrival of a frame; it is dropped if its receiver does not exist then."""

        def arrive() -> None:
            if (target := self.members.get(frame.target)) is not None:
                target.receive(frame)

        self._way(frame.source, frame.target).send(arrive, TCP_HEADERS + len(framed(frame)))

    def close(self, rank: int) -> None:
        """End the connections of a process, which shows its neighbours that it is gone."""
        self.members.pop(rank, None)
        for peer in (self.tree.parents[rank], *self.tree.children[rank]):
            if peer >= 0:
                self._way(rank, peer).send(partial(self._disconnect, peer, rank))

    def _disconnect(self, rank: int, peer: int) -> None:
        if (member := self.members.get(rank)) is not None:
            member.disconnected(peer)

    def _way(self, source: int, target: int) -> Way:
        """Return the way from one process to another, over the links of plain packets."""
        if (source, target) not in self._ways:
            names, network = self.tree.names, self._world.network
            hops = pairwise(self._routes.path(names[source], names[target]))
            links = [network.link(*hop) for hop in hops]
            options = WireOptions(
                sum(link.latency for link in links),
                jitter=0.0,
                seconds_a_byte=sum(8 / link.bandwidth for link in links if link.bandwidth),
            )
            self._ways[source, target] = Way(self._world.queue, options)
        return self._ways[source, target]


class VirtualCoordination:
    """A `Coordination`: process `rank` of a group, on a virtual host."""

    def __init__(self, host: Host, group: Group, rank: int, reduction: ExternalAnd | None) -> None:
        self._host = host
        self._group = group
        self._rank = rank
        self._reduction = reduction
        self._participant = Participant(group.tree, rank, rank + 1, host.now, reduction=reduction)
        self._going = self._closed = False
        group.members[rank] = self

    def _speak(self) -> None:
        if self._going:
            for frame in self._participant.take_output():
                self._group.say(frame)

    def _check(self) -> None:
        if self._participant.failure is not None:
            raise self._participant.failure
        if self._closed and not self._participant.done:
            raise CoordinationError(
                f"process {self._participant.name}: its coordination has been closed"
            )

    def start(self) -> None:
        """Send its messages from now on."""
        self._going = True
        self._speak()

    def begin_iteration(self, number: int) -> None:
        """Publish the number of the iteration that begins."""
        self._check()
        self._participant.begin_iteration(number, self._host.now)
        self._speak()

    def ready(self, operator: Operator, /) -> None:
        """Request an operator."""
        self._check()
        self._participant.ready(operator, self._host.now)
        self._speak()

    def end_iteration(self) -> None:
        """Request no more operators of this iteration."""
        self._check()
        self._participant.end_iteration(self._host.now)
        self._speak()

    def combined(self, words: Sequence[int]) -> None:
        """Process a vector that was combined elsewhere."""
        self._check()
        assert self._reduction is not None
        self._reduction.completed(words)
        self._participant.advance(self._host.now)
        self._speak()
        self._host.wake()

    def leave(self) -> None:
        """Leave."""
        self._check()
        self._participant.leave(self._host.now)
        self._speak()

    def events(self) -> Sequence[Event]:
        """Return and clear the events."""
        events = self._participant.take_events()
        if not events:
            self._check()
        return events

    @property
    def done(self) -> bool:
        """Return whether all processes have left."""
        return self._participant.done

    def close(self) -> None:
        """Close; a process that has not left is lost to the others."""
        if not self._closed:
            self._speak()
            self._closed = True
            if not self._participant.done:
                self._group.close(self._rank)

    def receive(self, frame: Frame) -> None:
        """Process a frame of another process."""
        self._participant.receive(frame, self._host.now)
        self._speak()
        self._host.go_on()

    def disconnected(self, rank: int) -> None:
        """Note that a neighbour's connection has ended."""
        self._participant.disconnected(rank, "it closed its connection", self._host.now)
        self._speak()
        self._host.go_on()

    def tick(self, now: float) -> None:
        """Run due timers."""
        due = self._participant.deadline
        if due is not None and due <= now:
            self._participant.tick(now)
            self._speak()

    @property
    def deadline(self) -> float | None:
        """Return the participant's deadline."""
        return self._participant.deadline
