"""Capture files of a switch's interfaces, as BMv2's `--pcap` writes them."""

from __future__ import annotations

import errno
import logging
import select
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from os import close, eventfd, eventfd_write
from pathlib import Path

from p4switch.device.plane import AUXDATA_ROOM, PACKET_AUXDATA, frame_with_tag
from p4switch.packet_io.pcap import CaptureState, PcapWriter, Record
from p4switch.packet_io.sockets import ETH_P_ALL, SOL_PACKET, FullCounts, set_buffer

PACKET_OUTGOING = 4
LARGEST_FRAME = 1 << 17
SO_TIMESTAMPNS = 35
TIMESTAMP = struct.Struct("@ll")
"""Seconds and nanoseconds since 1970 (struct timespec)."""
ROOM = AUXDATA_ROOM + socket.CMSG_SPACE(TIMESTAMP.size)
BUFFER_BYTES = 32 << 20
"""Of a port, which the kernel doubles: some 28,000 frames wait while this process does not run."""
BATCH = 256
"""Maximum frames of a port in a turn, and in a write."""
STATE_SECONDS = 1.0
"""Seconds between looks at what was lost."""

log = logging.getLogger(__name__)


class _Port:
    """The capture of an interface."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.into = PcapWriter(folder / f"{name}_in.pcap")
        self.out = PcapWriter(folder / f"{name}_out.pcap")
        self.state = CaptureState(folder, name)
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.socket.setblocking(False)
        set_buffer(self.socket, socket.SO_RCVBUF, BUFFER_BYTES)
        self.socket.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.socket.bind((name, ETH_P_ALL))
        self._lost = FullCounts({0: self.socket})
        self._buffer = bytearray(LARGEST_FRAME)

    def close(self) -> None:
        self.socket.close()
        for each in (self.into, self.out, self.state):
            each.close()

    def take(self) -> bool:
        """Write a batch of frames; return whether there may be more. Raises OSError."""
        into: list[Record] = []
        out: list[Record] = []
        more = True
        for _ in range(BATCH):
            try:
                length, ancillary, _, address = self.socket.recvmsg_into([self._buffer], ROOM)
            except BlockingIOError:
                more = False
                break
            except OSError as error:
                if error.errno != errno.ENETDOWN:
                    raise
                continue
            frame = frame_with_tag(bytes(memoryview(self._buffer)[:length]), ancillary)
            records = out if address[2] == PACKET_OUTGOING else into
            records.append((_kernel_time(ancillary), frame))
        for writer, records in ((self.into, into), (self.out, out)):
            if records:
                writer.write_records(records)
        return more

    def note_losses(self) -> None:
        """Write how many frames were lost so far."""
        self.state.write(lost=self._lost.read()[0])


class Capture:
    """Writes `INTERFACE_in.pcap` and `INTERFACE_out.pcap` into a folder until closed.

    It uses its own sockets, independent of the switch's packet loop. Times are the kernel's.
    Frames that it is too slow for are counted in `INTERFACE.capture` (`CaptureState`). Where a file
    cannot be written, the capture ends with an error in the log, and the switch goes on.
    """

    def __init__(self, interfaces: Sequence[str], folder: Path) -> None:
        self._ports = [_Port(name, folder) for name in interfaces]
        self._stop = eventfd(0)
        self._thread = threading.Thread(target=self._run, name="capture", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write pending frames and finish the files."""
        eventfd_write(self._stop, 1)
        self._thread.join()
        close(self._stop)
        for port in self._ports:
            port.close()

    def _run(self) -> None:
        try:
            self._capture()
        except OSError as error:
            log.error(
                "the capture ends, the switch goes on: %s: %s; free some space, or give another "
                "folder with --pcap",
                error.filename,
                error.strerror,
            )
            for port in self._ports:
                with suppress(OSError):
                    port.state.write(ended=True)
        for port in self._ports:
            if port.state.lost:
                log.warning(
                    "the capture of %s has holes: %d frames lost, the machine was too slow",
                    port.name,
                    port.state.lost,
                )

    def _capture(self) -> None:
        poll = select.poll()
        poll.register(self._stop, select.POLLIN)
        for port in self._ports:
            poll.register(port.socket, select.POLLIN)
        stopped, looked = False, time.monotonic()
        while not stopped:
            ready = poll.poll(int(STATE_SECONDS * 1000))
            stopped = any(descriptor == self._stop for descriptor, _ in ready)
            waiting = list(self._ports)
            while waiting:
                waiting = [port for port in waiting if port.take()]
                if stopped or time.monotonic() >= looked + STATE_SECONDS:
                    looked = time.monotonic()
                    for port in self._ports:
                        port.note_losses()


def _kernel_time(ancillary: Sequence[tuple[int, int, bytes]]) -> int:
    """Return when the kernel saw a frame, in nanoseconds since 1970."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS) and len(data) >= TIMESTAMP.size:
            seconds, nanoseconds = TIMESTAMP.unpack_from(data)
            return int(seconds) * 10**9 + int(nanoseconds)
    return time.time_ns()
