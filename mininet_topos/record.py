"""What runs in Mininet have created, so that what a killed one left behind can be taken down.

One emulation at a time is up on a machine (`EmulationLock`). It keeps a record, a JSON file in
`STATE`, which it deletes when it has cleaned up after itself. Only what is provably of such a run
is touched: processes by a random mark in their environment, interfaces by name and MAC address,
folders by their random name, owner and mode.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import select
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from hopsum.files.processes import start_time
from hopsum.mininet_topos.failures import EmulationError
from p4switch.packet_io.private_files import (
    open_private,
    private_folder,
    read_private,
    write_private,
)

STATE = Path("/run/hopsum-emulation")
"""Accessible to root only: its contents say what root kills and deletes. A reboot empties it too.
"""
MARK = "HOPSUM_RUN"
"""Environment variable of every process of an emulation: the record's token."""
FOLDER = "hopsum-"
"""Prefix of the names of runs' folders, in the machine's folder for temporary files."""
SOCKET = "controller"
"""Name of the controller's socket in such a folder."""
KILL_SECONDS = 30.0
INTERFACES = Path("/sys/class/net")


def state_folder() -> Path:
    """Return the folder of the records and the lock. Raises EmulationError unless run as root."""
    if os.geteuid() != 0:
        raise EmulationError("emulations are root's, and so is the record of them; run as root")
    return private_folder(STATE)


class EmulationUp(EmulationError):
    """Another emulation is up on this machine."""


class EmulationLock:
    """Held by the one emulation on a machine: interface names would clash. Raises EmulationUp."""

    def __init__(self, folder: Path) -> None:
        descriptor = open_private(folder / "lock", os.O_RDWR | os.O_CREAT)
        self._file: IO[str] = os.fdopen(descriptor, "r+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = self._file.read().strip()
            self._file.close()
            raise EmulationUp(
                f"another emulation is up on this machine (process {owner}); wait until it has "
                "finished, or end it"
            ) from None
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def release(self) -> None:
        """Release the lock, so that another emulation can start."""
        self._file.close()


@dataclass
class RunRecord:
    """What one run has created; `write()` after every change."""

    path: Path
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    owner: int = field(default_factory=os.getpid)
    owner_started: int = field(default_factory=lambda: start_time(os.getpid()) or 0)
    interfaces: dict[str, str] = field(default_factory=dict)
    """Name -> MAC address, which it has from the moment it is there."""
    settings: dict[str, str] = field(default_factory=dict)
    """Kernel parameter's file -> what it was before the run."""
    folders: list[str] = field(default_factory=list)

    def write(self) -> None:
        """Save the record."""
        values = asdict(self)
        values.pop("path")
        write_private(self.path, json.dumps(values, indent=1))

    @property
    def orphaned(self) -> bool:
        """Whether the run's own process is gone."""
        return start_time(self.owner) != self.owner_started

    @contextlib.contextmanager
    def marking(self) -> Iterator[None]:
        """Mark every process that is started in the block as one of the run."""
        os.environ[MARK] = self.token
        try:
            yield
        finally:
            os.environ.pop(MARK, None)

    @contextlib.contextmanager
    def temporary_folder(self) -> Iterator[Path]:
        """Provide a folder of the run's own (mode 0700) for the time of the block."""
        folder = Path(tempfile.gettempdir()) / f"{FOLDER}{secrets.token_hex(8)}"
        self.folders.append(str(folder))
        self.write()
        try:
            folder.mkdir(mode=0o700)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            self.folders.remove(str(folder))
            self.write()

    def change_setting(self, path: Path, value: str) -> None:
        """Set a kernel parameter for the time of the run, where there is such a parameter."""
        try:
            before = path.read_text().strip()
            if before != value:
                self.settings[str(path)] = before
                self.write()
                path.write_text(value)
        except OSError:
            # An older or newer kernel, or a container that may not: the run works without.
            self.settings.pop(str(path), None)

    def restore_settings(self) -> list[str]:
        """Give kernel parameters their values back; returns a line for each."""
        lines = []
        for path, value in self.settings.items():
            Path(path).write_text(value)
            lines.append(f"set {path} back to {value}")
        self.settings.clear()
        return lines

    def forget(self) -> None:
        """Remove the record of a run that has cleaned up."""
        self.path.unlink(missing_ok=True)

    @classmethod
    def create(cls, folder: Path) -> RunRecord:
        """Return a record for this process, in the state folder."""
        record = cls(folder / f"{os.getpid()}.json")
        record.write()
        return record

    @classmethod
    def read(cls, path: Path) -> RunRecord:
        """Return the record in a file. Raises EmulationError for other files."""
        try:
            values = json.loads(read_private(path))
            return cls(
                path,
                values["token"],
                values["owner"],
                values["owner_started"],
                values["interfaces"],
                values["settings"],
                values.get("folders", []),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise EmulationError(
                f"{path} is not a record of a run ({error!r}); remove it"
            ) from error


def stop_left_over(folder: Path | None = None) -> list[str]:
    """Take down what killed runs left; returns a line for each thing.

    A run that is up is left alone. Raises EmulationError if something cannot be taken down; it is
    still in the record then.
    """
    folder = folder or state_folder()
    try:
        lock = EmulationLock(folder)
    except EmulationUp as error:
        # It has taken down what others left before it came up.
        return [f"left alone: {error}"]
    try:
        return take_down_orphans(folder)
    finally:
        lock.release()


def take_down_orphans(folder: Path) -> list[str]:
    """Do as `stop_left_over`, for the holder of the lock: no run that is up is mistaken for one."""
    lines: list[str] = []
    for path in sorted(folder.glob("*.json")):
        record = RunRecord.read(path)
        if record.orphaned:
            lines += end_processes(record.token)
            for name, address in record.interfaces.items():
                lines += _delete_interface(name, address)
            lines += record.restore_settings()
            for left in record.folders:
                lines += _remove_folder(Path(left))
            record.forget()
    return lines


def record_of(run_folder: Path, folder: Path) -> RunRecord | None:
    """Return the record, in the state folder, of the run that is up and has a temporary folder."""
    for path in sorted(folder.glob("*.json")):
        try:
            record = RunRecord.read(path)
        except FileNotFoundError:
            continue
        if not record.orphaned and str(run_folder) in record.folders:
            return record
    return None


def processes_of(token: str) -> list[int]:
    """Return the processes that bear a run's mark."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return sorted(pid for pid in pids if pid != os.getpid() and _bears(pid, token))


def _bears(pid: int, token: str) -> bool:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{MARK}={token}".encode() in variables


def network_namespace(pid: int) -> str:
    """Return which network namespace a process is in; empty if it is gone."""
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return ""


def end_processes(token: str, namespaces: Collection[str] | None = None) -> list[str]:
    """Kill the processes that bear a run's mark; returns a line for each.

    `namespaces`: only those in these network namespaces.
    """
    lines: list[str] = []

    def found() -> list[int]:
        pids = processes_of(token)
        if namespaces is None:
            return pids
        return [pid for pid in pids if network_namespace(pid) in namespaces]

    # One may start another while they are looked for.
    while pids := found():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                handle = os.pidfd_open(pid)
                try:
                    # The handle refers to this process, even if its number is reused.
                    if _bears(pid, token):
                        _kill(handle, pid)
                        lines.append(f"ended process {pid}")
                finally:
                    os.close(handle)
    return lines


def _kill(handle: int, pid: int) -> None:
    """Kill a process; it is gone when this returns."""
    signal.pidfd_send_signal(handle, signal.SIGKILL)
    # Not select(), which takes no handle of 1024 or more.
    ended = select.poll()
    ended.register(handle, select.POLLIN)
    if not ended.poll(KILL_SECONDS * 1000):
        raise EmulationError(f"process {pid}, which a killed run left, does not end")


def _delete_interface(name: str, address: str) -> list[str]:
    """Delete an interface, if it is the one with this MAC address."""
    try:
        if (INTERFACES / name / "address").read_text().strip() != address:
            return []
    except OSError:
        return []
    done = subprocess.run(
        ["ip", "link", "delete", name], capture_output=True, text=True, check=False
    )
    # With the namespace of its other end it may go by itself meanwhile.
    if done.returncode and (INTERFACES / name).exists():
        raise EmulationError(
            f"interface {name}, which a killed run left, cannot be deleted: {done.stderr.strip()}"
        )
    return [f"deleted interface {name}"]


def _remove_folder(path: Path) -> list[str]:
    """Remove a run's folder with the socket in it; it stays if it is another one, or holds more."""
    if not path.name.startswith(FOLDER):
        return []
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        found = os.fstat(descriptor)
        if (found.st_uid, stat.S_IMODE(found.st_mode)) != (os.geteuid(), 0o700):
            return []
        with os.scandir(descriptor) as entries:
            sockets = {
                entry.name: stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)
                for entry in entries
            }
        if sockets not in ({}, {SOCKET: True}):
            return []
        for name in sockets:
            os.unlink(name, dir_fd=descriptor)
        path.rmdir()
    except OSError:
        return []
    finally:
        os.close(descriptor)
    return [f"removed folder {path}"]
