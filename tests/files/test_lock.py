"""One owner of a file, on file systems with locks of processes and without."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from hopsum.files import lock
from hopsum.files.lock import FileInUse, Owner, locked
from tests.support.machine import PATIENCE

HOLD = """
import errno, fcntl, sys
from pathlib import Path
from hopsum.files.lock import locked

def refuse(descriptor, how):
    raise OSError(errno.ENOLCK, "No locks available")

if sys.argv[2] == "records":
    fcntl.flock = refuse
with locked(Path(sys.argv[1])):
    print("owner", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.lock"


@pytest.fixture(params=["flock", "records"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How processes exclude each other: where there is no flock, by records."""
    if request.param == "records":
        without_flock(monkeypatch)
    return str(request.param)


def without_flock(monkeypatch: pytest.MonkeyPatch, number: int = errno.ENOLCK) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.fixture
def other(path: Path, kind: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that owns the lock."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "owner\n"
        yield process
        process.kill()


def left(path: Path, **changes: Any) -> Owner:
    """The record of a process that has left it, by default this one's."""
    owner = replace(Owner.of_this_process(flock=False), **changes)
    path.write_bytes(owner.record())
    return owner


def test_a_lock_has_one_owner_and_leaves_no_file(path: Path, kind: str) -> None:
    words = rf"jobs\.lock is locked by process {os.getpid()} of this machine; end it first"
    for _ in range(2):
        with locked(path):
            before = path.read_bytes()
            with pytest.raises(FileInUse, match=words), locked(path):
                pass
            assert path.read_bytes() == before
        assert list(path.parent.iterdir()) == []


@pytest.mark.slow
def test_a_killed_owner_owns_nothing(path: Path, kind: str, other: subprocess.Popen[str]) -> None:
    with pytest.raises(FileInUse, match=f"process {other.pid} of this machine; end"), locked(path):
        pass
    other.send_signal(signal.SIGKILL)
    other.wait(PATIENCE)
    assert path.exists()
    with locked(path):
        assert json.loads(path.read_bytes())["pid"] == os.getpid()
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_record_of_a_process_that_has_ended_is_no_lock(
    path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number may belong to another process by now."""
    without_flock(monkeypatch, number)
    for changes in ({"started": 1}, {"pid": 1 << 30}):
        left(path, **changes)
        with locked(path):
            assert json.loads(path.read_bytes())["started"] != 1
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"host": "far", "boot": "another"},
        {"namespace": "pid:[1]"},
        {"machine": "another", "boot": "another"},
        {"boot": ""},
    ],
    ids=["machine", "container", "same name", "no boot"],
)
def test_an_owner_that_cannot_be_seen_may_run(
    path: Path, elsewhere: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_flock(monkeypatch)
    owner = left(path, pid=1 << 30, **elsewhere)
    words = rf"process {1 << 30} on {owner.host}; if that process has ended, remove .*jobs\.lock$"
    with pytest.raises(FileInUse, match=words), locked(path):
        pass
    assert path.read_bytes() == owner.record()


def test_processes_end_with_their_machine(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_flock(monkeypatch)
    monkeypatch.setattr(lock, "machine_id", lambda: "5")
    left(path, machine="5", boot="the last one")
    with locked(path):
        pass
    # Machines of one image may have one identity; those of no identity have none in common.
    for machine, host in (("5", "other"), ("", Owner.of_this_process(flock=False).host)):
        monkeypatch.setattr(lock, "machine_id", lambda machine=machine: machine)
        left(path, machine=machine, boot="the last one", host=host)
        with pytest.raises(FileInUse), locked(path):
            pass


def test_the_record_of_an_owner_with_flock_says_nothing_once_it_can_be_held(path: Path) -> None:
    left(path, host="far", boot="another", flock=True)
    with locked(path):
        pass
    # But an owner that found no flock where it is may run.
    left(path, host="far", boot="another", flock=False)
    with pytest.raises(FileInUse, match="on far"), locked(path):
        pass


def test_of_two_that_follow_an_owner_one_does(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_flock(monkeypatch)
    left(path, started=1)
    sync = os.fsync
    refused: list[FileInUse] = []

    def sync_while_another_starts(descriptor: int) -> None:
        """The record of the first is written by then."""
        monkeypatch.setattr(os, "fsync", sync)
        sync(descriptor)
        try:
            with locked(path):
                pass
        except FileInUse as error:
            refused.append(error)

    monkeypatch.setattr(os, "fsync", sync_while_another_starts)
    with locked(path):
        assert len(refused) == 1
    assert list(path.parent.iterdir()) == []


def test_a_claim_to_follow_an_owner_that_has_been_followed_is_none(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a reader's look at the record and its claim another process took the lock."""
    without_flock(monkeypatch)
    left(path, started=1)
    open_path = Path.open
    owners: list[bytes] = []

    def open_before(file: Path, *mode: Any, **options: Any) -> Any:
        return (
            io.BytesIO(owners.pop())
            if file == path and owners
            else open_path(file, *mode, **options)
        )

    with locked(path):
        owners.append(replace(Owner.of_this_process(flock=False), started=1).record())
        monkeypatch.setattr(Path, "open", open_before)
        with pytest.raises(FileInUse, match=str(os.getpid())), locked(path):
            pass
        assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("content", [b"{", b"7\n", b'{"pid": 1}\n', b"\0" * 40, b"[" * 3000])
def test_other_contents_are_no_record(
    path: Path, content: bytes, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(content)
    if kind == "records":
        with pytest.raises(FileInUse, match="an unknown process; if no process owns it"):
            locked(path).__enter__()
        return
    with locked(path):
        pass


def test_values_of_other_types_are_no_record(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_flock(monkeypatch)
    values = asdict(Owner.of_this_process(flock=False))
    for name in values:
        path.write_text(json.dumps(values | {name: [1]}))
        with pytest.raises(FileInUse, match="by an unknown process"), locked(path):
            pass
    path.write_text(json.dumps(values))
    with pytest.raises(FileInUse, match=f"by process {os.getpid()} of this"), locked(path):
        pass


def test_the_owner_removes_no_lock_of_another(path: Path, kind: str) -> None:
    """Someone has removed its file, and then the next owner came."""
    with locked(path):
        path.unlink()
        left(path, host="far")
    assert path.exists()


def test_a_file_of_the_last_owner_that_was_removed_is_opened_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def remove_before(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        path.unlink()
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", remove_before)
    with locked(path):
        assert json.loads(path.read_bytes())["pid"] == os.getpid()
        with pytest.raises(FileInUse), locked(path):
            pass


def test_a_child_of_the_last_owner_may_hold_its_lock(path: Path) -> None:
    left(path, started=1, flock=True)
    with path.open("r+") as inherited:
        fcntl.flock(inherited, fcntl.LOCK_EX)
        with pytest.raises(FileInUse, match=r", which has ended; .*\(`fuser .*`\): end that"):
            locked(path).__enter__()


@pytest.mark.parametrize(
    ("options", "local"),
    [
        ("rw,vers=4.2,local_lock=none,addr=10.0.0.1", False),
        ("rw,vers=3,nolock,local_lock=all", True),
        ("rw,vers=3,local_lock=flock", True),
        ("rw", False),
    ],
)
def test_locks_that_other_machines_do_not_see_are_not_enough(
    path: Path, options: str, local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = path.parent.stat().st_dev
    mounts = path.with_name("mountinfo")
    mounts.write_text(
        "30 1 0:5 / /proc rw - proc proc rw,local_lock=all\n"
        f"41 29 {os.major(device)}:{os.minor(device)} / /srv rw shared:1 - nfs4 s:/x {options}\n"
    )
    monkeypatch.setattr(lock, "MOUNTS", mounts)
    with locked(path):
        assert json.loads(path.read_bytes())["flock"] is not local
    left(path, host="far", boot="another", flock=True)
    if not local:
        with locked(path):
            return
    with pytest.raises(FileInUse, match="on far"):
        locked(path).__enter__()


def test_no_other_error_is_taken_for_a_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_flock(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        locked(path).__enter__()
    with pytest.raises(FileNotFoundError):
        locked(path.parent / "none" / "jobs.lock").__enter__()
