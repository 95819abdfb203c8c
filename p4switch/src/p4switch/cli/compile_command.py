"""`p4switch compile`: check a program and write the files that a controller pushes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p4switch.cli.options import Defines, Includes, P4InfoFile, fail, read_bundle, write_file

if TYPE_CHECKING:
    from p4switch.ir import Program
    from p4switch.position import Position


def compile_command(
    program: Annotated[Path, typer.Argument(help="P4 source, or BMv2 JSON.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Write a self-contained program for `run` and pushes; in a .json file for tools "
            "that read BMv2's JSON, too.",
        ),
    ] = None,
    p4runtime_files: Annotated[
        Path | None,
        typer.Option(help="Write the P4Info here: .json as JSON, .bin as binary, else as text."),
    ] = None,
    p4info: P4InfoFile = None,
    defines: Defines = None,
    includes: Includes = None,
) -> None:
    """Check a P4 program; write the files that a controller pushes."""
    config = compile_files(
        program, output, [p4runtime_files] if p4runtime_files else [], p4info, defines, includes
    )
    if output is not None:
        from p4switch.device.loading import warm

        warm(config)


def compile_files(
    program: Path,
    output: Path | None,
    p4runtime_files: Sequence[Path],
    p4info: Path | None = None,
    defines: list[str] | None = None,
    includes: list[Path] | None = None,
    as_json: bool = False,
    p4info_form: str | None = None,
) -> bytes:
    """Check a program and write its files, in the forms of their suffixes; an error ends all.

    Returns the self-contained program.

    `as_json`: the program in the form of BMv2's JSON, whatever the suffix. `p4info_form`: the
    suffix whose form the P4Info has.
    """
    from p4switch.device.bmv2_document import bmv2_document
    from p4switch.device.loading import checked_program
    from p4switch.p4runtime.p4info import p4info_file
    from p4switch.p4runtime.restrictions import Restrictions
    from p4switch.position import P4Error
    from p4switch.programs import is_bmv2_json

    try:
        config = read_bundle(program, includes, defines, p4info)
        if is_bmv2_json(config):
            checked = checked_program(config)
        else:
            checked = _checked_source(config)
        _warn(Restrictions(checked).warnings)
        files = {
            path: p4info_file(checked, path.suffix if p4info_form is None else p4info_form)
            for path in p4runtime_files
        }
    except P4Error as error:
        fail(str(error))
    if output is not None:
        as_json = as_json or output.suffix == ".json"
        files[output] = bmv2_document(checked, config, str(program)) if as_json else config
    for path, content in files.items():
        write_file(path, content)
    return config


def _checked_source(config: bytes) -> Program:
    """Return the program of a bundle of P4 source; print what p4c would warn of or refuse."""
    from p4switch.frontend.program import analyse
    from p4switch.frontend.syntax.parser import parse_text
    from p4switch.midend.portability import bmv2_limits

    source = parse_text(config.decode())
    found = analyse(source)
    checked = found.checked()
    _warn((*source.warnings, *found.warnings, *bmv2_limits(checked)))
    return checked


def _warn(warnings: Iterable[tuple[Position, str]]) -> None:
    for position, message in warnings:
        typer.echo(f"{position}: warning: {message}", err=True)
