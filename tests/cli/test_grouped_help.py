"""Help of commands with many options."""

from __future__ import annotations

import re
from typing import Any

import pytest
from typer.testing import CliRunner

from hopsum.cli.commands import COMMANDS
from hopsum.cli.grouped_help import GROUPS, LONG, OTHER
from hopsum.cli.main import app, load_command
from hopsum.planning.registry import PLANNERS
from hopsum.protocol.errors import InputError


def long_commands() -> dict[str, Any]:
    commands = {
        name: load_command(entry.target, name, entry.passes_on) for name, entry in COMMANDS.items()
    }
    return {name: each for name, each in commands.items() if len(each.params) >= LONG}


def test_every_option_of_a_long_command_is_in_its_help_once() -> None:
    found = long_commands()
    assert {"run", "plan", "submit"} <= set(found)
    for name, command in found.items():
        text = CliRunner().invoke(app, [name, "--help"]).output
        for parameter in command.params:
            if parameter.param_type_name == "option":
                shown = re.findall(rf"\n  (?:-\w, )?{re.escape(parameter.opts[0])}[ ,\n]", text)
                assert len(shown) == 1, (name, parameter.opts)


def test_all_options_of_run_have_a_group() -> None:
    text = CliRunner().invoke(app, ["run", "-h"]).output
    titles = [line for line in text.splitlines() if line.endswith(":") and line[0] != " "]
    assert titles == [f"{title}:" for title in (*GROUPS, OTHER)]
    other = text.partition(f"{OTHER}:\n")[2].strip().splitlines()
    assert len(other) == 1
    assert "--help" in other[0]


def test_groups_name_options_that_exist() -> None:
    options = {
        option
        for each in long_commands().values()
        for parameter in each.params
        for option in parameter.opts
    }
    missing = {f"--{name}" for names in GROUPS.values() for name in names} - options
    assert missing == set()


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("command", ["plan", "run", "submit", "simulate"])
def test_a_planner_lists_its_options(command: str, planner: str) -> None:
    text = CliRunner().invoke(app, [command, "--planner", planner, "--help"]).output
    own = " ".join(text.partition(f"Options of the planner {planner}")[2].split())
    for option in PLANNERS[planner].options:
        assert f"{option.name}={option.kind} {option.help}" in own
    assert "Options of the planner" not in CliRunner().invoke(app, [command, "--help"]).output


def test_help_on_an_unknown_planner_names_those_there_are() -> None:
    refused = CliRunner().invoke(app, ["plan", "--planner=magic", "--help"])
    assert isinstance(refused.exception, InputError)
    assert "planners: multi-hop" in str(refused.exception)
