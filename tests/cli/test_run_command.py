"""`hopsum run`: the page of a run that fails."""

from __future__ import annotations

import json
import urllib.request
from typing import NoReturn
from urllib.error import HTTPError

import pytest
from typer.testing import CliRunner

from hopsum.cli import run_commands
from hopsum.cli.main import app
from hopsum.experiment.result import RunFailed


def fail(*args: object, **options: object) -> NoReturn:
    raise RunFailed("no agent on h1 [at all]")


def test_the_page_of_a_run_that_fails_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    received: list[str] = []

    def look() -> None:
        [line] = [line for line in said if line.startswith("dashboard at ")]
        url = line.removeprefix("dashboard at ")
        with urllib.request.urlopen(f"{url}frames.json") as answer:
            assert json.load(answer) == {"dates": [], "live": False}
        with pytest.raises(HTTPError) as refused:
            urllib.request.urlopen(f"{url}state.json")
        received.append(refused.value.read().decode())

    monkeypatch.setattr(run_commands, "notify", said.append)
    monkeypatch.setattr(run_commands, "execute", fail)
    monkeypatch.setattr(run_commands, "_keep_page", look)
    done = CliRunner().invoke(app, ["run", "--dashboard", "--web", "127.0.0.1:0"])
    assert isinstance(done.exception, RunFailed)
    assert received == ["nothing is recorded: the run failed before its network was up\n"]
    assert "no agent on h1 [at all]" in done.output
    said.clear()
    received.clear()
    done = CliRunner().invoke(app, ["run"])
    assert isinstance(done.exception, RunFailed)
    assert received == []
