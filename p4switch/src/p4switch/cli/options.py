"""Options common to several commands, and helpers for their values."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

MOST_PORT = 511
"""Maximum of bit<9>."""
MOST_DEVICE_ID = (1 << 64) - 1
DEFAULT_ADDRESS = "127.0.0.1:9559"
"""P4Runtime's port, reached from this machine only."""

Includes = Annotated[
    list[Path] | None, typer.Option("-I", help="Folder to look for #include files in.")
]
Defines = Annotated[
    list[str] | None, typer.Option("-D", help="NAME or NAME=VALUE to define for #if and macros.")
]
P4InfoFile = Annotated[
    Path | None,
    typer.Option(
        "--p4info",
        metavar="FILE",
        help="P4Info (text) that p4c wrote with the BMv2 JSON; default: derived from the JSON.",
    ),
]
Executor = Annotated[
    str | None,
    typer.Option(
        help="`native` (C, needs a compiler) or `interpreter`; default: native if it can."
    ),
]

Externs = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Externs of the program's own (docs/externs.md): FILE.py in Python, which the "
        "interpreter runs, or FILE.c in C, which the native executor runs.",
    ),
]


def fail(message: str) -> NoReturn:
    """End the program with an error."""
    typer.echo(message, err=True)
    raise typer.Exit(1)


def parse_defines(texts: list[str] | None) -> dict[str, str]:
    """Parse `NAME=VALUE` texts to a mapping; a bare NAME is defined as 1, as in compilers."""
    pairs = (text.partition("=") for text in texts or [])
    return {name: value if equals else "1" for name, equals, value in pairs}


def read_bundle(
    path: Path,
    includes: list[Path] | None,
    defines: list[str] | None,
    p4info: Path | None = None,
) -> bytes:
    """Return the bundle of a program: P4 source, BMv2 JSON or a bundle. Raises P4Error."""
    from p4switch.device.loading import read_program

    return read_program(path, includes or [], parse_defines(defines), p4info)


def write_file(path: Path, content: bytes) -> None:
    """Write a file and create its folders."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        fail(f"{path}: cannot be written: {error.strerror}")


def print_line(text: str) -> None:
    """Print a line without buffering, even into a pipe."""
    typer.echo(text)
    sys.stdout.flush()
