"""The links of one process: neighbours, rejected and dead processes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hopsum.coordination.link import Link, LinkOptions
from hopsum.coordination.messages import Frame, Hello, Message, Refusal, Welcome
from hopsum.coordination.tree import CoordinationTree


@dataclass(slots=True)
class Statistics:
    """Numbers of messages of this process, without heartbeats and retransmissions."""

    sent: int = 0
    received: int = 0
    foreign: int = 0
    """Frames for other processes, or from unknown ones."""


class Neighbours:
    """The process's links to its parent and children, and to others.

    `opened`: further ranks to which this process sends first; `heard`: those that send first. A
    child sends first to its parent. The first process of a rank that does is accepted; another
    incarnation is refused as long as that one lives.
    """

    def __init__(
        self,
        tree: CoordinationTree,
        rank: int,
        incarnation: int,
        options: LinkOptions,
        now: float,
        *,
        opened: Iterable[int],
        heard: Iterable[int],
    ) -> None:
        self.statistics = Statistics()
        self.parent = tree.parents[rank]
        self.children = tree.children[rank]
        self.refused: str | None = None
        """Reason why this process is rejected, if it is."""
        self._tree = tree
        self._rank = rank
        self._incarnation = incarnation
        self._options = options
        self._awake_at = now
        self._dead: set[int] = set()
        self._output: list[Frame] = []
        self._opened = {*opened, self.parent} - {-1}
        self._links = {
            peer: self._link(peer, now)
            for peer in dict.fromkeys((*self.children, self.parent, *self._opened, *heard))
            if peer >= 0
        }
        if self.parent >= 0:
            self.send(self.parent, Hello(tree.names[rank], tree.digest), now)

    def _link(self, peer: int, now: float) -> Link:
        return Link(
            self._rank,
            peer,
            self._incarnation,
            self._output.append,
            self._options,
            now,
            opens=peer in self._opened,
            watched=peer == self.parent or peer in self.children,
        )

    def send(self, peer: int, message: Message, now: float) -> None:
        """Send to one process, unless it is dead."""
        link = self._links.get(peer)
        if link is not None:
            self.statistics.sent += 1
            link.send(message, now)

    def send_down(self, message: Message, now: float) -> None:
        """Send to all children."""
        for child in self.children:
            self.send(child, message, now)

    def receive(self, frame: Frame, now: float) -> list[Message]:
        """Process a frame; return its source's messages that are due, in order."""
        self._awake_at = now
        link = self._links.get(frame.source)
        if frame.target != self._rank or frame.to not in (0, self._incarnation):
            self.statistics.foreign += 1
        elif frame.source in self._dead:
            self._refuse(frame, f"it counts as dead at {self._tree.names[self._rank]}")
        elif link is None:
            self.statistics.foreign += 1
        elif isinstance(frame.message, Refusal):
            self.refused = frame.message.reason
        elif link.peer_incarnation not in (0, frame.incarnation):
            self._refuse(
                frame,
                f"another process of this name is connected to {self._tree.names[self._rank]} "
                f"already; give every process its own name",
            )
        else:
            messages = link.receive(frame, now)
            self.statistics.received += len(messages)
            if messages and isinstance(messages[0], Hello):
                return self._accept_child(frame, messages, now)
            return messages
        return []

    def _accept_child(self, frame: Frame, messages: list[Message], now: float) -> list[Message]:
        """Accept a child if it was started for this tree and its position in it."""
        hello, *more = messages
        name = self._tree.names[frame.source]
        if hello == Hello(name, self._tree.digest):
            self.send(frame.source, Welcome(), now)
            return more
        assert isinstance(hello, Hello)
        self._refuse(
            frame,
            f"{hello.name} was started for tree {hello.digest}; {self._tree.names[self._rank]} "
            f"expected {name} of tree {self._tree.digest}; start all processes from one plan",
        )
        self._links[frame.source] = self._link(frame.source, now)
        return []

    def _refuse(self, frame: Frame, reason: str) -> None:
        self._output.append(
            Frame(
                self._rank,
                frame.source,
                self._incarnation,
                frame.incarnation,
                0,
                0,
                Refusal(reason),
            )
        )

    def tick(self, now: float) -> list[tuple[int, str]]:
        """Run due timers; return the parent and children that now count as dead, with reasons."""
        silent: list[tuple[int, str]] = []
        # A process that was stopped for longer than its heartbeats cannot tell which peers were
        # silent.
        stopped = now > self._awake_at + 2 * self._options.heartbeat
        self._awake_at = now
        own = self._tree.names[self._rank]
        for peer, link in self._links.items():
            link.tick(now)
            if stopped:
                link.restart_silence(now)
            if link.silent(now):
                silent.append(
                    (peer, f"not heard by {own} for {self._options.silence:g} s")
                    if link.peer_incarnation
                    else (peer, f"it did not connect to {own} within {self._options.join:g} s")
                )
        return silent

    def is_dead(self, rank: int) -> bool:
        """Return whether a process counts as dead."""
        return rank in self._dead

    def mark_dead(self, rank: int) -> None:
        """Record that a process has failed, and drop its link."""
        self._dead.add(rank)
        self._links.pop(rank, None)

    def drop(self, rank: int) -> None:
        """Drop the link to a process that may have ended in order."""
        self._links.pop(rank, None)

    def acknowledge_parent(self, now: float) -> None:
        """Acknowledge to the parent at once, before this process ends."""
        if self.parent in self._links:
            self._links[self.parent].acknowledge(now)

    @property
    def settled(self) -> bool:
        """Whether the children have received everything that was sent to them."""
        return all(self._links[c].settled for c in self.children if c in self._links)

    def take_output(self) -> list[Frame]:
        """Return the frames to send, in order."""
        output = self._output[:]
        self._output.clear()
        return output

    @property
    def deadline(self) -> float:
        """Latest time to call `tick`."""
        return min((link.deadline for link in self._links.values()), default=float("inf"))
