"""The `hopsum` command: its subcommands are found by name, and load what they need alone."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from importlib import import_module
from inspect import getdoc
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from hopsum.cli.command_reference import commands_of
from hopsum.cli.commands import COMMANDS, OPTIONS
from hopsum.cli.grouped_help import OTHER
from hopsum.cli.main import app
from hopsum.collectives.algorithms.catalogue import SCHEDULES
from hopsum.collectives.choices import PLANNER_NAMES, SCHEDULE_NAMES
from hopsum.host_agent.main import app as agent_app
from hopsum.planning.registry import PLANNERS
from hopsum.protocol.errors import HopsumError, InputError, OperationError
from hopsum.protocol.version import version

HEAVY = {
    "numpy",
    "networkx",
    "scipy",
    "grpc",
    "rich",
    "google.protobuf",
    "p4switch.ir",
    "asyncio",
    "aiohttp",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_the_first_line_of_the_docstring(name: str) -> None:
    module, _, attribute = COMMANDS[name].target.partition(":")
    found = getattr(import_module(module), attribute)
    if isinstance(found, typer.Typer):
        assert found.info.help == COMMANDS[name].help
        return
    summary = (getdoc(found) or "").split("\n\n")[0].replace("\n", " ")
    assert summary == COMMANDS[name].help


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_page_of_help(name: str) -> None:
    result = CliRunner().invoke(app, [name, "--help"])
    assert result.exit_code == 0
    assert f"Usage: hopsum {name}" in result.stdout


@pytest.mark.parametrize(
    "command",
    [each.words for each in (*commands_of("hopsum"), *commands_of("hopsum-agent"))],
)
def test_help_has_one_form(command: str) -> None:
    program, *words = command.split()
    result = CliRunner().invoke(app if program == "hopsum" else agent_app, [*words, "--help"])
    assert ("\nOptions:\n" in result.stdout) != (f"\n{OTHER}:\n" in result.stdout)


@pytest.mark.parametrize("group", ["hopsum controller", "hopsum schedule", "hopsum-agent"])
def test_commands_are_listed_with_whole_sentences(group: str) -> None:
    program, *words = group.split()
    result = CliRunner().invoke(app if program == "hopsum" else agent_app, [*words, "--help"])
    listed = result.stdout.partition("\nCommands:\n")[2]
    assert listed and "..." not in listed


@pytest.mark.parametrize("arguments", [["--help"], ["submit", "--help"], ["jobs", "--help"]])
def test_commands_import_lazily(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom hopsum.cli.main import app\n"
        f"try: app({arguments!r})\nexcept SystemExit: pass\n"
        f"sys.stderr.write(' '.join({HEAVY!r} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stderr == ""


@pytest.mark.parametrize("command", ["plan", "simulate"])
def test_plans_need_no_controller(command: str) -> None:
    code = (
        "import sys\nfrom hopsum.cli.main import app\n"
        f"try: app([{command!r}, '--help'])\nexcept SystemExit: pass\n"
        "sys.stderr.write(' '.join({'grpc', 'finsy', 'asyncio'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stderr == ""


def test_the_overview_takes_no_typer() -> None:
    """A start of `hopsum --help` takes little more than Python's."""
    code = (
        "import sys, re\nfrom hopsum.cli.entry import main\nbefore = set(sys.modules)\n"
        "sys.argv[1:] = ['--help']\nmain()\n"
        "sys.stderr.write(' '.join(sorted(set(sys.modules) - before)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = {
        name for name in found.stderr.split() if not name.startswith(("hopsum", "p4switch"))
    }
    assert imported <= {"__future__", "contextlib", "errno", "textwrap"}
    assert found.stdout == CliRunner().invoke(app, ["--help"]).stdout


def test_the_overview_lists_all_options_and_commands() -> None:
    written = CliRunner().invoke(app, ["--help"]).stdout
    command = typer.main.get_command(app)
    context = typer.Context(command, help_option_names=["-h", "--help"])
    rows = [each.get_help_record(context) for each in command.get_params(context)]
    assert dict(rows) == OPTIONS
    assert [line.split()[0] for line in re.findall(r"^  [a-z].*", written, re.M)] == list(COMMANDS)
    assert "..." not in written.replace("[ARGS]...", "")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["submit", "a"], ["jobs"]])
def test_commands_that_call_the_controller_import_little_more(arguments: list[str]) -> None:
    arguments = [*arguments, "--controller", "unix:/nowhere.sock"]
    code = (
        "import sys\nfrom hopsum.cli.main import main\n"
        f"sys.argv = ['hopsum', *{arguments!r}]\n"
        "try: main()\nexcept SystemExit: pass\n"
        f"print(*{HEAVY!r} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "controller at unix:/nowhere.sock" in found.stderr
    assert set(found.stdout.split()) <= {"asyncio", "google.protobuf", "grpc"}


@pytest.mark.parametrize("arguments", [["-h"], ["run", "-h"], ["controller", "serve", "-h"]])
def test_h_is_short_for_help(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert result.stdout == CliRunner().invoke(app, [*arguments[:-1], "--help"]).stdout


def test_every_command_takes_its_network_by_topology() -> None:
    (written, named) = (
        CliRunner().invoke(app, ["topology", *way]).stdout
        for way in (["star:2"], ["--topology", "star:2"])
    )
    assert written == named
    twice = CliRunner().invoke(app, ["topology", "star:2", "--topology", "star:3"])
    assert twice.exit_code == 2
    assert "given twice" in twice.output
    takes = {
        each.words: [
            p.names for p in each.parameters if "--topology" in p.names or p.names == ("network",)
        ]
        for each in commands_of("hopsum")
    }
    assert {
        words for words, names in takes.items() if ("network",) in names and len(names) < 2
    } == set()


def test_a_mistyped_command_suggests_the_right_one() -> None:
    result = CliRunner().invoke(app, ["clster"])
    assert result.exit_code == 2
    assert "No such command 'clster'. Did you mean 'cluster'?" in result.output


def test_an_interrupt_during_imports_leaves_no_traceback() -> None:
    code = """if True:
        import os, signal, sys
        signal.signal(signal.SIGINT, signal.default_int_handler)
        class Interrupts:
            def find_spec(self, name, *rest):
                if name == "hopsum.cli.main":
                    os.kill(os.getpid(), signal.SIGINT)
        sys.meta_path.insert(0, Interrupts())
        from hopsum.cli.entry import main
        main()
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


def test_an_interrupt_while_options_are_read_leaves_no_traceback() -> None:
    code = """if True:
        import os, signal, sys
        signal.signal(signal.SIGINT, signal.default_int_handler)
        import typer.main
        typer.main.get_command = lambda app: os.kill(os.getpid(), signal.SIGINT)
        from hopsum.cli.entry import main
        main()
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGINT, "interrupted\n")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["topology", "star:2"], ["topology", "star:2", "--json"]]
)
def test_a_full_disk_is_one_line_of_error(arguments: list[str]) -> None:
    code = "from hopsum.cli.entry import main; main()"
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", code, *arguments], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.stderr == "hopsum: cannot write the output: No space left on device\n"
    assert ended.returncode == 1


def test_names_in_options_are_those_of_the_registries() -> None:
    assert tuple(SCHEDULES) == SCHEDULE_NAMES
    assert tuple(PLANNERS) == PLANNER_NAMES


def test_errors_are_input_or_operation() -> None:
    assert (InputError.exit_code, OperationError.exit_code) == (2, 1)
    assert issubclass(InputError, (HopsumError, ValueError))
    assert issubclass(OperationError, (HopsumError, RuntimeError))


@pytest.mark.parametrize(("program", "app"), [("hopsum", app), ("hopsum-agent", agent_app)])
def test_the_version_is_printed(program: str, app: typer.Typer) -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"{program} {version()}\n"
