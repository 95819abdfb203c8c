"""Paths between processes that communicate over TCP: latency, retransmission, partition, reset.

What TCP hides stays hidden: messages arrive once and in order, a lost packet is a delay, and
nothing arrives during a partition. Only a reset is visible to both ends, and to each only when the
path allows.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from hopsum.simulation.events import EventQueue

Action = Callable[[], None]

RETRANSMISSION_SECONDS = 0.2
"""Linux's minimum retransmission timeout of TCP, in seconds."""


@dataclass(frozen=True, slots=True)
class WireOptions:
    """`latency`: one-way seconds; `jitter`: random extra. `loss`: probability per message.

    `seconds_a_byte`: of all links, each of which stores messages and forwards them.
    """

    latency: float = 0.0005
    jitter: float = 0.0001
    loss: float = 0.0
    seconds_a_byte: float = 0.0


class Way:
    """One direction between two processes."""

    def __init__(self, queue: EventQueue, options: WireOptions, seed: str = "") -> None:
        self._queue = queue
        self._options = options
        self._rng = random.Random(seed)
        self._last = 0.0
        self._partitions = 0
        self._under_way: deque[tuple[Action, int]] = deque()
        self._held: list[tuple[Action, int]] | None = None

    def send(self, arrive: Action, size: int = 0) -> None:
        """Deliver something of `size` bytes later, after all that was sent before."""
        if self._held is not None:
            self._held.append((arrive, size))
            return
        options = self._options
        delay = options.latency + options.jitter * self._rng.random()
        while options.loss and self._rng.random() < options.loss:
            delay += RETRANSMISSION_SECONDS
        arrival = self._queue.now + delay + size * options.seconds_a_byte
        self._last = max(self._last, arrival)
        self._under_way.append((arrive, size))
        self._queue.at(self._last, partial(self._arrive, self._partitions))

    def _arrive(self, partitions: int) -> None:
        """Deliver what is next, unless a partition began after it was sent."""
        if partitions == self._partitions:
            arrive, _ = self._under_way.popleft()
            arrive()

    def part(self) -> None:
        """Deliver nothing until `join`; what is under way is lost."""
        if self._held is None:
            self._partitions += 1
            self._held = [*self._under_way]
            self._under_way.clear()

    def join(self) -> None:
        """Retransmit what has not arrived, in order."""
        held, self._held = self._held, None
        for arrive, size in held or ():
            self.send(arrive, size)


class Wire:
    """Both directions between a client and a server."""

    def __init__(self, queue: EventQueue, options: WireOptions, seed: str) -> None:
        self.up = Way(queue, options, f"{seed}/up")
        self.down = Way(queue, options, f"{seed}/down")

    def part(self) -> None:
        """Begin a partition: nothing arrives, and neither end gets an error."""
        self.up.part()
        self.down.part()

    def join(self) -> None:
        """End a partition."""
        self.up.join()
        self.down.join()
