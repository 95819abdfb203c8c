"""`hopsum manual`: man pages from the commands' own declarations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def manual(
    folder: Annotated[
        Path | None,
        typer.Option(help="Write hopsum.1 and hopsum-agent.1 there instead of printing the first."),
    ] = None,
) -> None:
    """Print the man page (`hopsum manual | man -l -`), or write those of both programs."""
    from hopsum.cli.command_reference import manual as page
    from hopsum.files.output import write_file
    from hopsum.protocol.version import version

    if folder is None:
        typer.echo(page("hopsum", version()), nl=False)
        return
    for program in ("hopsum", "hopsum-agent"):
        write_file(folder / f"{program}.1", page(program, version()))
