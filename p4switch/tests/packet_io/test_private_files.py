"""A process reads what it executes from files of its own user only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
        UnsafePathError, match=r"file/cache/p4switch cannot be created: Not a dir.*XDG"
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
    with pytest.raises(UnsafePathError, match=r"writable for other users .*0770.*chmod go-w"):
        private_folder(folder)
    folder.chmod(0o755)
    link = tmp_path / "link"
    link.symlink_to(private_folder(folder))
    with pytest.raises(UnsafePathError, match="expected a folder, found a symbolic link"):
        private_folder(link)
    give_away(folder)
    with pytest.raises(UnsafePathError, match=f"belongs to user {SOMEBODY}"):
        private_folder(folder)


def test_writing_replaces_a_link_not_its_target(tmp_path: Path) -> None:
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
    with pytest.raises(UnsafePathError, match="writable for other users"):
        read_private(file)
    os.mkfifo(pipe, 0o600)
    with pytest.raises(UnsafePathError, match="expected a regular file, found something else"):
        open_private(pipe, os.O_RDONLY)
    file.chmod(0o600)
    give_away(file)
    with pytest.raises(UnsafePathError, match=f"belongs to user {SOMEBODY}"):
        read_private(file)


def test_compiled_code_is_not_taken_from_a_folder_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache_folder().chmod(0o777)
    with pytest.raises(UnsafePathError, match="writable for other users"):
        cache_folder()
