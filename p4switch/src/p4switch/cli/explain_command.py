"""`p4switch explain`: show what a program does with one packet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from p4switch.cli.options import (
    MOST_PORT,
    Defines,
    Includes,
    P4InfoFile,
    fail,
    parse_defines,
    write_file,
)


def explain(
    program: Annotated[Path, typer.Argument(help="P4 source, or BMv2 JSON.")],
    packet: Annotated[str, typer.Option(help="The frame, in hexadecimal digits.")],
    port: Annotated[int, typer.Option(min=0, max=MOST_PORT, help="Ingress port.")] = 0,
    entries: Annotated[
        Path | None,
        typer.Option(
            help="Table entries, clone sessions and so on, in STF: `add TABLE KEY:VALUE "
            "ACTION(NAME:VALUE)`, `setdefault`, `mirroring_add`, ... (packets in it are left out)."
        ),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw the packet's path into this file.")
    ] = None,
    tree: Annotated[
        bool,
        typer.Option(
            "--tree",
            help="Show all outcomes: a branch for each copy, further pass, and member that a "
            "selector can choose.",
        ),
    ] = False,
    form: Annotated[str, typer.Option("--format", metavar="text|json")] = "text",
    p4info: P4InfoFile = None,
    defines: Defines = None,
    includes: Includes = None,
) -> None:
    """Show what a program does with one packet, step by step."""
    from p4switch.backends.reference.interpreter import Interpreter
    from p4switch.backends.reference.trace import FORMS, PacketTrace, Tracer
    from p4switch.backends.reference.trace_tree import (
        Choices,
        TooManyBranchesError,
        explore,
        tree_json,
        tree_text,
    )
    from p4switch.cli.path_drawing import path_svg, tree_svg
    from p4switch.position import P4Error
    from p4switch.programs import compile_path
    from p4switch.stf import StfError, prepare

    try:
        frame = bytes.fromhex(packet.removeprefix("0x"))
    except ValueError as error:
        fail(f"--packet: expected pairs of hexadecimal digits: {error}")
    if form not in FORMS:
        fail(f"--format: {form!r} is not a form of a trace: expected one of {', '.join(FORMS)}")
    try:
        compiled = compile_path(
            program,
            include_paths=includes or [],
            defines=parse_defines(defines),
            p4info=p4info,
        )

        def run(choices: Choices) -> PacketTrace:
            traces: list[PacketTrace] = []
            engine = Interpreter(compiled, None, Tracer(traces.append, choices=choices))
            if entries is not None:
                prepare(engine, entries)
            engine.process([(port, frame)])
            return traces[0]

        trace = explore(run) if tree else run({})
    except (P4Error, StfError, TooManyBranchesError) as error:
        fail(str(error))
    if form == "json":
        typer.echo(tree_json(trace) if tree else trace.json())
    else:
        typer.echo(tree_text(trace) if tree else trace.text())
    if picture is not None:
        write_file(picture, (tree_svg(trace) if tree else path_svg(trace)).encode())
