"""Capture files: the classic pcap format (libpcap's savefile man page), nanosecond variant."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

MAGIC_NANOSECONDS = 0xA1B23C4D
MAGIC_MICROSECONDS = 0xA1B2C3D4
LINKTYPE_ETHERNET = 1


class PcapError(ValueError):
    """A file is not a supported capture; the message names it."""


class PcapWriter:
    """Writes Ethernet frames with timestamps; use as a context manager."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb")
        self._file.write(
            struct.pack("<IHHiIII", MAGIC_NANOSECONDS, 2, 4, 0, 0, 1 << 18, LINKTYPE_ETHERNET)
        )

    def write(self, seconds: float, frame: bytes) -> None:
        """Append a frame that was seen at `seconds`."""
        nanoseconds = round(seconds * 1e9)
        self._file.write(
            struct.pack("<IIII", *divmod(nanoseconds, 10**9), len(frame), len(frame)) + frame
        )

    def close(self) -> None:
        """Finish the file."""
        self._file.close()

    def __enter__(self) -> PcapWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_pcap(path: Path) -> Iterator[tuple[float, bytes]]:
    """Yield times in seconds and frames of a capture; PcapError for other files."""
    data = path.read_bytes()
    for order in "<>":
        if len(data) >= 24:
            magic = struct.unpack_from(order + "I", data)[0]
            if magic in (MAGIC_NANOSECONDS, MAGIC_MICROSECONDS):
                unit = 1e-9 if magic == MAGIC_NANOSECONDS else 1e-6
                break
    else:
        raise PcapError(f"{path}: not a pcap file (expected magic number a1b2c3d4 or a1b23c4d)")
    offset = 24
    while offset < len(data):
        if offset + 16 > len(data):
            raise PcapError(f"{path}: cut off in a record header at byte {offset}")
        seconds, fraction, length, _ = struct.unpack_from(order + "IIII", data, offset)
        offset += 16
        if offset + length > len(data):
            raise PcapError(f"{path}: cut off in a frame at byte {offset}")
        yield seconds + fraction * unit, data[offset : offset + length]
        offset += length
