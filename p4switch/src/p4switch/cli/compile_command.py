"""`p4switch compile`: check a program and write the files that a controller pushes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p4switch.cli.options import Defines, Includes, P4InfoFile, fail, read_bundle, write_file

if TYPE_CHECKING:
    from p4switch.ir import Program


def compile_command(
    program: Annotated[Path, typer.Argument(help="P4 source, or BMv2 JSON.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write a self-contained program for `run` and pushes."),
    ] = None,
    p4runtime_files: Annotated[
        Path | None, typer.Option(help="Write the P4Info here (protobuf text).")
    ] = None,
    p4info: P4InfoFile = None,
    defines: Defines = None,
    includes: Includes = None,
) -> None:
    """Check a P4 program; write the files that a controller pushes."""
    from p4switch.device.loading import checked_program
    from p4switch.p4runtime.p4info import p4info_text
    from p4switch.position import P4Error
    from p4switch.programs import is_bmv2_json

    try:
        config = read_bundle(program, includes, defines, p4info)
        if is_bmv2_json(config):
            checked = checked_program(config)
        else:
            checked = _checked_source(config)
        information = p4info_text(checked)
    except P4Error as error:
        fail(str(error))
    for path, content in ((output, config), (p4runtime_files, information.encode())):
        if path is not None:
            write_file(path, content)


def _checked_source(config: bytes) -> Program:
    """Return the program of a bundle of P4 source; print what p4c would warn of or refuse."""
    from p4switch.frontend.program import compile_program
    from p4switch.frontend.syntax.parser import parse_text
    from p4switch.midend.portability import bmv2_limits

    source = parse_text(config.decode())
    checked = compile_program(source)
    for position, message in (*source.warnings, *bmv2_limits(checked)):
        typer.echo(f"{position}: warning: {message}", err=True)
    return checked
