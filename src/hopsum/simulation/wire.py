"""Paths between processes that communicate over TCP: latency, retransmission, partition, reset.

What TCP hides stays hidden: messages arrive once and in order, a lost packet is a delay, and
nothing arrives during a partition. Only a reset is visible to both ends, and to each only when the
path allows.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from hopsum.simulation.events import EventQueue

Action = Callable[[], None]

RETRANSMISSION_SECONDS = 0.2
"""Linux's minimum retransmission timeout of TCP, in seconds."""


@dataclass(frozen=True, slots=True)
class WireOptions:
    """`latency`: one-way seconds; `jitter`: random extra. `loss`: probability per message."""

    latency: float = 0.0005
    jitter: float = 0.0001
    loss: float = 0.0


class Way:
    """One direction between two processes."""

    def __init__(self, queue: EventQueue, options: WireOptions, rng: random.Random) -> None:
        self._queue = queue
        self._options = options
        self._rng = rng
        self._last = 0.0
        self._held: list[Action] | None = None

    def send(self, arrive: Action) -> None:
        """Deliver something later, after all that was sent before."""
        if self._held is not None:
            self._held.append(arrive)
            return
        options = self._options
        delay = options.latency + options.jitter * self._rng.random()
        while options.loss and self._rng.random() < options.loss:
            delay += RETRANSMISSION_SECONDS
        self._last = max(self._last, self._queue.now + delay)
        self._queue.at(self._last, lambda: self._arrive(arrive))

    def _arrive(self, arrive: Action) -> None:
        if self._held is not None:
            self._held.append(arrive)
        else:
            arrive()

    def part(self) -> None:
        """Deliver nothing until `join`."""
        self._held = self._held or []

    def join(self) -> None:
        """Retransmit what has not arrived."""
        held, self._held = self._held, None
        for arrive in held or ():
            self.send(arrive)

    @property
    def parted(self) -> bool:
        """Return whether the path is partitioned at present."""
        return self._held is not None


class Wire:
    """Both directions between a client and a server."""

    def __init__(self, queue: EventQueue, options: WireOptions, seed: str) -> None:
        self.up = Way(queue, options, random.Random(f"{seed}/up"))
        self.down = Way(queue, options, random.Random(f"{seed}/down"))

    def part(self) -> None:
        """Begin a partition: nothing arrives, and neither end gets an error."""
        self.up.part()
        self.down.part()

    def join(self) -> None:
        """End a partition."""
        self.up.join()
        self.down.join()
