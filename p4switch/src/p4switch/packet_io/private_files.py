"""Files that control a process: no other user may have created them or may change them.

In a shared folder such as /tmp, anyone may create a name first, as their own folder or as a
symbolic link to another place. Files are therefore checked after they are opened: owner, mode and
kind; links are not followed.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
ANOTHER_PLACE = "choose another place (XDG_RUNTIME_DIR, XDG_CACHE_HOME)"


class UnsafePathError(RuntimeError):
    """A path is not under this user's sole control; the message gives the reason."""

    exit_code = 2


def private_folder(path: Path) -> Path:
    """Return a folder in which only this user can write; it is made (mode 0700) if missing.

    Raises UnsafePathError if another user owns it or may write there, if it is not a folder (or is
    a symbolic link), or if it cannot be created.
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
    """Open a regular file of this user, created (mode 0600) with O_CREAT; return its descriptor.

    Raises UnsafePathError if another user owns it or may write to it, or if it is not a regular
    file; OSError as `os.open` does.
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
    """Atomically replace a file of a private folder by a text."""
    import secrets

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
