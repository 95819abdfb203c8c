"""The version of this hopsum."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def version() -> str:
    """Return the version of the installed distribution; '' where it runs uninstalled."""
    # A third of the time that a command takes to start, of which few need it.
    from importlib import metadata

    try:
        return metadata.version("hopsum")
    except metadata.PackageNotFoundError:
        return ""


def version_option(program: str) -> Any:
    """Return the option `--version` of a program, for the callback of its Typer app."""
    import typer

    def show(wanted: bool) -> None:
        if wanted:
            typer.echo(f"{program} {version()}")
            raise typer.Exit

    return typer.Option(
        "--version", callback=show, is_eager=True, help="Print the version and exit."
    )
