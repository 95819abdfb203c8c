"""Event loop of state machines and a port: sleeps until frames arrive or a timer is due."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from host_agent.io.port import FramePort, Frames

RETRY_SECONDS = 0.002
"""Pause before frames that a full queue rejected are offered again."""


MODERATION_SECONDS = 0.001
"""Maximum interval between receptions in a steady stream.

Taking in one frame costs almost what ten cost together, and a stream's window covers the delay; a
lone frame is taken in at once. (Network cards moderate their interrupts in the same way.)
"""
STEADY_FRAMES = 2
"""A stream is steady if a moderation interval brings at least this many frames."""
LONE_FRAMES = 2
"""A burst of up to this many frames does not announce more: a small call is a check and its values.
"""
DEEP_SECONDS = 0.010
"""Maximum interval if the machines can defer more frames: as many are awaited, by the stream's
rate."""


class Machine(Protocol):
    """A sans-I/O state machine: worker, server, or several."""

    def receive(self, frames: Frames, now: float) -> None:
        """Process frames (n, length)."""

    def tick(self, now: float) -> None:
        """Run due timers, if any."""

    def take_output(self) -> list[Frames]:
        """Return the frames to send, in order."""

    @property
    def deadline(self) -> float | None:
        """Latest time to call `tick`."""

    @property
    def deferrable(self) -> int:
        """Number of frames that may be batched; 0 if each is awaited."""


class Loop:
    """One port and the machines behind it; `watch`: other descriptors that end a sleep.

    `clock` gives the machines' time in seconds; it must run on while the loop sleeps.
    """

    def __init__(
        self,
        port: FramePort,
        machines: Sequence[Machine],
        *,
        watch: Iterable[int] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._port = port
        self._machines = machines
        self._clock = clock
        self._backlog: list[Frames] = []
        self._taken_at = float("-inf")
        self._pause_seconds = 0.0
        """Seconds between receptions."""
        self._pause = select.poll()
        self._poll = select.poll()
        for descriptor in (port.fileno(), *watch):
            self._poll.register(descriptor, select.POLLIN)

    def watch(self, descriptor: int) -> None:
        """Watch another descriptor."""
        self._poll.register(descriptor, select.POLLIN)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching a descriptor."""
        self._poll.unregister(descriptor)

    def turn(self, patience: float | None = None) -> set[int]:
        """Send, sleep until something is due, receive; return the readable descriptors.

        `patience`: seconds to sleep at most; None: as long as nothing is due.
        """
        self.flush()
        now = self._clock()
        waits = [] if patience is None else [patience]
        deadlines = [machine.deadline for machine in self._machines]
        waits += [deadline - now for deadline in deadlines if deadline is not None]
        if self._backlog:
            waits.append(RETRY_SECONDS)
        timeout = 1000 * max(0.0, min(waits)) if waits else None
        ready = {descriptor for descriptor, _ in self._poll.poll(timeout)}
        if self._port.fileno() in ready:
            self._moderate()
        now = self._clock()
        if self._port.fileno() in ready:
            taken = 0
            for frames in self._port.receive():
                taken += len(frames)
                for machine in self._machines:
                    machine.receive(frames, now)
            self._moderate_next(taken, now)
        for machine in self._machines:
            machine.tick(now)
        return ready

    def _moderate(self) -> None:
        """In a steady stream, let more frames arrive before receiving them together."""
        early = self._taken_at + self._pause_seconds - self._clock()
        if early >= 0.0005:  # poll counts in milliseconds
            self._pause.poll(round(1000 * early))

    def _moderate_next(self, taken: int, now: float) -> None:
        """Choose the next time of reception from the number of frames since the last one."""
        elapsed = max(now - self._taken_at, MODERATION_SECONDS)
        self._taken_at = now
        self._pause_seconds = 0.0
        if taken > LONE_FRAMES and taken * MODERATION_SECONDS >= STEADY_FRAMES * elapsed:
            self._pause_seconds = MODERATION_SECONDS
        deferrable = min(machine.deferrable for machine in self._machines)
        if deferrable and taken >= STEADY_FRAMES and elapsed <= 2 * DEEP_SECONDS:
            deep = min(deferrable * elapsed / taken, DEEP_SECONDS)
            self._pause_seconds = max(self._pause_seconds, deep)

    def flush(self) -> None:
        """Send the machines' frames, as far as the port accepts them."""
        for machine in self._machines:
            self._backlog += machine.take_output()
        sent = 0
        for frames in self._backlog:
            taken = self._port.send(frames)
            if taken < len(frames):
                self._backlog[sent] = frames[taken:]
                break
            sent += 1
        del self._backlog[:sent]
