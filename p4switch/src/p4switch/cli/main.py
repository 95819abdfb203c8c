"""The `p4switch` command: its subcommands by name, each loaded when it runs."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from p4switch.packet_io.standard_output import failures_reported


class Command(NamedTuple):
    """Location of a subcommand (`module:function`) and its help."""

    target: str
    help: str


COMMANDS = {
    "run": Command(
        "p4switch.cli.run_command:run",
        "Run a switch on network interfaces until SIGTERM or SIGINT.",
    ),
    "compile": Command(
        "p4switch.cli.compile_command:compile_command",
        "Check a P4 program; write the files that a controller pushes.",
    ),
    "stf": Command(
        "p4switch.cli.stf_command:stf",
        "Run STF packet tests (the format of p4c's tests) against a program.",
    ),
    "cli": Command(
        "p4switch.cli.runtime_command:cli_command",
        "Talk to a running switch in simple_switch_CLI's commands (`help` lists them).",
    ),
    "explain": Command(
        "p4switch.cli.explain_command:explain",
        "Show what a program does with one packet, step by step.",
    ),
    "lsp": Command(
        "p4switch.cli.lsp_command:lsp",
        "Serve an editor over standard input and output (Language Server Protocol).",
    ),
    "shims": Command(
        "p4switch.cli.shims_command:shims",
        "Write simple_switch_grpc, p4c and so on, which run p4switch, into a folder for PATH.",
    ),
    "demo": Command(
        "p4switch.cli.demo_command:demo",
        "Send a few packets through a router and show what happens to each, step by step.",
    ),
}


class _Deferred(TyperCommand):
    """A subcommand that is imported when it runs, or when its own help is requested."""

    target = ""

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> Any:
        module, _, function = self.target.partition(":")
        one = typer.Typer(
            rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False
        )
        one.command(self.name)(getattr(import_module(module), function))
        return typer.main.get_command(one).make_context(info_name, args, *rest, **extra)


class _Commands(TyperGroup):
    """The subcommands of `COMMANDS`, in that order."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command = _Deferred(cmd_name, help=entry.help)
        command.target = entry.target
        return command


app = typer.Typer(
    name="p4switch",
    cls=_Commands,
    # Plain help: importing rich would take longer than all the rest.
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"p4switch {version('p4switch')}")
        raise typer.Exit


@app.callback()
def p4switch(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Run P4_16 programs for v1model: packets in and out, P4Runtime."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line, by default that of the process."""
    # Suppress gRPC's log lines, which would precede the errors that say what to do.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # BMv2's target options follow a `--`; here they are ordinary options.
    words = sys.argv[1:] if arguments is None else arguments
    arguments = [argument for argument in words if argument != "--"]
    if arguments[:1] == ["run"]:
        # Until the switch runs nearly all objects stay: looking for garbage takes a tenth of that.
        gc.disable()
    try:
        with failures_reported("p4switch"):
            app(args=arguments, prog_name="p4switch")
    finally:
        gc.enable()


if __name__ == "__main__":
    main()
