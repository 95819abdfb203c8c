"""Messages to and from one neighbour: exactly once and in order over unreliable frames.

Frames may be lost, duplicated and reordered. Over a TCP connection they are not, and the only cost
is a heartbeat, which carries acknowledgements too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from hopsum.coordination.messages import Frame, Message


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """Timers of links, in seconds.

    `heartbeat`: maximum interval between frames to a neighbour. `silence`: a neighbour that is
    silent for this long is dead. `join`: timeout for its first frame. `resend`: a message that is
    not acknowledged for this long is sent again; above `heartbeat`, which acknowledges.
    """

    heartbeat: float = 1.0
    silence: float = 5.0
    join: float = 60.0
    resend: float = 2.5


class Link:
    """Our end of an edge to process `peer`.

    `opens`: this end sends first (to the parent, to the successor on the ring); otherwise nothing
    is sent before a frame of the peer has arrived. `watched`: heartbeats are sent, and a silent
    peer counts as dead.
    """

    def __init__(
        self,
        rank: int,
        peer: int,
        incarnation: int,
        output: Callable[[Frame], None],
        options: LinkOptions,
        now: float,
        *,
        opens: bool,
        watched: bool,
    ) -> None:
        self.peer = peer
        self.peer_incarnation = 0
        self.watched = watched
        self._rank = rank
        self._incarnation = incarnation
        self._output = output
        self._options = options
        self._opens = opens
        self._unacknowledged: deque[tuple[int, Message]] = deque()
        self._sent = 0
        self._received = 0
        self._early: dict[int, Message] = {}
        self._owes = False
        self._spoke = now
        self._resend_at = now
        self._silent_at = now + options.join

    @property
    def open(self) -> bool:
        """Whether frames can go out."""
        return self._opens or self.peer_incarnation != 0

    @property
    def settled(self) -> bool:
        """Whether everything that was sent has arrived."""
        return not self._unacknowledged

    def send(self, message: Message, now: float) -> None:
        """Send a message, or keep it until the link is open."""
        self._sent += 1
        if not self._unacknowledged:
            self._resend_at = now + self._options.resend
        self._unacknowledged.append((self._sent, message))
        if self.open:
            self._emit(self._sent, message, now)

    def _emit(self, sequence: int, message: Message | None, now: float) -> None:
        self._spoke = now
        self._owes = False
        self._output(
            Frame(
                self._rank,
                self.peer,
                self._incarnation,
                self.peer_incarnation,
                sequence,
                self._received,
                message,
            )
        )

    def receive(self, frame: Frame, now: float) -> list[Message]:
        """Process a frame; return the messages that are due now, in order.

        The caller has checked the frame's incarnation, if the peer's is known.
        """
        if not self.peer_incarnation:
            was_open = self.open
            self.peer_incarnation = frame.incarnation
            if not was_open:
                self._resend(now)
        self._silent_at = now + self._options.silence
        while self._unacknowledged and self._unacknowledged[0][0] <= frame.acknowledged:
            self._unacknowledged.popleft()
            self._resend_at = now + self._options.resend
        if not frame.sequence or frame.message is None:
            return []
        self._owes = True
        if frame.sequence <= self._received:
            # Our acknowledgement was lost, or is on its way.
            self._emit(0, None, now)
            return []
        self._early[frame.sequence] = frame.message
        due: list[Message] = []
        while (message := self._early.pop(self._received + 1, None)) is not None:
            self._received += 1
            due.append(message)
        return due

    def _resend(self, now: float) -> None:
        for sequence, message in self._unacknowledged:
            self._emit(sequence, message, now)
        self._resend_at = now + self._options.resend

    def acknowledge(self, now: float) -> None:
        """Acknowledge at once what has arrived, before this process ends."""
        if self.peer_incarnation:
            self._emit(0, None, now)

    def tick(self, now: float) -> None:
        """Retransmit and send heartbeats where due."""
        if self.open and self._unacknowledged and now >= self._resend_at:
            self._resend(now)
        if now >= self._heartbeat_at:
            self._emit(0, None, now)

    @property
    def _heartbeat_at(self) -> float:
        if (self.watched or self._owes) and self.peer_incarnation:
            return self._spoke + self._options.heartbeat
        return float("inf")

    def restart_silence(self, now: float) -> None:
        """Restart the silence timer of a peer that has connected."""
        if self.peer_incarnation:
            self._silent_at = max(self._silent_at, now + self._options.silence)

    def silent(self, now: float) -> bool:
        """Return whether the peer counts as dead."""
        return self.watched and now >= self._silent_at

    @property
    def deadline(self) -> float:
        """Time at which `tick` or `silent` is due."""
        deadline = self._heartbeat_at
        if self.watched:
            deadline = min(deadline, self._silent_at)
        if self._unacknowledged and self.open:
            deadline = min(deadline, self._resend_at)
        return deadline
