"""Rendezvous: lets commands find the running controller without its address.

A controller that serves people writes its address to a file of the user; the file goes with it.
Commands follow that address, so another user must not be able to write it (`private_files`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from p4switch.packet_io.private_files import (
    UnsafePathError,
    private_folder,
    read_private,
    write_private,
)

LOGGER = logging.getLogger("hopsum.rendezvous")
ANSWER_SECONDS = 1.0


def address_file() -> Path:
    """Return the file that holds the address of this user's running controller."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(runtime) if runtime else Path(tempfile.gettempdir()) / f"hopsum-{os.geteuid()}"
    return folder / "hopsum-controller"


def default_address() -> str:
    """Return the default listening address of this user's controller, in a folder of the user.

    Raises UnsafePathError if another user could change its contents.
    """
    folder = private_folder(address_file().parent)
    return f"unix:{folder / 'hopsum-controller.socket'}"


@contextlib.contextmanager
def announced(address: str) -> Iterator[None]:
    """Publish an address while the block runs, unless that of a controller that listens is there.

    Commands that follow the first one's address are not diverted to another network by a second.
    Raises UnsafePathError if another user could change the file.
    """
    file = address_file()
    private_folder(file.parent)
    earlier = None
    # What another user could have put there is replaced.
    with contextlib.suppress(UnsafePathError):
        earlier = find_controller(file)
    if earlier is not None and earlier != address and listens(earlier):
        LOGGER.warning(
            "commands without --controller reach the controller at %s, which was there first; this "
            "one is at --controller %s",
            earlier,
            address,
        )
        yield
        return
    write_private(file, address + "\n")
    try:
        yield
    finally:
        if find_controller(file) == address:
            file.unlink(missing_ok=True)


def listens(address: str) -> bool:
    """Whether a process accepts connections at a controller's address."""
    path = address.removeprefix("unix:")
    host, _, port = address.rpartition(":")
    try:
        if path != address:
            with socket.socket(socket.AF_UNIX) as unix:
                unix.settimeout(ANSWER_SECONDS)
                unix.connect(path)
        else:
            socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True


def find_controller(file: Path | None = None) -> str | None:
    """Return the address of the running controller, or None if none is published.

    Raises UnsafePathError if another user could have written it.
    """
    file = file or address_file()
    if not file.parent.exists():
        return None
    private_folder(file.parent)
    try:
        return read_private(file).strip() or None
    except FileNotFoundError:
        return None
