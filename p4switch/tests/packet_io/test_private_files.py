"""What decides what a process does is taken from files of its own user only."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from controller.api.rendezvous import address_file, announced, find_controller
from p4switch.packet_io.compile import cache_folder
from p4switch.packet_io.private_files import (
    UnsafePathError,
    open_private,
    private_folder,
    read_private,
    write_private,
)

SOMEBODY = 12345


def give_away(path: Path) -> None:
    """Let a path belong to another user."""
    if os.geteuid() != 0:
        pytest.skip("needs root to give a file to another user")
    os.chown(path, SOMEBODY, SOMEBODY, follow_symlinks=False)


def test_a_folder_is_made_for_its_user_alone(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "a" / "b")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert private_folder(folder) == folder


def test_a_folder_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        UnsafePathError, match=r"file/cache/p4switch cannot be made: Not a dir.*XDG"
    ):
        private_folder(tmp_path / "file" / "cache" / "p4switch")
    # A service's user has no home, and services have no HOME.
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", nobody)
    with pytest.raises(UnsafePathError, match=r"has no home .*XDG_CACHE_HOME"):
        cache_folder()


def test_folders_of_others_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o770)
    with pytest.raises(UnsafePathError, match=r"other users may write .*0770.*chmod go-w"):
        private_folder(folder)
    folder.chmod(0o755)
    link = tmp_path / "link"
    link.symlink_to(private_folder(folder))
    with pytest.raises(UnsafePathError, match="expected a folder, found a symbolic link"):
        private_folder(link)
    give_away(folder)
    with pytest.raises(UnsafePathError, match=f"belongs to user {SOMEBODY}"):
        private_folder(folder)


def test_a_text_takes_the_place_of_a_link_not_of_what_it_names(tmp_path: Path) -> None:
    precious, file = tmp_path / "precious", tmp_path / "file"
    precious.write_text("keep me")
    file.symlink_to(precious)
    with pytest.raises(UnsafePathError, match="expected a regular file, found a symbolic link"):
        read_private(file)
    write_private(file, "mine")
    assert (read_private(file), precious.read_text()) == ("mine", "keep me")
    assert file.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "precious"]


def test_files_of_others_are_not_read(tmp_path: Path) -> None:
    file, pipe = tmp_path / "file", tmp_path / "pipe"
    with pytest.raises(FileNotFoundError):
        read_private(file)
    write_private(file, "text")
    file.chmod(0o602)
    with pytest.raises(UnsafePathError, match="other users may write there"):
        read_private(file)
    os.mkfifo(pipe, 0o600)
    with pytest.raises(UnsafePathError, match="expected a regular file, found something else"):
        open_private(pipe, os.O_RDONLY)
    file.chmod(0o600)
    give_away(file)
    with pytest.raises(UnsafePathError, match=f"belongs to user {SOMEBODY}"):
        read_private(file)


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


def test_compiled_code_is_not_taken_from_a_folder_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache_folder().chmod(0o777)
    with pytest.raises(UnsafePathError, match="other users may write there"):
        cache_folder()
