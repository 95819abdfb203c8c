"""`hopsum soak`, the command."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hopsum.cli.main import app


def test_the_soak_silences_only_its_own_logging(tmp_path: Path) -> None:
    file = tmp_path / "none.json"
    before = logging.getLogger().level
    done = CliRunner().invoke(app, ["soak", "--replay", str(file)])
    assert f"{file}: cannot be read" in str(done.exception)
    assert logging.getLogger().level == before


@pytest.mark.slow
def test_schedules_that_pass_leave_no_files(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["soak", "--schedules", "2", "--seed", "5", "--output", str(tmp_path), "--json"]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["schedules"], found["failures"]) == (2, [])
    assert list(tmp_path.iterdir()) == []
