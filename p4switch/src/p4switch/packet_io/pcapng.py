"""Capture files in the format pcapng (draft-ietf-opsawg-pcapng): one file for many interfaces.

Numbers are little-endian, times are in nanoseconds, and packets may have comments.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from p4switch.packet_io.pcap import LINKTYPE_ETHERNET, CaptureFile

SUFFIX = ".pcapng"

SECTION_HEADER, INTERFACE_DESCRIPTION = 0x0A0D0D0A, 1
INTERFACE_STATISTICS, ENHANCED_PACKET = 5, 6
"""Types of blocks."""
BYTE_ORDER = 0x1A2B3C4D
UNKNOWN_LENGTH = (1 << 64) - 1
SNAP_LENGTH = 1 << 18

COMMENT, USER_APPLICATION = 1, 4
IF_NAME, IF_TSRESOL = 2, 9
EPB_FLAGS = 2
ISB_IFDROP = 5
"""Options of blocks."""
NANOSECONDS = b"\x09"

Option = tuple[int, bytes]


class Direction(IntEnum):
    """Bits 0 and 1 of a packet's flags."""

    INBOUND = 1
    OUTBOUND = 2


class CapturedPacket(NamedTuple):
    """A packet at an interface (a number that `interface` gave), in nanoseconds since 1970."""

    interface: int
    direction: Direction
    nanoseconds: int
    frame: bytes
    comments: Sequence[str] = ()


class PcapngWriter(CaptureFile):
    """Writes Ethernet frames of many interfaces, at once; use as a context manager."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._interfaces = 0
        self._append(
            _block(
                SECTION_HEADER,
                struct.pack("<IHHQ", BYTE_ORDER, 1, 0, UNKNOWN_LENGTH),
                [(USER_APPLICATION, b"p4switch")],
            )
        )

    def interface(self, name: str) -> int:
        """Describe another interface; return its number. Raises OSError."""
        body = struct.pack("<HHI", LINKTYPE_ETHERNET, 0, SNAP_LENGTH)
        options = [(IF_NAME, name.encode()), (IF_TSRESOL, NANOSECONDS)]
        self._append(_block(INTERFACE_DESCRIPTION, body, options))
        self._interfaces += 1
        return self._interfaces - 1

    def write(self, packets: Iterable[CapturedPacket]) -> None:
        """Append packets with a single write, and none if they do not all fit: OSError."""
        self._append(b"".join(map(_packet, packets)))

    def lost(self, interface: int, nanoseconds: int, packets: int) -> None:
        """Note how many packets of an interface the capture has lost until then. Raises OSError."""
        body = struct.pack("<III", interface, *_time(nanoseconds))
        options = [(ISB_IFDROP, struct.pack("<Q", packets))]
        self._append(_block(INTERFACE_STATISTICS, body, options))


def _packet(packet: CapturedPacket) -> bytes:
    interface, direction, nanoseconds, frame, comments = packet
    size = len(frame)
    body = struct.pack("<IIIII", interface, *_time(nanoseconds), size, size) + _padded(frame)
    options = [(EPB_FLAGS, struct.pack("<I", direction))]
    options += [(COMMENT, comment.encode()) for comment in comments]
    return _block(ENHANCED_PACKET, body, options)


def _time(nanoseconds: int) -> tuple[int, int]:
    """Return the high and the low 32 bits of a time."""
    return nanoseconds >> 32, nanoseconds & 0xFFFFFFFF


def _block(kind: int, body: bytes, options: Iterable[Option]) -> bytes:
    """Return a block; `body` has whole words."""
    rest = b"".join(
        struct.pack("<HH", code, len(value)) + _padded(value) for code, value in options
    )
    size = 12 + len(body) + len(rest) + 4
    return struct.pack("<II", kind, size) + body + rest + struct.pack("<HHI", 0, 0, size)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
