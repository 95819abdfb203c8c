"""The plane of native engines, whose packet loop is in C."""

from __future__ import annotations

import logging
import select
import socket
import threading
from collections.abc import Callable, Mapping
from os import close, dup, eventfd, eventfd_read, eventfd_write

from p4switch.backends.native.engine import NativeEngine
from p4switch.backends.native.loop import PacketLoop
from p4switch.device.plane import DigestSink, FrameSink, Plane
from p4switch.packet_io.receive_ring import ReceiveRing, default_frames, open_rings
from p4switch.targets.v1model.engine import ControlError, Digest, Engine, EngineStatistics

RECORD_SECONDS = 0.01
"""Polling interval in seconds for digests and log messages of native code."""

log = logging.getLogger(__name__)


class NativePlane(Plane):
    """A plane for native engines, with their loop in C. A thread waits for frames to the CPU.

    `receive_ring`: see `EngineOptions`.
    """

    def __init__(
        self,
        ports: Mapping[int, socket.socket],
        cpu_port: int | None,
        on_frames: FrameSink,
        on_digests: DigestSink,
        receive_ring: int | None = 0,
    ) -> None:
        super().__init__(ports, cpu_port, on_frames, on_digests)
        self._rings = _rings(self._ports, receive_ring)
        self._loop: PacketLoop | None = None
        self._wake = eventfd(0)
        self._closed = False
        self._changing = threading.Lock()  # Held while the loop is used or replaced.
        self._thread = threading.Thread(target=self._watch, name="cpu-port", daemon=True)
        self._thread.start()

    def now_us(self) -> int:
        """See `Plane`; 0 before there is an engine."""
        with self._changing:
            return self._loop.now_us() if self._loop is not None else 0

    def use(self, engine: Engine, handover: Callable[[], None] | None = None) -> None:
        """See `Plane`."""
        assert isinstance(engine, NativeEngine)
        frames: list[bytes] = []
        digests: list[Digest] = []
        with self._changing:
            if self._loop is not None:
                if handover is not None:
                    self._loop.stop(finish=True)
                    frames = self._loop.take_cpu_frames()
                    digests = self._loop.engine.take_digests()
                    handover()
                self._loop.close()
            self._loop = PacketLoop(engine)
            for number, packet_socket in self._ports.items():
                self._loop.add_port(number, packet_socket, self._rings.get(number))
            self._loop.start()
        eventfd_write(self._wake, 1)
        if frames:
            self._on_frames(frames)
        if digests:
            self._on_digests(digests)

    def interrupt(self) -> None:
        """See `Plane`."""
        loop = self._loop  # Replacing it also drops the packets in flight.
        if loop is not None:
            loop.engine.interrupt()

    def statistics(self) -> EngineStatistics:
        """See `Plane`."""
        with self._changing:
            return EngineStatistics() if self._loop is None else self._loop.engine.statistics()

    def inject(self, frame: bytes) -> None:
        """See `Plane`."""
        with self._changing:
            if self._loop is None:
                raise ControlError("FAILED_PRECONDITION", "no program runs")
            self._loop.inject(frame)

    def close(self) -> None:
        """See `Plane`."""
        if self._closed:
            return
        self._closed = True
        eventfd_write(self._wake, 1)
        self._thread.join()
        # Close it last: waking a thread that has just ended would write to another file.
        close(self._wake)
        with self._changing:
            if self._loop is not None:
                self._loop.close()
                self._loop = None
            for ring in self._rings.values():
                ring.close()

    def _watch(self) -> None:
        loop: PacketLoop | None = None
        watched = [self._wake]
        timeout = None
        while not self._closed:
            with self._changing:
                if self._loop is not loop:
                    loop = self._loop
                    for event in watched[1:]:
                        close(event)
                    # A duplicate, which stays valid if the loop is closed during the select.
                    watched[1:] = [dup(loop.cpu_event())] if loop is not None else []
                    layout = loop.engine.layout if loop is not None else None
                    polls = layout is not None and (layout.digests or layout.messages)
                    timeout = RECORD_SECONDS if polls else None
            readable, _, _ = select.select(watched, (), (), timeout)
            if self._wake in readable:
                eventfd_read(self._wake)
            self._take(loop)
        for event in watched[1:]:
            close(event)

    def _take(self, loop: PacketLoop | None) -> None:
        with self._changing:
            if loop is None or loop is not self._loop:
                return
            frames = loop.take_cpu_frames()
            digests = loop.engine.take_digests() if loop.engine.layout.digests else []
            loop.engine.log_messages()
        if frames:
            self._on_frames(frames)
        if digests:
            self._on_digests(digests)


def _rings(ports: Mapping[int, socket.socket], frames: int | None) -> dict[int, ReceiveRing]:
    """Return a receive ring for each port; none at all if the kernel refuses one."""
    try:
        rings = open_rings(ports, default_frames(len(ports)) if frames is None else frames)
    except OSError as error:
        log.warning("ports receive without rings, which takes more CPU: %s", error.strerror)
        return {}
    if rings:
        slots = {ring.state.count for ring in rings.values()}
        log.info("each port receives through a ring of %d frames", *slots)
    return rings
