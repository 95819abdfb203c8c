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


def read_program_file(path: Path, p4info: Path | None = None) -> bytes:
    """Return a program's file; BMv2 JSON with the P4Info (text form) of another file in it.

    BMv2 JSON lacks some data that its P4Info has. If there is a bundle in it, as `p4switch compile`
    writes, that is returned. Raises P4Error, also for a P4Info of P4 source.
    """
    data = read_file(path)
    if is_bmv2_json(data):
        from p4switch.bmv2_json.reader import bundle

        text = "" if p4info is None else read_file(p4info).decode(errors="replace")
        return bundle(data, str(path), text)
    if p4info is not None:
        raise P4Error(
            Position(str(p4info), 1, 1), f"{path} is not BMv2 JSON: its P4Info is derived from it"
        )
    return data


def compile_path(
    path: Path,
    *,
    include_paths: Sequence[Path] = (),
    defines: Mapping[str, str] | None = None,
    p4info: Path | None = None,
) -> Program:
    """Return the program of a file, P4 source or BMv2 JSON. Raises P4Error.

    `p4info`: as in `read_program_file`.
    """
    data = read_program_file(path, p4info)
    if is_bmv2_json(data):
        from p4switch.bmv2_json.reader import read

        return read(data, str(path))
    if is_bundle(data):
        from p4switch.frontend.program import compile_program
        from p4switch.frontend.syntax.parser import parse_text

        return compile_program(parse_text(data.decode(), str(path)))
    from p4switch.frontend.program import compile_file

    return compile_file(path, include_paths=include_paths, defines=defines)
