"""docs/commands.md lists the options of each command: all of them, and no others."""

from __future__ import annotations

import re
from importlib import import_module

import pytest
import typer

from p4switch.cli.main import COMMANDS
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "commands.md").read_text()
SECTIONS = {
    section.partition("\n")[0]: section for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_lists_the_options_of_a_command(command: str) -> None:
    module, _, function = COMMANDS[command].target.partition(":")
    one = typer.Typer()
    one.command(command)(getattr(import_module(module), function))
    parameters = typer.main.get_command(one).params
    options = {name for each in parameters for name in each.opts if name.startswith("-")}
    rows = [line for line in SECTIONS[command].splitlines() if line.startswith("| `")]
    named = {
        name
        for row in rows
        for code in re.findall(r"`([^`]*)`", row.split(" | ")[0])
        for name in re.findall(r"^-[-\w]+", code)
    }
    # Others that belong to one of a row stand in its description.
    named |= options & {code for row in rows for code in re.findall(r"`(--[\w-]+)", row)}
    assert named == options - {"--install-completion", "--show-completion"}
