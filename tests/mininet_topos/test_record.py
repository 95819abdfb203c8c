"""The record of a run, and how its network is removed."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hopsum.mininet_topos.failures import EmulationError
from hopsum.mininet_topos.lifetime import END_WITH_STARTER
from hopsum.mininet_topos.record import (
    EmulationLock,
    EmulationUp,
    RunRecord,
    processes_of,
    stop_left_over,
)
from p4switch.packet_io.private_files import UnsafePathError, private_folder
from tests.support.machine import PATIENCE

FOREVER = [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The folder that holds records."""
    return private_folder(tmp_path / "state")


def orphan(record: RunRecord) -> None:
    """Let the record be of a process that is gone: another one had its number."""
    record.owner_started -= 1
    record.write()


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        # With what it has started, which holds the pipe too.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_setting_comes_back(tmp_path: Path, state: Path) -> None:
    setting = tmp_path / "setting"
    setting.write_text("0\n")
    record = RunRecord.create(state)
    record.change_setting(setting, "1")
    assert setting.read_text() == "1"
    record.restore_settings()
    assert setting.read_text() == "0"


def test_a_setting_that_is_as_wanted_stays(tmp_path: Path, state: Path) -> None:
    setting = tmp_path / "setting"
    setting.write_text("1\n")
    record = RunRecord.create(state)
    record.change_setting(setting, "1")
    assert record.restore_settings() == []
    assert setting.read_text() == "1\n"


def test_a_setting_that_does_not_exist_is_left_out(tmp_path: Path, state: Path) -> None:
    record = RunRecord.create(state)
    record.change_setting(tmp_path / "nothing", "1")
    assert record.restore_settings() == []


def test_stop_gives_settings_of_a_killed_run_back(tmp_path: Path, state: Path) -> None:
    setting = tmp_path / "setting"
    setting.write_text("0")
    record = RunRecord.create(state)
    record.change_setting(setting, "1")
    orphan(record)
    assert stop_left_over(state) == [f"set {setting} back to 0"]
    assert setting.read_text() == "0"
    assert not record.path.exists()


def test_stop_ends_the_processes_of_a_killed_run_and_no_others(
    state: Path, processes: list[subprocess.Popen[str]]
) -> None:
    mine, other = RunRecord(state / "1.json"), RunRecord(state / "2.json")
    for record in (mine, other):
        with record.marking():
            # One starts another, as Mininet's shells do.
            command = ["sh", "-c", '"$@" & wait', "sh", *FOREVER]
            processes.append(
                subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
            )
        stdout = processes[-1].stdout
        assert stdout is not None
        assert stdout.readline() == "up\n"
    orphan(mine)
    other.write()
    marked = processes_of(mine.token)
    assert len(marked) == 2
    assert processes[0].pid in marked
    assert stop_left_over(state) == [f"ended process {pid}" for pid in marked]
    assert processes[0].wait() == -signal.SIGKILL
    assert processes_of(mine.token) == []
    assert len(processes_of(other.token)) == 2
    for pid in processes_of(other.token):
        os.kill(pid, signal.SIGKILL)


def test_stop_deletes_the_interfaces_of_a_killed_run_and_no_others(
    veth: tuple[str, str], state: Path
) -> None:
    ours, theirs = veth
    address = Path(f"/sys/class/net/{ours}/address").read_text().strip()
    record = RunRecord(state / "1.json")
    # The second has another MAC address by now; the third has gone with its namespace.
    record.interfaces = {theirs: "02:ff:00:01:00:01", "nowhere7": "02:ff:00:01:00:02"}
    orphan(record)
    assert stop_left_over(state) == []
    assert Path(f"/sys/class/net/{theirs}").exists()
    record.interfaces = {ours: address}
    orphan(record)
    assert stop_left_over(state) == [f"deleted interface {ours}"]
    assert not Path(f"/sys/class/net/{ours}").exists()


def test_a_folder_goes_with_its_run(state: Path) -> None:
    record = RunRecord.create(state)
    with record.temporary_folder() as folder:
        assert folder.name.startswith("hopsum-")
        assert folder.stat().st_mode & 0o777 == 0o700
        assert RunRecord.read(record.path).folders == [str(folder)]
        (folder / "controller").touch()
    assert not folder.exists()
    assert RunRecord.read(record.path).folders == []


@contextlib.contextmanager
def left_folder(state: Path) -> Iterator[Path]:
    """The folder of a run that has been killed; it is removed when this block ends."""
    record = RunRecord.create(state)
    with record.temporary_folder() as folder:
        orphan(record)
        yield folder


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


@pytest.mark.parametrize("names", [(), ("controller",)])
def test_stop_removes_the_folder_of_a_killed_run(state: Path, names: Sequence[str]) -> None:
    with left_folder(state) as folder:
        for name in names:
            listen(folder / name)
        assert stop_left_over(state) == [f"removed folder {folder}"]
        assert not folder.exists()
    assert stop_left_over(state) == []


def test_stop_leaves_foreign_folders_alone(state: Path, tmp_path: Path) -> None:
    def others_write(folder: Path) -> None:
        folder.chmod(0o770)

    def of_another_user(folder: Path) -> None:
        os.chown(folder, 65534, 65534)

    def link(folder: Path) -> None:
        folder.rmdir()
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")

    def file(folder: Path) -> None:
        folder.rmdir()
        folder.touch(0o700)

    def with_a_file(folder: Path) -> None:
        (folder / "thesis").touch()

    def with_a_file_of_our_name(folder: Path) -> None:
        (folder / "controller").touch()

    changes = [others_write, link, file, with_a_file, with_a_file_of_our_name]
    for change in changes + [of_another_user] * (os.geteuid() == 0):
        with left_folder(state) as folder:
            change(folder)
            inside = [*folder.iterdir()] if folder.is_dir() else None
            assert stop_left_over(state) == [], change
            assert os.path.lexists(folder), change
            assert inside == ([*folder.iterdir()] if folder.is_dir() else None)
            if not folder.is_dir() or folder.is_symlink():
                folder.unlink()


def test_stop_removes_no_folder_of_another_name(state: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir(mode=0o700)
    record = RunRecord(state / "1.json", folders=[str(precious), str(tmp_path / "hopsum-gone")])
    orphan(record)
    assert stop_left_over(state) == []
    assert precious.exists()


def test_a_record_of_an_earlier_version_has_no_folders(state: Path) -> None:
    record = RunRecord.create(state)
    values = json.loads(record.path.read_text())
    del values["folders"]
    record.path.write_text(json.dumps(values))
    assert RunRecord.read(record.path).folders == []


def test_a_run_that_is_up_is_left_alone(state: Path) -> None:
    record = RunRecord.create(state)
    assert stop_left_over(state) == []
    assert record.path.exists()
    orphan(record)
    lock = EmulationLock(state)
    with pytest.raises(EmulationUp, match=rf"another emulation is up .*process {os.getpid()}"):
        EmulationLock(state)
    (line,) = stop_left_over(state)
    assert line.startswith("left alone: another emulation is up")
    assert record.path.exists()
    lock.release()
    assert stop_left_over(state) == []
    assert not record.path.exists()


def test_the_lock_follows_no_link(state: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    (state / "lock").symlink_to(precious)
    with pytest.raises(UnsafePathError, match="found a symbolic link"):
        EmulationLock(state)
    assert precious.read_text() == "keep me"


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"token": 1'])
def test_invalid_records_are_reported(state: Path, text: str) -> None:
    path = state / "7.json"
    path.write_text(text)
    with pytest.raises(EmulationError, match=r"7\.json is not a record of a run .*remove it"):
        stop_left_over(state)


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv (util-linux)")
def test_a_process_ends_with_its_starter() -> None:
    script = (
        "import subprocess, sys, signal\n"
        "child = subprocess.Popen(sys.argv[1:])\n"
        "print(child.pid, flush=True)\n"
        "signal.pause()\n"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", script, *END_WITH_STARTER, *FOREVER],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert starter.stdout is not None
    # The starter's line and its child's, in whichever order.
    (child,) = {starter.stdout.readline() for _ in range(2)} - {"up\n"}
    handle = os.pidfd_open(int(child))
    starter.kill()
    starter.communicate()
    assert select.select([handle], [], [], PATIENCE)[0], "the child goes on"
    os.close(handle)
