"""A journal: persistent records, here as lines of JSON in a file.

(`hopsum.controller.ha.etcd_journal` keeps them in etcd.) A record counts once its line is whole and
on the disk (fsync), so that it survives a power failure too. One that cannot be written whole, as
on a full disk, is cut off again; what a crash has left of one is cut off when the file is next
read. One process at a time owns a journal, since each takes what it has not written itself for such
a rest.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from hopsum.files.lock import FileInUse, locked
from hopsum.files.output import make_folder
from hopsum.protocol.errors import InputError, OperationError

LOGGER = logging.getLogger("hopsum.journal")

Record = dict[str, Any]


class JournalError(InputError):
    """A file that is not a journal, or cannot be read; the message names the file and the line."""

    exit_code = 1


class UnrecordedError(OperationError):
    """A record that could not be written and is not in the file."""


class Disk(Protocol):
    """File system of a journal's file. Methods raise OSError as the machine's files do."""

    def read(self, file: Path) -> bytes:
        """Return the contents of a file."""

    def open(self, file: Path, *, append: bool = False) -> BinaryIO:
        """Open a file for writing, truncated or for appending, without a buffer."""

    def sync(self, file: BinaryIO) -> None:
        """Sync a file, so that its contents survive a power failure."""

    def replace(self, new: Path, file: Path) -> None:
        """Rename a file over another, and sync the folder."""

    def remove(self, file: Path) -> None:
        """Remove a file if it exists."""

    def locate(self, file: Path) -> Path:
        """Return where a file is; symbolic links lead there."""

    def lock(self, file: Path) -> AbstractContextManager[None]:
        """Own a file while a block runs; entering it raises FileInUse."""


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _check_regular(file: Path) -> None:
    if file.exists() and not file.is_file():
        raise JournalError(f"{file}: expected a file, found something else")


class RealDisk:
    """The files of this machine."""

    def read(self, file: Path) -> bytes:
        """See `Disk`. JournalError unless it is a regular file."""
        _check_regular(file)
        return file.read_bytes()

    def open(self, file: Path, *, append: bool = False) -> BinaryIO:
        """See `Disk`; folders to a file that is written anew are made.

        Jobs have keys: a new file is readable by its user alone.
        """
        if append:
            return open(file, "ab", buffering=0, opener=_private)
        file.parent.mkdir(parents=True, exist_ok=True)
        return open(file, "wb", buffering=0, opener=_private)

    def sync(self, file: BinaryIO) -> None:
        """See `Disk`."""
        os.fsync(file.fileno())

    def replace(self, new: Path, file: Path) -> None:
        """See `Disk`."""
        new.replace(file)
        descriptor = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, file: Path) -> None:
        """See `Disk`."""
        file.unlink(missing_ok=True)

    def locate(self, file: Path) -> Path:
        """See `Disk`."""
        return Path(os.path.realpath(file))

    @contextlib.contextmanager
    def lock(self, file: Path) -> Iterator[None]:
        """See `Disk`; FILE.lock shows the owner. Folders to it are made.

        The file itself cannot be locked: `replace` puts another one in its place. JournalError
        unless it is a regular file, if it exists; OutputError if a folder cannot be made.
        """
        _check_regular(file)
        make_folder(file.parent)
        with locked(file.with_name(file.name + ".lock")):
            yield


REAL_DISK = RealDisk()
_BEGIN = b'{"number'
"""Of every record."""


class Journal(Protocol):
    """Records in order of addition, each in the place of the one that it replaces, or after it."""

    lines: int
    """Number of records since the last compaction, including replaced ones."""

    @property
    def name(self) -> str:
        """Its location, for messages."""

    def owned(self) -> AbstractContextManager[None]:
        """Own it while a block runs; entering it raises JournalError if another process does.

        Only the owner may change it. Others may read.
        """

    def read(self) -> list[Record]:
        """Return all records, the oldest first. Raises JournalError."""

    def append(self, record: Record) -> None:
        """Add a record; UnrecordedError if that fails, without a trace of it."""

    def rewrite(self, records: Iterable[Record]) -> None:
        """Keep only these records. Raises UnrecordedError."""


class FileJournal:
    """The records of a file, created if missing."""

    def __init__(self, file: Path, disk: Disk = REAL_DISK) -> None:
        self._given = file
        self.file = disk.locate(file)
        self._disk = disk
        self.lines = 0
        self._whole: int | None = None
        """Bytes of complete records; the rest is a truncated one. None: unknown."""

    @property
    def name(self) -> str:
        """The file."""
        return str(self._given)

    @contextlib.contextmanager
    def owned(self) -> Iterator[None]:
        """See `Journal`."""
        held = contextlib.ExitStack()
        try:
            held.enter_context(self._disk.lock(self.file))
        except FileInUse as error:
            raise JournalError(
                f"{self.name}: another controller uses this journal: {error}"
            ) from None
        except OSError as error:
            raise JournalError(f"{self.name}: cannot be locked: {error.strerror}") from None
        with held:
            yield

    def read(self) -> list[Record]:
        """Return all records, the oldest first, without a truncated last one.

        Raises JournalError for any other line that is no record, and for a file that cannot be
        read.
        """
        try:
            content = self._disk.read(self.file)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise JournalError(f"{self.name}: cannot be read: {error.strerror}") from None
        *lines, rest = content.split(b"\n")
        records = [self._parse(number, line) for number, line in enumerate(lines, start=1)]
        if rest:
            self._check_rest(len(lines) + 1, rest)
            LOGGER.warning("%s: the last record is truncated and was ignored", self.name)
        self._whole = len(content) - len(rest)
        self.lines = len(records)
        return records

    def _check_rest(self, number: int, rest: bytes) -> None:
        """Raise JournalError unless this starts a record rather than another kind of file."""
        # A file system may have extended the file before writing the data: then zeros follow.
        begun = rest.rstrip(b"\0")
        if _BEGIN.startswith(begun[: len(_BEGIN)]) and (number > 1 or not _is_json(begun)):
            return
        raise self._wrong(number, rest)

    def _parse(self, number: int, line: bytes) -> Record:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise self._wrong(number, line)
        return record

    def _wrong(self, number: int, line: bytes) -> JournalError:
        shown = line[:40].decode(errors="backslashreplace")
        return JournalError(
            f"{self.name}:{number}: {shown!r}: expected a record, one JSON object a line; if it is "
            f"a journal, `hopsum controller recover {self.name}` recovers its readable records"
        )

    def append(self, record: Record) -> None:
        """Add a record; UnrecordedError, with the file as it was, if that fails."""
        line = json.dumps(record).encode() + b"\n"
        try:
            with self._disk.open(self.file, append=True) as file:
                self._cut_off(file)
                try:
                    _write(self._disk, file, line)
                except OSError:
                    with contextlib.suppress(OSError):
                        self._cut_off(file)
                    raise
        except OSError as error:
            raise UnrecordedError(f"{self.name} cannot be written: {error.strerror}") from error
        assert self._whole is not None
        self._whole += len(line)
        self.lines += 1

    def _cut_off(self, file: BinaryIO) -> None:
        """Truncate the file after the complete records."""
        size = file.seek(0, os.SEEK_END)
        if self._whole is None or size < self._whole:
            self._whole = size
        elif size > self._whole:
            file.truncate(self._whole)

    def rewrite(self, records: Iterable[Record]) -> None:
        """Replace the file's records atomically.

        Raises UnrecordedError if that fails.
        """
        lines = [json.dumps(record).encode() + b"\n" for record in records]
        new = self.file.with_name(self.file.name + ".new")
        try:
            with self._disk.open(new) as file:
                _write(self._disk, file, b"".join(lines))
            self._disk.replace(new, self.file)
            self._whole, self.lines = sum(map(len, lines)), len(lines)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._disk.remove(new)
            raise UnrecordedError(f"{self.name} cannot be written: {error.strerror}") from error


def journal_of(journal: Path | Journal | None) -> Journal | None:
    """Return a journal given by its file as such."""
    return FileJournal(journal) if isinstance(journal, Path) else journal


def _write(disk: Disk, file: BinaryIO, content: bytes) -> None:
    """Write and sync all data."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]
    disk.sync(file)


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
