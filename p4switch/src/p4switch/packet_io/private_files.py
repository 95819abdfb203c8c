"""Files that decide what a process does: no other user may have made them, or may change them.

A name in a shared folder such as /tmp can be taken by anybody first, as a folder of theirs or as a
symbolic link to somewhere else. What is opened here is therefore checked once it is open: owner,
mode and kind, and links are not followed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
ANOTHER_PLACE = "choose another place (XDG_RUNTIME_DIR, XDG_CACHE_HOME)"


class UnsafePathError(RuntimeError):
    """There is no place that only this user could have made or can change; the message says why."""

    exit_code = 2


def private_folder(path: Path) -> Path:
    """Return a folder in which only this user can write; it is made (mode 0700) if missing.

    Raises UnsafePathError if another user owns it or may write there, if it is no folder (a
    symbolic link is none), or if it cannot be made.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        pass
    except OSError as error:
        raise UnsafePathError(
            f"{path} cannot be created: {error.strerror}; {ANOTHER_PLACE}"
        ) from error
    _check(path, path.lstat(), stat.S_ISDIR, "a folder")
    return path


def open_private(path: Path, flags: int) -> int:
    """Open a regular file of this user, made (mode 0600) under O_CREAT; return its descriptor.

    Raises UnsafePathError if another user owns it or may write to it, or if it is no regular file;
    OSError as `os.open` does.
    """
    try:
        # Without O_NONBLOCK, opening a FIFO in the file's place would block.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            _check(path, path.lstat(), stat.S_ISREG, "a regular file")
        raise
    try:
        _check(path, os.fstat(descriptor), stat.S_ISREG, "a regular file")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_private(path: Path) -> str:
    """Return the text of a file of this user; raises as `open_private` does."""
    with os.fdopen(open_private(path, os.O_RDONLY), encoding="utf-8") as file:
        return file.read()


def write_private(path: Path, text: str) -> None:
    """Put a text into a file of a private folder, all at once, in the place of what was there."""
    made = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = open_private(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        made.replace(path)
    except BaseException:
        made.unlink(missing_ok=True)
        raise


def _check(path: Path, found: os.stat_result, is_kind: Callable[[int], bool], kind: str) -> None:
    if not is_kind(found.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "something else"
        raise UnsafePathError(f"{path}: expected {kind}, found {what}; remove it")
    if found.st_uid != os.geteuid():
        raise UnsafePathError(
            f"{path} belongs to user {found.st_uid}, not to user {os.geteuid()} who runs this; "
            f"remove it, or {ANOTHER_PLACE}"
        )
    if found.st_mode & OTHERS_WRITE:
        raise UnsafePathError(
            f"{path}: writable for other users (mode {stat.S_IMODE(found.st_mode):04o}); if its "
            f"contents are yours, `chmod go-w {path}`, else remove it"
        )
