"""The `hopsum` command: its subcommands by name, each loaded when it runs."""

from __future__ import annotations

import signal
import sys
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from hopsum.cli.commands import COMMANDS, SUMMARY, Command, overview
from hopsum.cli.console import complain
from hopsum.cli.grouped_help import GroupedCommand
from hopsum.protocol.errors import InputError, Interrupted
from hopsum.protocol.version import version_option
from p4switch.packet_io.standard_output import failures_reported


def load(target: str, name: str | None, passes_on: bool = False) -> typer.Typer:
    """Import a subcommand, `module:function` or `module:app`, and return it as an app."""
    module, _, attribute = target.partition(":")
    found = getattr(import_module(module), attribute)
    if isinstance(found, typer.Typer):
        return found
    app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
    settings = {"allow_interspersed_args": not passes_on}
    app.command(name, cls=GroupedCommand, context_settings=settings)(found)
    return app


@cache
def load_command(target: str, name: str, passes_on: bool) -> Any:
    """Return a subcommand for Click: made once, as Typer evaluates all annotations for it."""
    return typer.main.get_command(load(target, name, passes_on))


class _LazyCommand(TyperCommand):
    """A subcommand that is imported when it runs, or when its own help is requested."""

    def __init__(self, name: str, entry: Command) -> None:
        super().__init__(name, help=entry.help)
        self.entry = entry

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> Any:
        command = load_command(self.entry.target, self.name, self.entry.passes_on)
        return command.make_context(info_name, args, *rest, **extra)


class _Commands(TyperGroup):
    """The subcommands of `COMMANDS`, in that order."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: _LazyCommand(name, entry) for name, entry in COMMANDS.items()}

    def get_help(self, ctx: Any) -> str:
        return overview()

    def invoke(self, ctx: Any) -> Any:
        # Help does without.
        import logging

        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            # Typer would make a silent exit of it.
            interrupted = Interrupted(signal.SIGINT)
            for note in getattr(error, "__notes__", ()):
                interrupted.add_note(note)
            raise interrupted from None


app = typer.Typer(
    name="hopsum",
    cls=_Commands,
    # Plain help: rich would take longer to import than Typer.
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(help=SUMMARY)
def hopsum(version: Annotated[bool, version_option("hopsum")] = False) -> None:
    """Take the options of `hopsum` itself."""


def main() -> None:
    """Run the command; an error of hopsum becomes one clear message and its exit code."""
    try:
        with failures_reported("hopsum"):
            app()
    except (Interrupted, KeyboardInterrupt) as interrupted:
        # The latter before a subcommand runs, while Typer reads its options.
        notes = getattr(interrupted, "__notes__", ())
        typer.echo("; ".join(("interrupted", *notes)), err=True)
        sys.exit(getattr(interrupted, "exit_code", 128 + signal.SIGINT))
    except Exception as error:
        # Rooms that know nothing of hopsum's base class name their exit code alone.
        code = getattr(error, "exit_code", None)
        if not isinstance(code, int):
            raise
        complain("error" if code == InputError.exit_code else "failed", str(error))
        sys.exit(code)
