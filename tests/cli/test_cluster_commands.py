"""Commands that bring clusters up: what they ask of what they start."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from cli import cluster_commands
from cli.main import app
from controller.jobs.priorities import ONE_LEVEL
from controller.jobs.settings import ClusterSettings


@pytest.mark.parametrize(
    ("command", "starts"),
    [
        (["cluster", "star:2"], "run_emulated_cluster"),
        (["controller", "serve", "star:2"], "run_controller"),
    ],
)
def test_priorities_can_be_left_out(
    command: list[str], starts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        cluster_commands, starts, lambda *arguments, **options: asked.append((arguments, options))
    )
    for options in ([], ["--no-priorities"]):
        done = CliRunner().invoke(app, [*command, *options])
        assert done.exit_code == 0, done.output
    with_levels, without = (
        next(value for value in arguments if isinstance(value, ClusterSettings))
        for arguments, _ in asked
    )
    assert without.priorities == ONE_LEVEL
    # Which thresholds suit is for the cluster to say, that knows the network.
    assert with_levels.priorities is None
