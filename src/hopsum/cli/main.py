"""The `hopsum` command: its subcommands by name, each loaded when it runs."""

from __future__ import annotations

import signal
import sys
from functools import cache
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from hopsum.cli.console import complain
from hopsum.cli.grouped_help import GroupedCommand
from hopsum.protocol.errors import InputError, Interrupted
from hopsum.protocol.version import version_option
from p4switch.packet_io.standard_output import failures_reported


class Command(NamedTuple):
    """Location of a subcommand (`module:function`, or `module:app` of a group), and its help.

    `passes_on`: everything after its first argument, including options, is for another program.
    """

    target: str
    help: str
    passes_on: bool = False


COMMANDS = {
    "run": Command(
        "hopsum.cli.run_commands:run",
        "Run all-reduce of random tensors (or a training) and check every element and byte.",
    ),
    "demo": Command(
        "hopsum.cli.run_commands:demo",
        "Train on digits with in-network sums, and compare with a parameter server and a ring.",
    ),
    "torchrun": Command(
        "hopsum.cli.torchrun_command:torchrun",
        "Train with PyTorch on a cluster in Mininet (root): the running one, or one of its own.",
        passes_on=True,
    ),
    "plan": Command(
        "hopsum.cli.plan_command:plan",
        "Plan a job: trees, rates and their bound, what each switch does, bytes on each link.",
    ),
    "simulate": Command(
        "hopsum.cli.simulate_command:simulate",
        "Time all-reduce algorithms at flow level: max-min fair rates, latency, "
        "background traffic.",
    ),
    "soak": Command(
        "hopsum.cli.soak_command:soak",
        "Test random networks, jobs and faults in virtual time: sums stay exact, nothing leaks.",
    ),
    "topology": Command(
        "hopsum.cli.controller_commands:topology",
        "Show a network, convert it to node-link JSON, or draw it.",
    ),
    "cluster": Command(
        "hopsum.cli.cluster_commands:cluster",
        "Bring up a cluster in Mininet that jobs can be submitted to, until interrupted (root).",
    ),
    "submit": Command("hopsum.cli.job_commands:submit", "Submit a job to the running controller."),
    "jobs": Command(
        "hopsum.cli.job_commands:jobs",
        "List the jobs of the running controller, including finished ones.",
    ),
    "job": Command(
        "hopsum.cli.job_commands:job",
        "Show a job of the running controller: its progress, and its workers' verdicts.",
    ),
    "cancel": Command("hopsum.cli.job_commands:cancel", "Cancel a job, queued or running."),
    "nodes": Command(
        "hopsum.cli.job_commands:nodes",
        "List the hosts: which have an agent, their jobs, and the load of their links.",
    ),
    "link": Command(
        "hopsum.cli.link_commands:app",
        "Links of the running controller: list; cut and restore those of `hopsum cluster`.",
    ),
    "status": Command(
        "hopsum.cli.status_command:status",
        "Show the jobs of the running controller and their agents; its switches, links and slots.",
    ),
    "dashboard": Command(
        "hopsum.cli.dashboard_command:dashboard",
        "Show the running controller, or a recorded run, on a web page, until interrupted.",
    ),
    "top": Command(
        "hopsum.cli.top_command:top",
        "Show jobs, switches, busy links and events of the running controller, every second.",
    ),
    "stats": Command(
        "hopsum.cli.controller_commands:stats",
        "Show the packet counters of every switch, by outcome.",
    ),
    "slots": Command(
        "hopsum.cli.controller_commands:slots",
        "Show the contents of a switch's slots, read in-band.",
    ),
    "why-stuck": Command(
        "hopsum.cli.controller_commands:why_stuck",
        "List the children missing at each switch, for every incomplete fragment.",
    ),
    "trace": Command(
        "hopsum.cli.trace_command:trace",
        "Show when the frames of a fragment crossed which links, from capture files.",
    ),
    "schedule": Command(
        "hopsum.cli.schedule_commands:app", "Collectives as schedules: make, check, draw."
    ),
    "controller": Command(
        "hopsum.cli.cluster_commands:app", "The controller as a long-running process."
    ),
    "certificates": Command(
        "hopsum.cli.certificates_command:certificates",
        "Make an authority, and certificates for controller, hosts, switches and people.",
    ),
    "drive": Command(
        "hopsum.cli.run_commands:drive",
        "Keep plain forwarding on the switches of a running `mn --custom mininet_topos/custom.py`.",
    ),
    "shell": Command(
        "hopsum.cli.controller_commands:shell",
        "Open p4runtime-shell on a switch, with helpers for hopsum's tables.",
    ),
    "doctor": Command(
        "hopsum.cli.controller_commands:doctor",
        "Check this machine: what works, and what to install for the rest.",
    ),
    "export": Command(
        "hopsum.cli.export_command:export",
        "Write what other programs need: Wireshark's dissector, and Grafana's dashboard.",
    ),
    "manual": Command(
        "hopsum.cli.manual_command:manual",
        "Print the man page (`hopsum manual | man -l -`), or write those of both programs.",
    ),
    "stop": Command(
        "hopsum.cli.run_commands:stop",
        "Clean up after a killed run: processes, interfaces, namespaces (root).",
    ),
}


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

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        # Whole sentences: the base class truncates them.
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])

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
    # Plain help: rich would take longer than all the rest of it.
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def hopsum(
    version: Annotated[bool, version_option("hopsum")] = False,
) -> None:
    """Gradients summed hop by hop inside the network."""


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
