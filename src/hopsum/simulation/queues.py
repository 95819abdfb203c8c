"""The queues of links: the order in which frames leave, and which are dropped."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from socket import IPPROTO_TCP, IPPROTO_UDP
from typing import Protocol

from hopsum.protocol.tos import LEVELS, UDP_PORT, URGENT, queue_of_tos
from hopsum.protocol.wire import ETHERNET_BYTES, ETHERTYPE_IPV4

QUEUE_FRAMES = 1000
"""Frames that a sender's queue holds: Linux's default txqueuelen."""
TURN_BYTES = 1514
"""Bytes of a flow's turn: a full Ethernet frame."""
NOTHING_WAITS = [0] * LEVELS
_IPV4 = ETHERTYPE_IPV4.to_bytes(2, "big")
_PROTOCOL = ETHERNET_BYTES + 9
_TARGET_PORT = slice(ETHERNET_BYTES + 22, ETHERNET_BYTES + 24)
_OUR_PORT = UDP_PORT.to_bytes(2, "big")
_JOB = slice(46, 48)
_CONNECTION = slice(ETHERNET_BYTES + 12, ETHERNET_BYTES + 24)
"""Addresses and ports."""


class Discipline(Protocol):
    """Frames that wait at a sender, and the choice of the next one."""

    def put(self, frame: bytes) -> bool:
        """Queue a frame; False if there is no room."""

    def take(self) -> bytes | None:
        """Return the frame whose turn it is, which waits no more; None if none does."""


class Fifo:
    """First come, first served; holds `QUEUE_FRAMES`."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()

    def put(self, frame: bytes) -> bool:
        """See `Discipline`."""
        if len(self._waiting) >= QUEUE_FRAMES:
            return False
        self._waiting.append(frame)
        return True

    def take(self) -> bytes | None:
        """See `Discipline`."""
        return self._waiting.popleft() if self._waiting else None


class PriorityQueues:
    """A queue for every IP class selector; the highest goes first, urgent frames before all.

    Frames other than IPv4 use the lowest. `make_queue` makes each queue.
    """

    def __init__(self, make_queue: Callable[[], Discipline]) -> None:
        self._queues = [make_queue() for _ in range(LEVELS + 1)]
        self.waiting = [0] * LEVELS
        """Frames by the priority of v1model; the last goes first."""

    def put(self, frame: bytes) -> bool:
        """See `Discipline`."""
        number = queue_of(frame)
        put = self._queues[number].put(frame)
        self.waiting[priority_of(number)] += put
        return put

    def take(self) -> bytes | None:
        """See `Discipline`."""
        for number, queue in enumerate(self._queues):
            frame = queue.take()
            if frame is not None:
                self.waiting[priority_of(number)] -= 1
                return frame
        return None


def queue_of(frame: bytes) -> int:
    """Return the number of a frame's queue in `PriorityQueues`."""
    if frame[12:14] != _IPV4:
        return LEVELS
    ours = frame[_PROTOCOL] == IPPROTO_UDP and frame[_TARGET_PORT] == _OUR_PORT
    tos = frame[ETHERNET_BYTES + 1]
    return queue_of_tos(tos if ours else tos & ~URGENT)


def priority_of(queue: int) -> int:
    """Return the switch's priority that corresponds to a queue of `PriorityQueues`."""
    return LEVELS - max(queue, 1)


class FairQueues:
    """Fair queueing by bytes: each job, each TCP connection and the rest is a flow.

    As on a Linux host whose interfaces have `fq_codel`, and on hosts in Mininet
    (`hopsum.mininet_topos.link_queues`). The queue holds what windows allow: sockets keep what it
    cannot take. Deficit round robin (Shreedhar and Varghese, SIGCOMM '95).
    """

    def __init__(self) -> None:
        self._turns: dict[bytes, deque[bytes]] = {}
        self._left: dict[bytes, int] = {}
        """Bytes left of each flow's turn."""

    def put(self, frame: bytes) -> bool:
        """See `Discipline`."""
        self._turns.setdefault(_flow_of(frame), deque()).append(frame)
        return True

    def take(self) -> bytes | None:
        """See `Discipline`."""
        while self._turns:
            flow, waiting = next(iter(self._turns.items()))
            left = self._left.setdefault(flow, TURN_BYTES)
            if len(waiting[0]) <= left:
                frame = waiting.popleft()
                self._left[flow] = left - len(frame)
                if not waiting:
                    del self._turns[flow], self._left[flow]
                return frame
            # To the end of the round.
            self._turns[flow] = self._turns.pop(flow)
            self._left[flow] = left + TURN_BYTES
        return None


def _flow_of(frame: bytes) -> bytes:
    if frame[12:14] != _IPV4:
        return b""
    if frame[_PROTOCOL] == IPPROTO_TCP:
        return frame[_CONNECTION]
    if frame[_PROTOCOL] == IPPROTO_UDP and frame[_TARGET_PORT] == _OUR_PORT:
        return frame[_JOB]
    return b""
