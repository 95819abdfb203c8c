"""Captures of a switch's interfaces: files as BMv2's `--pcap` writes them, or one in pcapng."""

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
from typing import NamedTuple

from p4switch.device.plane import AUXDATA_ROOM, PACKET_AUXDATA, frame_with_tag
from p4switch.packet_io.pcap import CaptureState, PcapWriter, Record
from p4switch.packet_io.pcapng import SUFFIX, CapturedPacket, Direction, PcapngWriter
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


class _Seen(NamedTuple):
    """A frame that the kernel saw at a port (a place in the list of interfaces)."""

    port: int
    outgoing: bool
    nanoseconds: int
    frame: bytes


class _Port:
    """A socket that sees the frames of an interface."""

    def __init__(self, place: int, name: str) -> None:
        self.name = name
        self._place = place
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.socket.setblocking(False)
        set_buffer(self.socket, socket.SO_RCVBUF, BUFFER_BYTES)
        self.socket.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.socket.bind((name, ETH_P_ALL))
        self._lost = FullCounts({0: self.socket})
        self._buffer = bytearray(LARGEST_FRAME)

    def take(self) -> list[_Seen]:
        """Return a batch of frames. Raises OSError."""
        seen: list[_Seen] = []
        for _ in range(BATCH):
            try:
                length, ancillary, _, address = self.socket.recvmsg_into([self._buffer], ROOM)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENETDOWN:
                    raise
                continue
            frame = frame_with_tag(bytes(memoryview(self._buffer)[:length]), ancillary)
            outgoing = address[2] == PACKET_OUTGOING
            seen.append(_Seen(self._place, outgoing, _kernel_time(ancillary), frame))
        return seen

    def lost(self) -> int:
        """Return how many frames were lost so far."""
        return self._lost.read()[0]


class _Folder:
    """Files of each interface: `INTERFACE_in.pcap`, `INTERFACE_out.pcap`, `INTERFACE.capture`."""

    def __init__(self, folder: Path, interfaces: Sequence[str]) -> None:
        self._files = {
            (place, outgoing): PcapWriter(folder / f"{name}_{way}.pcap")
            for place, name in enumerate(interfaces)
            for outgoing, way in ((False, "in"), (True, "out"))
        }
        self._states = [CaptureState(folder, name) for name in interfaces]

    def write(self, seen: Sequence[_Seen]) -> None:
        records: dict[tuple[int, bool], list[Record]] = {}
        for port, outgoing, nanoseconds, frame in seen:
            records.setdefault((port, outgoing), []).append((nanoseconds, frame))
        for key, found in records.items():
            self._files[key].write_records(found)

    def note(self, lost: Sequence[int]) -> None:
        for state, frames in zip(self._states, lost, strict=True):
            state.write(lost=frames)

    def ended(self) -> None:
        for state in self._states:
            with suppress(OSError):
                state.write(ended=True)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        for state in self._states:
            state.close()


class _OneFile:
    """A pcapng file of all interfaces, with the frames in the order of their times."""

    def __init__(self, path: Path, interfaces: Sequence[str]) -> None:
        self._writer = PcapngWriter(path)
        for name in interfaces:
            self._writer.interface(name)
        self._lost = [0] * len(interfaces)

    def write(self, seen: Sequence[_Seen]) -> None:
        self._writer.write(
            CapturedPacket(
                port, Direction.OUTBOUND if outgoing else Direction.INBOUND, nanoseconds, frame
            )
            for port, outgoing, nanoseconds, frame in sorted(seen, key=lambda each: each[2])
        )

    def note(self, lost: Sequence[int]) -> None:
        for place, (before, now) in enumerate(zip(self._lost, lost, strict=True)):
            if now != before:
                self._writer.lost(place, time.time_ns(), now)
        self._lost = list(lost)

    def ended(self) -> None:
        pass  # The log says so.

    def close(self) -> None:
        self._writer.close()


class Capture:
    """Writes what interfaces receive and send, until closed: into a folder, or FILE.pcapng.

    In a folder are `INTERFACE_in.pcap` and `INTERFACE_out.pcap`, as of BMv2. It uses its own
    sockets, independent of the switch's packet loop. Times are the kernel's. Frames that it is too
    slow for are counted in `INTERFACE.capture` (`CaptureState`), or in statistics blocks. Where a
    file cannot be written, the capture ends with an error in the log, and the switch goes on.
    """

    def __init__(self, interfaces: Sequence[str], path: Path) -> None:
        target = _OneFile if path.suffix == SUFFIX else _Folder
        self._target: _OneFile | _Folder = target(path, interfaces)
        self._ports = [_Port(place, name) for place, name in enumerate(interfaces)]
        self._stop = eventfd(0)
        self._thread = threading.Thread(target=self._run, name="capture", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write pending frames and finish the files."""
        eventfd_write(self._stop, 1)
        self._thread.join()
        close(self._stop)
        for port in self._ports:
            port.socket.close()
        self._target.close()

    def _run(self) -> None:
        try:
            self._capture()
        except OSError as error:
            log.error(
                "the capture ends, the switch goes on: %s: %s; free some space, or give another "
                "place with --pcap",
                error.filename,
                error.strerror,
            )
            self._target.ended()
        for port in self._ports:
            lost = port.lost()
            if lost:
                log.warning(
                    "the capture of %s has holes: %d frames lost, the machine was too slow",
                    port.name,
                    lost,
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
            full = True
            while full:
                batches = [port.take() for port in self._ports]
                self._target.write([seen for batch in batches for seen in batch])
                full = any(len(batch) == BATCH for batch in batches)
                if stopped or time.monotonic() >= looked + STATE_SECONDS:
                    looked = time.monotonic()
                    self._target.note([port.lost() for port in self._ports])


def _kernel_time(ancillary: Sequence[tuple[int, int, bytes]]) -> int:
    """Return when the kernel saw a frame, in nanoseconds since 1970."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS) and len(data) >= TIMESTAMP.size:
            seconds, nanoseconds = TIMESTAMP.unpack_from(data)
            return int(seconds) * 10**9 + int(nanoseconds)
    return time.time_ns()
