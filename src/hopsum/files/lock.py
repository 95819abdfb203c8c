"""Lock files: of all processes that use a file, also from other machines, one owns it.

The owner holds the lock file with flock, which ends with the process, however that ends. Where the
file system has no such locks, or only among processes of one machine (some NFS mounts), the record
in the lock file is the lock: one that a killed process has left is recognized by the number and
the start time of that process, as long as it is the same machine.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from hopsum.files.processes import boot_id, machine_id, pid_namespace, start_time
from hopsum.protocol.errors import OperationError

MOST_BYTES = 4096
"""Maximum size of a record."""
MOUNTS = Path("/proc/self/mountinfo")
_WITHOUT_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
"""Errors of flock on file systems that do not have it, or whose lock server is away."""
_LOCAL_LOCKS = frozenset({"nolock", "local_lock=flock", "local_lock=all"})
"""Mount options of NFS with which another machine does not see locks."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that owns a lock, as its record says.

    `machine`, `boot`, `namespace`, `started`: see `hopsum.files.processes`. `flock`: whether it
    holds the lock file as well.
    """

    host: str
    machine: str
    boot: str
    namespace: str
    pid: int
    started: int
    flock: bool

    @classmethod
    def of_this_process(cls, *, flock: bool) -> Owner:
        """Return this process as the owner."""
        pid = os.getpid()
        place = (socket.gethostname(), machine_id(), boot_id(), pid_namespace())
        return cls(*place, pid, start_time(pid) or 0, flock)

    def record(self) -> bytes:
        """Return the record of this owner."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @property
    def ended(self) -> bool | None:
        """Whether it has ended; None if that cannot be seen from here."""
        if not self.boot:
            return None
        if self.boot == boot_id():
            visible = self.namespace == pid_namespace()
            return start_time(self.pid) != self.started if visible else None
        rebooted = self.machine == machine_id() != "" and self.host == socket.gethostname()
        return True if rebooted else None

    def __str__(self) -> str:
        here = self.boot == boot_id() and self.namespace == pid_namespace()
        return f"process {self.pid} {'of this machine' if here else f'on {self.host}'}"


class FileInUse(OperationError):
    """Another process owns a lock; the message names it, and says what to do."""

    def __init__(self, path: Path, owner: Owner | None) -> None:
        ended = owner.ended if owner is not None else None
        if owner is None:
            what = f"; if no process owns it (`fuser {path}`), remove {path}"
        elif ended is None:
            what = f"; if that process has ended, remove {path}"
        elif ended:
            what = (
                ", which has ended; a process that it started may hold the lock still "
                f"(`fuser {path}`): end that, or remove {path}"
            )
        else:
            what = "; end it first"
        super().__init__(f"{path} is locked by {owner or 'an unknown process'}{what}")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Own a lock file, which exists while the block runs. Raises FileInUse, OSError."""
    descriptor = None if _locks_locally(path.parent) else _hold(path)
    if descriptor is None:
        record = _claim(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if _content(path) == record if descriptor is None else _is_at(path, descriptor):
                path.unlink()
        if descriptor is not None:
            os.close(descriptor)


def _hold(path: Path) -> int | None:
    """Return the lock file's descriptor, held with flock; None where there is no flock."""
    while True:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            if not _flock(path, descriptor):
                os.close(descriptor)
                return None
            # The last owner removes its file: this may be the removed one.
            if _is_at(path, descriptor):
                owner = _owner(os.pread(descriptor, MOST_BYTES, 0))
                if owner is not None and not owner.flock and not owner.ended:
                    raise FileInUse(path, owner)
                _write(descriptor, Owner.of_this_process(flock=True).record())
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _flock(path: Path, descriptor: int) -> bool:
    """Hold a file; return whether its file system can do that. Raises FileInUse, OSError."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FileInUse(path, _owner(os.pread(descriptor, MOST_BYTES, 0))) from None
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise
        return False
    return True


def _claim(path: Path) -> bytes:
    """Put this process's record into the lock file, unless its owner may still run; return it.

    The claim to follow one record has one name, so that of several processes one makes it; it
    becomes the lock file if that record is still there. Raises FileInUse, OSError.
    """
    record = Owner.of_this_process(flock=False).record()
    while True:
        before = _content(path)
        owner = _owner(before)
        if before and (owner is None or not owner.ended):
            raise FileInUse(path, owner)
        claim = path.with_name(f"{path.name}.{hashlib.sha256(before).hexdigest()[:16]}")
        try:
            descriptor = os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise FileInUse(claim, _owner(_content(claim))) from None
        try:
            try:
                _write(descriptor, record)
            finally:
                os.close(descriptor)
            if _content(path) == before:
                claim.replace(path)
                return record
        except BaseException:
            claim.unlink(missing_ok=True)
            raise
        claim.unlink()


def _locks_locally(folder: Path) -> bool:
    """Return whether another machine that has this file system mounted does not see its locks."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return False
    for line in mounts:
        mount, _, file_system = line.partition(" - ")
        if mount.split()[2] == number:
            return not _LOCAL_LOCKS.isdisjoint(file_system.split()[-1].split(","))
    return False


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES)
    except FileNotFoundError:
        return b""


def _write(descriptor: int, content: bytes) -> None:
    """Replace a file's contents, which other machines see then."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, content, 0)
    os.fsync(descriptor)


def _owner(content: bytes) -> Owner | None:
    """Return the owner of a record; None if there is none, or only a part of one."""
    try:
        owner = Owner(**json.loads(content))
    except (ValueError, TypeError, RecursionError):
        return None
    valid = all(type(getattr(owner, item.name)).__name__ == item.type for item in fields(owner))
    return owner if valid else None
