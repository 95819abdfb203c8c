"""The disk of the controller's machine in virtual time: files in memory, with faults."""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from hopsum.files.lock import FileInUse


def _no_room() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _File(io.RawIOBase):
    """A file that is being written."""

    def __init__(self, disk: VirtualDisk, content: bytearray) -> None:
        super().__init__()
        self._disk = disk
        self._content = content

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        """Append. OSError if the disk is full or gone."""
        room = self._disk.take(len(data))
        self._content += bytes(data[:room])
        if room < len(data):
            self._disk.fail()
        return room

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Return the size: everything is appended."""
        return len(self._content)

    def truncate(self, size: int | None = None, /) -> int:
        """Truncate the file. OSError if the disk is gone."""
        self._disk.check()
        del self._content[size:]
        return len(self._content)


class VirtualDisk:
    """Files by path (`hopsum.controller.jobs.journal.Disk`)."""

    def __init__(self, files: Mapping[Path, bytes] | None = None) -> None:
        self._files = {path: bytearray(content) for path, content in (files or {}).items()}
        self._room: int | None = None
        """Bytes that can still be written; None: no limit."""
        self._torn: Callable[[], None] | None = None
        self._gone = False
        self._locks: dict[Path, object] = {}
        """Files that a process owns, and what stands for the process."""

    # -- the journal's interface

    def read(self, file: Path) -> bytes:
        """Return what is in a file. FileNotFoundError."""
        try:
            return bytes(self._files[file])
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from None

    def open(self, file: Path, *, append: bool = False) -> BinaryIO:
        """Open a file for writing, truncated or for appending."""
        self.check()
        content = self._files.setdefault(file, bytearray())
        if not append:
            content = self._files[file] = bytearray()
        return cast(BinaryIO, _File(self, content))

    def sync(self, file: BinaryIO) -> None:
        """Do nothing: data is always synced."""
        self.check()

    def replace(self, new: Path, file: Path) -> None:
        """Rename a file over another."""
        self.check()
        self._files[file] = self._files.pop(new)

    def remove(self, file: Path) -> None:
        """Remove a file if it exists."""
        self.check()
        self._files.pop(file, None)

    def locate(self, file: Path) -> Path:
        """Return the file: there are no symbolic links."""
        return file

    @contextlib.contextmanager
    def lock(self, file: Path) -> Iterator[None]:
        """Own a file while the block runs, or until `end_owners`. FileInUse."""
        if file in self._locks:
            raise FileInUse(file, None)
        owner = self._locks[file] = object()
        try:
            yield
        finally:
            if self._locks.get(file) is owner:
                del self._locks[file]

    def end_owners(self) -> None:
        """Release all locks, as the end of their owners does."""
        self._locks.clear()

    # -- faults

    def fill(self, room: int) -> None:
        """Make the disk full after this many bytes, until `free`."""
        self._room = room

    def tear(self, room: int, torn: Callable[[], None]) -> None:
        """Let the machine fail after this many bytes, and call `torn` then.

        After that nothing is written or truncated, until `free`.
        """
        self._room, self._torn = room, torn

    def free(self) -> None:
        """Remove all limits."""
        self._room, self._torn, self._gone = None, None, False

    def take(self, size: int) -> int:
        """Return how many of these bytes are written."""
        self.check()
        if self._room is None:
            return size
        taken = min(size, self._room)
        self._room -= taken
        return taken

    def fail(self) -> None:
        """Raise OSError: the disk is full."""
        if self._torn is not None:
            torn, self._torn, self._gone = self._torn, None, True
            torn()
        raise _no_room()

    def check(self) -> None:
        """Raise OSError if the machine has failed."""
        if self._gone:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    # -- crashes

    def content(self) -> dict[Path, bytes]:
        """Return all files."""
        return {path: bytes(content) for path, content in self._files.items()}

    def restore(self, files: Mapping[Path, bytes]) -> None:
        """Restore these files: undo what a process did after its end."""
        self._files = {path: bytearray(content) for path, content in files.items()}
