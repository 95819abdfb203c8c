"""Options that `run`, `submit` and `plan` share have one definition, with the same default."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import COMMANDS, app, load_command
from network.loaders import load_network, save_network

NAMES = ("run", "submit", "plan")


def options(name: str) -> dict[str, Any]:
    command = load_command(COMMANDS[name].target, name, COMMANDS[name].passes_on)
    return {each.opts[0]: (each.default, each.help) for each in command.params}


@pytest.mark.parametrize(("one", "other"), combinations(NAMES, 2))
def test_shared_options_have_the_same_default_and_help(one: str, other: str) -> None:
    ours, theirs = options(one), options(other)
    shared = ours.keys() & theirs.keys()
    assert len(shared) > 15
    assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}


def test_links_have_the_same_rate_by_default(tmp_path: Path) -> None:
    file = tmp_path / "network.json"
    save_network(load_network("star:2", link_rate="8M"), file)
    invoke = CliRunner().invoke
    for network, rate in (("star:2", 25e6), (str(file), 8e6)):
        shared = ("--topology", network, "--workers", "2", "--elements", "1000", "--json")
        ran, planned = invoke(app, ["run", *shared]), invoke(app, ["plan", *shared])
        assert ran.exit_code == planned.exit_code == 0, (ran.output, planned.output)
        found = json.loads(planned.stdout)
        assert (found["unit"], found["throughput"]) == ("bit/s", rate)
        predicted = json.loads(ran.stdout)["predicted_seconds"]
        assert predicted == found["prediction"]["seconds"]
