"""Where the running controller is, so that commands find it without being told.

A controller that serves people writes its address to a file of the user; the file goes with it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def address_file() -> Path:
    """The file that holds the address of this user's running controller."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(runtime) if runtime else Path(tempfile.gettempdir()) / f"hopsum-{os.getuid()}"
    return folder / "hopsum-controller"


@contextlib.contextmanager
def announced(address: str, file: Path | None = None) -> Iterator[None]:
    """Make an address known while the block runs; a later controller's takes its place."""
    file = file or address_file()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.write_text(address + "\n", encoding="utf-8")
    try:
        yield
    finally:
        if find_controller(file) == address:
            file.unlink(missing_ok=True)


def find_controller(file: Path | None = None) -> str | None:
    """The address of the running controller, or None if none has made itself known."""
    try:
        return (file or address_file()).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None
