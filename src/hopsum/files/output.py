"""Files that commands write: reports, networks, pictures."""

from __future__ import annotations

from pathlib import Path

from hopsum.protocol.errors import InputError


class OutputError(InputError):
    """A file that cannot be written."""


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file atomically, and create the folders above it.

    Existing non-files, such as /dev/stdout, are written to directly. Raises OutputError.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        target = path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and not target.is_file():
            target.write_bytes(data)
            return
        partial = target.with_name(target.name + ".partial")
        partial.write_bytes(data)
        partial.replace(target)
    except (OSError, RuntimeError) as error:
        # RuntimeError: a cycle of symbolic links.
        raise OutputError(f"{path}: cannot be written: {_reason(error)}") from None


def check_writable(path: Path) -> None:
    """Raise OutputError now for a file that could not be written when the work is done."""
    try:
        target = path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            raise OutputError(f"{path}: expected the name of a file, found a folder")
        if not target.exists():
            target.touch()
            target.unlink()
    except (OSError, RuntimeError) as error:
        raise OutputError(f"{path}: cannot be written: {_reason(error)}") from None


def make_folder(path: Path) -> None:
    """Create a folder if it is missing. Raises OutputError if that fails."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise OutputError(f"{path}: expected a folder, found a file") from None
    except (OSError, RuntimeError) as error:
        raise OutputError(f"{path}: cannot be made: {_reason(error)}") from None


def _reason(error: OSError | RuntimeError) -> str:
    return str(getattr(error, "strerror", None) or error)
