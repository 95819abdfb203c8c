"""Rendezvous: lets commands find the running controller without its address.

A controller that serves people writes its address to a file of the user; the file goes with it.
Commands follow that address, so another user must not be able to write it (`private_files`).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from p4switch.packet_io.private_files import private_folder, read_private, write_private


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
def announced(address: str, file: Path | None = None) -> Iterator[None]:
    """Publish an address while the block runs; a later controller's replaces it.

    Raises UnsafePathError if another user could change the file.
    """
    file = file or address_file()
    private_folder(file.parent)
    write_private(file, address + "\n")
    try:
        yield
    finally:
        if find_controller(file) == address:
            file.unlink(missing_ok=True)


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
