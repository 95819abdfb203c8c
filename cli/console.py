"""Messages for people on standard error."""

from __future__ import annotations

import signal
from functools import cache
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console


class Interrupted(BaseException):
    """A signal has asked the command to end; what it started is taken down on the way."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.exit_code = 128 + number
        """As shells have it of a process that a signal has ended."""


@cache
def console() -> Console:
    """Return the console of standard error."""
    # It takes as long to import as a short command takes in all.
    from rich.console import Console

    return Console(stderr=True)


def tell(line: str) -> None:
    """Print one line as it is, however long."""
    console().print(line, highlight=False, markup=False, soft_wrap=True)


def complain(kind: str, message: str) -> None:
    """Print one line: `kind` in red, then the message as it is."""
    typer.secho(f"{kind}: ", err=True, bold=True, fg="red", nl=False)
    typer.echo(message, err=True)
