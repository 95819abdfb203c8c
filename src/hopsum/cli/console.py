"""Messages to the user on standard error."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console


@cache
def console() -> Console:
    """Return the console of standard error."""
    # Importing it takes as long as a whole short command.
    from rich.console import Console

    return Console(stderr=True)


PIPE_WIDTH = 1000
"""Columns where standard output is no terminal, so that each row is one line."""


def standard_output() -> Console:
    """Return a console of standard output, as wide as its terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)


def notify(line: str) -> None:
    """Print one line unwrapped."""
    console().print(line, highlight=False, markup=False, soft_wrap=True)


def complain(kind: str, message: str) -> None:
    """Print one line: `kind` in red, then the message without markup."""
    typer.secho(f"{kind}: ", err=True, bold=True, fg="red", nl=False)
    typer.echo(message, err=True)
