"""Reads programs from files: P4 source, or BMv2 JSON as p4c writes it; tells them from bundles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from p4switch.position import P4Error, Position

if TYPE_CHECKING:
    from p4switch.ir import Program

BUNDLE_HEADER = "// p4switch bundle 1\n"


def read_file(path: Path) -> bytes:
    """Return the contents of a program's file. Raises P4Error."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise P4Error(Position(str(path), 1, 1), f"cannot read: {error.strerror}") from error


def is_bmv2_json(data: bytes) -> bool:
    """Return whether a file's contents are JSON rather than P4, which cannot begin with a brace."""
    return data.lstrip()[:1] == b"{"


def is_bundle(data: bytes) -> bool:
    """Return whether a file's contents are a bundle rather than P4 source."""
    return data.startswith(BUNDLE_HEADER.encode())


def compile_path(
    path: Path, *, include_paths: Sequence[Path] = (), defines: Mapping[str, str] | None = None
) -> Program:
    """Return the program of a file, P4 source or BMv2 JSON. Raises P4Error."""
    data = read_file(path)
    if is_bmv2_json(data):
        from p4switch.bmv2_json.reader import read

        return read(data, str(path))
    from p4switch.frontend.program import compile_file

    return compile_file(path, include_paths=include_paths, defines=defines)
