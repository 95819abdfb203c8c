"""Traces as a capture: what arrived and what was sent, with a comment why a packet was dropped."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from p4switch.backends.reference.trace import Event, PacketTrace, place
from p4switch.packet_io.pcapng import CapturedPacket, Direction, PcapngWriter
from p4switch.position import NOWHERE

log = logging.getLogger(__name__)


class TraceCapture:
    """A sink of traces that writes a pcapng file; where that fails it ends, and says so once.

    `interfaces`: names of ports. `start_ns`: when the switch's clock was 0, in nanoseconds since
    1970; None: what the time of the first packet says. Raises OSError.
    """

    def __init__(
        self, path: Path, interfaces: Mapping[int, str], start_ns: int | None = None
    ) -> None:
        self._writer: PcapngWriter | None = PcapngWriter(path)
        self._start_ns = start_ns
        self._numbers = {port: self._writer.interface(name) for port, name in interfaces.items()}

    def __call__(self, trace: PacketTrace) -> None:
        """Write a packet and those that it became."""
        if self._writer is None:
            return
        try:
            self._writer.write(list(self._packets(self._writer, trace)))
        except OSError as error:
            log.error("the trace ends, the switch goes on: %s: %s", error.filename, error.strerror)
            self._writer.close()
            self._writer = None

    def _packets(self, writer: PcapngWriter, trace: PacketTrace) -> Iterator[CapturedPacket]:
        if self._start_ns is None:
            self._start_ns = time.time_ns() - trace.now_us * 1000
        when = self._start_ns + trace.now_us * 1000
        arrived, comments = self._number(writer, trace.port), list(_comments(trace))
        yield CapturedPacket(arrived, Direction.INBOUND, when, trace.frame, comments)
        for port, frame in trace.out:
            yield CapturedPacket(self._number(writer, port), Direction.OUTBOUND, when, frame)

    def _number(self, writer: PcapngWriter, port: int) -> int:
        """Return the interface of a port; one without a name (of the CPU) gets one here."""
        number = self._numbers.get(port)
        if number is None:
            number = self._numbers[port] = writer.interface(f"port{port}")
        return number


def _comments(trace: PacketTrace) -> Iterator[str]:
    for event in trace.events:
        if event.kind == "drop":
            yield f"dropped: {event.name}{_at(event)}"
        elif event.kind == "parser_error":
            yield f"parser error: {event.name}"


def _at(event: Event) -> str:
    return "" if event.position == NOWHERE else f" [{place(event.position)}]"
