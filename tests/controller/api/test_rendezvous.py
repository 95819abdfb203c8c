"""Where commands find the controller: an address in a folder that only its user can write."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest

from hopsum.controller.api.rendezvous import address_file, announced, find_controller
from p4switch.packet_io.private_files import UnsafePathError

SOMEBODY = 12345


def give_away(path: Path) -> None:
    """Let a path belong to another user."""
    if os.geteuid() != 0:
        pytest.skip("needs root to give a file to another user")
    os.chown(path, SOMEBODY, SOMEBODY, follow_symlinks=False)


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shared temporary folder, which the address of the controller goes to."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    assert address_file().parent.parent == folder
    return folder


def test_the_address_of_a_controller_is_found_and_goes_with_it(shared: Path) -> None:
    assert find_controller() is None
    with announced("unix:/mine"):
        assert find_controller() == "unix:/mine"
        assert address_file().parent.stat().st_mode & 0o777 == 0o700
    assert find_controller() is None


@pytest.mark.parametrize("unix", [True, False])
def test_a_second_controller_does_not_divert_the_commands_of_the_first(
    shared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, unix: bool
) -> None:
    first = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
    first.bind(str(tmp_path / "first") if unix else ("127.0.0.1", 0))
    first.listen()
    address = f"unix:{tmp_path}/first" if unix else f"127.0.0.1:{first.getsockname()[1]}"
    with announced(address):
        with announced("unix:/second"):
            assert find_controller() == address
            assert "this one is at --controller unix:/second" in caplog.text
        assert find_controller() == address
        first.close()
        with announced("unix:/third"):
            assert find_controller() == "unix:/third"
    assert find_controller() is None


def test_no_controller_is_announced_in_or_found_through_anothers_folder(shared: Path) -> None:
    theirs = address_file().parent
    theirs.mkdir()
    (theirs / address_file().name).write_text("unix:/theirs")
    give_away(theirs)
    with pytest.raises(UnsafePathError, match=f"belongs to user {SOMEBODY}"):
        find_controller()
    with pytest.raises(UnsafePathError), announced("unix:/mine"):
        pass
    assert (theirs / address_file().name).read_text() == "unix:/theirs"


def test_an_announcement_follows_no_link(shared: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder = address_file().parent
    folder.symlink_to(elsewhere)
    with pytest.raises(UnsafePathError, match="symbolic link"), announced("unix:/mine"):
        pass
    folder.unlink()
    folder.mkdir(0o700)
    address_file().symlink_to(precious)
    with announced("unix:/mine"):
        assert find_controller() == "unix:/mine"
    assert precious.read_text() == "keep me"
