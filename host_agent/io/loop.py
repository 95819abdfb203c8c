"""Event loop of state machines and a port: sleeps until frames arrive or a timer is due."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Protocol

from host_agent.io.port import FlowPort, FramePort, Frames
from host_agent.timeout import earliest

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

    def enter(self) -> list[int]:
        """Leave ordinary frames, and the timers of these streams, to flows until `leave`.

        Returns the addresses of the flows (flow.h).
        """

    def leave(self, now: float) -> int:
        """Take over what the flows have done since `enter`; return the bytes they have sent."""


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
        self._others = select.epoll()
        """Descriptors but the port's."""
        for descriptor in watch:
            self._others.register(descriptor, select.EPOLLIN)
        self._poll = select.poll()
        for descriptor in (port.fileno(), self._others.fileno()):
            self._poll.register(descriptor, select.POLLIN)
        # Flows go by the clock of the machine.
        self._flows = port if isinstance(port, FlowPort) and clock is time.monotonic else None

    def watch(self, descriptor: int) -> None:
        """Watch another descriptor."""
        self._others.register(descriptor, select.EPOLLIN)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching a descriptor."""
        self._others.unregister(descriptor)

    def turn(self, patience: float | None = None) -> set[int]:
        """Send, sleep until something is due, receive; return the readable descriptors.

        `patience`: seconds to sleep at most; None: as long as nothing is due.
        """
        self.flush()
        flows = []
        if self._flows is not None and not self._backlog:
            flows = [flow for machine in self._machines for flow in machine.enter()]
        now = self._clock()
        times = [machine.deadline for machine in self._machines]
        until = earliest(*times, None if patience is None else now + patience)
        if self._flows is not None and flows:
            return self._run(self._flows, flows, until)
        if self._backlog:
            until = earliest(until, now + RETRY_SECONDS)
        timeout = None if until is None else 1000 * max(0.0, until - now)
        ready = {descriptor for descriptor, _ in self._poll.poll(timeout)}
        if self._port.fileno() in ready:
            self._moderate()
        now = self._clock()
        if self._port.fileno() in ready:
            self._moderate_next(self._take(self._port.receive(), now), now)
        for machine in self._machines:
            machine.tick(now)
        if self._others.fileno() in ready:
            ready.update(descriptor for descriptor, _ in self._others.poll(0))
        return ready

    def _run(self, port: FlowPort, flows: list[int], until: float | None) -> set[int]:
        """Move frames of flows until there is something else to do, and do that."""
        try:
            ran = port.run(flows, inf if until is None else until, self._others.fileno())
        finally:
            now = self._clock()
            for machine in self._machines:
                machine.leave(now)
        self._backlog += ran.unsent
        self._take(ran.received, now)
        for machine in self._machines:
            machine.tick(now)
        return {descriptor for descriptor, _ in self._others.poll(0)} if ran.others else set()

    def _take(self, received: list[Frames], now: float) -> int:
        """Pass frames to the machines; return how many."""
        for frames in received:
            for machine in self._machines:
                machine.receive(frames, now)
        return sum(map(len, received))

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
