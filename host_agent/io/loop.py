"""Event loop of state machines and a port: sleeps until frames arrive or a timer is due."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Protocol

from hopsum.host_agent.io.port import FlowPort, FramePort, Frames
from hopsum.host_agent.timeout import earliest

RETRY_SECONDS = 0.002
"""Pause before frames that a full queue rejected are offered again."""


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
    def deferrable(self) -> float:
        """Number of frames that may be batched; 0 if each is awaited, infinite if none can come."""

    def enter(self) -> list[int]:
        """Leave frames, and the timers of their streams, to flows until `leave`.

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
        self._others = select.epoll()
        """Descriptors but the port's."""
        for descriptor in watch:
            self._others.register(descriptor, select.EPOLLIN)
        self._poll = select.poll()
        for descriptor in (port.fileno(), self._others.fileno()):
            self._poll.register(descriptor, select.POLLIN)
        # Flows go by the clock of the machine.
        self._flows: FlowPort | None = None
        if isinstance(port, FlowPort) and port.native and clock is time.monotonic:
            self._flows = port

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
        if self._flows is not None and not self._backlog:
            return self._run(self._flows, patience)
        now = self._clock()
        until = self._until(now, patience)
        if self._backlog:
            until = min(until, now + RETRY_SECONDS)
        timeout = None if until == inf else 1000 * max(0.0, until - now)
        ready = {descriptor for descriptor, _ in self._poll.poll(timeout)}
        now = self._clock()
        if self._port.fileno() in ready:
            self._take(self._port.receive(), now)
        for machine in self._machines:
            machine.tick(now)
        if self._others.fileno() in ready:
            ready.update(descriptor for descriptor, _ in self._others.poll(0))
        return ready

    def _until(self, now: float, patience: float | None) -> float:
        """Return the time by which something is due, infinity if nothing is."""
        times = [machine.deadline for machine in self._machines]
        due = earliest(*times, None if patience is None else now + patience)
        return inf if due is None else due

    def _run(self, port: FlowPort, patience: float | None) -> set[int]:
        """Move frames of flows until there is something else to do, and do that."""
        machines = self._machines
        flows = [flow for machine in machines for flow in machine.enter()]
        until = self._until(self._clock(), patience)
        deferrable = min([machine.deferrable for machine in machines])
        try:
            ran = port.run(flows, until, self._others.fileno(), deferrable)
        finally:
            now = self._clock()
            for machine in machines:
                machine.leave(now)
        self._backlog += ran.unsent
        now = self._clock()
        self._take(ran.received, now)
        for machine in machines:
            machine.tick(now)
        ready = {self._port.fileno()} if ran.received else set()
        if ran.others:
            ready.update(descriptor for descriptor, _ in self._others.poll(0))
        return ready

    def _take(self, received: list[Frames], now: float) -> None:
        """Pass frames to the machines."""
        for frames in received:
            for machine in self._machines:
                machine.receive(frames, now)

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
