"""Capture files: the classic pcap format (libpcap's savefile man page), nanosecond variant."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

MAGIC_NANOSECONDS = 0xA1B23C4D
MAGIC_MICROSECONDS = 0xA1B2C3D4
LINKTYPE_ETHERNET = 1


class PcapError(ValueError):
    """A file is not a supported capture; the message names it."""


Record = tuple[int, bytes]
"""When a frame was seen, in nanoseconds since 1970, and the frame."""


class CaptureFile:
    """A file that grows by whole writes, each at once in the file; use as a context manager."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = path.open("wb", buffering=0)
        self._end = 0

    def _append(self, data: bytes) -> None:
        """Write all of it or nothing: OSError."""
        try:
            written = 0
            while written < len(data):
                written += self._file.write(memoryview(data)[written:])
        except OSError as error:
            self._file.seek(self._end)
            self._file.truncate()
            error.filename = str(self._path)
            raise
        self._end += len(data)

    def close(self) -> None:
        """Finish the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class PcapWriter(CaptureFile):
    """Writes Ethernet frames with timestamps, at once; use as a context manager."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._append(
            struct.pack("<IHHiIII", MAGIC_NANOSECONDS, 2, 4, 0, 0, 1 << 18, LINKTYPE_ETHERNET)
        )

    def write(self, seconds: float, frame: bytes) -> None:
        """Append a frame that was seen at `seconds`. Raises OSError as `write_records`."""
        self.write_records([(round(seconds * 1e9), frame)])

    def write_records(self, records: Iterable[Record]) -> None:
        """Append frames with a single write, and none if they do not all fit: OSError."""
        parts: list[bytes] = []
        for nanoseconds, frame in records:
            times = divmod(nanoseconds, 10**9)
            parts += (struct.pack("<IIII", *times, len(frame), len(frame)), frame)
        self._append(b"".join(parts))


class CaptureState:
    """Frames missing in the capture of an interface, in `INTERFACE.capture` in the same folder.

    Its size is fixed, so that it can be written even when the disk is full.
    """

    BYTES = 128

    def __init__(self, folder: Path, interface: str) -> None:
        self.lost = 0
        self.ended = False
        self._file = state_file(folder, interface).open("wb", buffering=0)
        self._write()

    def write(self, *, lost: int | None = None, ended: bool | None = None) -> None:
        """Set the number of lost frames, or that the capture ended early; OSError if it fails."""
        before = self.lost, self.ended
        self.lost = self.lost if lost is None else lost
        self.ended = self.ended if ended is None else ended
        if (self.lost, self.ended) != before:
            self._write()

    def _write(self) -> None:
        text = json.dumps({"lost": self.lost, "ended": self.ended})
        self._file.seek(0)
        self._file.write(f"{text:{self.BYTES - 1}}\n".encode())

    def close(self) -> None:
        """Finish the file."""
        self._file.close()


def state_file(folder: Path, interface: str) -> Path:
    """Return the path of an interface's `CaptureState`."""
    return folder / f"{interface}.capture"


def read_state(folder: Path, interface: str) -> tuple[int, bool]:
    """Return how many frames a capture lost, and whether it ended early; (0, False) if unknown.

    Raises PcapError for a file that is no `CaptureState`.
    """
    path = state_file(folder, interface)
    try:
        state = json.loads(path.read_text())
        return int(state["lost"]), bool(state["ended"])
    except FileNotFoundError:
        return 0, False
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise PcapError(f"{path}: not the state of a capture: {error}") from None


def read_pcap(path: Path) -> Iterator[tuple[float, bytes]]:
    """Yield times in seconds and frames of a capture; PcapError for other files.

    A record that is cut off at the end is left out: its writer was killed.
    """
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
    while offset + 16 <= len(data):
        seconds, fraction, length, _ = struct.unpack_from(order + "IIII", data, offset)
        offset += 16
        if offset + length > len(data):
            return
        yield seconds + fraction * unit, data[offset : offset + length]
        offset += length
