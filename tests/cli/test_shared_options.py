"""Options that `run`, `submit` and `plan` share mean the same, by default too."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from cli.main import COMMANDS, load_command

NAMES = ("run", "submit", "plan")
ON_PURPOSE = {"--workers"}
"""A run and a plan look at a network, a submission takes a part of one."""


def options(name: str) -> dict[str, Any]:
    command = load_command(COMMANDS[name].target, name, COMMANDS[name].passes_on)
    return {parameter.opts[0]: parameter.default for parameter in command.params}


@pytest.mark.parametrize(("one", "other"), combinations(NAMES, 2))
def test_shared_options_have_the_same_default(one: str, other: str) -> None:
    ours, theirs = options(one), options(other)
    shared = ours.keys() & theirs.keys() - ON_PURPOSE
    assert len(shared) > 10
    assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}
