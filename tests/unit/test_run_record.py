"""What a run notes of itself, and how it is undone."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mininet_topos.failures import EmulationError
from mininet_topos.lifetime import END_WITH_STARTER
from mininet_topos.record import (
    EmulationLock,
    EmulationUp,
    RunRecord,
    processes_of,
    stop_left_over,
)
from packet_io.private_files import UnsafePathError, private_folder
from tests.machine import PATIENCE

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
        process.kill()
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
            processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
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
def test_what_is_no_record_is_said(state: Path, text: str) -> None:
    path = state / "7.json"
    path.write_text(text)
    with pytest.raises(EmulationError, match=r"7\.json is no record of a run .*remove it"):
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
