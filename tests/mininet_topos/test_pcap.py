"""Capture files of a run in Mininet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from tests.support.wireshark import assert_captured

pytestmark = pytest.mark.network


def test_a_run_in_mininet_is_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "pcap"
    done = CliRunner().invoke(
        app,
        ["run", "--world", "mininet", "--topology", "star:2", "--workers", "2",
         "--elements", "2000", "--rounds", "1", "--dtype", "int32", "--pcap", str(folder)],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert_captured(folder)
    # `hopsum trace` reads them too.
    traced = CliRunner().invoke(app, ["trace", str(folder), "3", "--json"])
    ways = {(hop["source"], hop["target"], hop["weight"]) for hop in json.loads(traced.stdout)}
    assert ways == {
        ("h1", "s1", 1), ("h2", "s1", 1), ("s1", "ps", 2), ("ps", "s1", 2), ("s1", "h1", 2),
        ("s1", "h2", 2),
    }  # fmt: skip
