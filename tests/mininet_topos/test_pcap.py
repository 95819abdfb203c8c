"""Capture files of a run in Mininet."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hopsum.cli.main import app
from hopsum.protocol.outcomes import Outcome
from tests.support.bmv2 import need_bmv2
from tests.support.wireshark import assert_captured

pytestmark = pytest.mark.network


def test_a_fragment_is_followed_through_a_run_in_mininet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--elements", "2000", "--rounds", "1", "--dtype", "int32", "--pcap", "pcap"]
    topology = ["--topology", "star:2", "--workers", "2"]
    base = ["run", "--world", "mininet", *topology, *options]
    done = CliRunner().invoke(app, [*base, "--trace-fragment", "3"])
    assert done.exit_code == 0, done.output
    for way, label, outcome in (
        ("ps -> s1", "replicated, weight 2, sequence ", "cleared"),
        ("h. -> s1", "contribution of worker", "aggregated"),
        ("h. -> s1", "contribution of worker", "completed"),
    ):
        assert re.search(rf"{way} +{label}.*; s1: {outcome}$", done.output, re.MULTILINE)
    traced = CliRunner().invoke(app, ["trace", "1", "3", "--json"])
    hops = json.loads(traced.stdout)
    to_switch = sorted(hop["outcomes"] for hop in hops if hop["target"] == "s1")
    assert to_switch == [[Outcome.AGGREGATED], [Outcome.COMPLETED], [Outcome.CLEARED]]
    traced = CliRunner().invoke(app, ["trace", "1", "4", "--json"])
    assert not any(hop["outcomes"] for hop in json.loads(traced.stdout))


@pytest.mark.parametrize("engine", ["embedded", "bmv2"])
def test_a_run_in_mininet_is_captured(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine == "bmv2":
        need_bmv2()
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "pcap"
    done = CliRunner().invoke(
        app,
        ["run", "--world", "mininet", "--topology", "star:2", "--workers", "2",
         "--elements", "2000", "--rounds", "1", "--dtype", "int32", "--engine", engine,
         "--pcap", str(folder)],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert_captured(folder)
    # `hopsum trace` reads them too.
    traced = CliRunner().invoke(app, ["trace", "1", "3", "--pcap", str(folder), "--json"])
    ways = {(hop["source"], hop["target"], hop["weight"]) for hop in json.loads(traced.stdout)}
    assert ways == {
        ("h1", "s1", 1), ("h2", "s1", 1), ("s1", "ps", 2), ("ps", "s1", 2), ("s1", "h1", 2),
        ("s1", "h2", 2),
    }  # fmt: skip
