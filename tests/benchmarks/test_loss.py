"""The benchmark of losses, on one small case."""

from __future__ import annotations

import json

import pytest

from benchmarks.loss import measure
from hopsum.simulation.faults import Faults
from tests.support.paths import ROOT

LOSSLESS = 0.014
"""Seconds that 10,000 numbers take at 25 Mbit/s, a little less."""


@pytest.mark.parametrize("latency", [0.0, 0.001])
def test_a_small_example(latency: float) -> None:
    [row] = measure("star:2", 2, 10_000, (Faults(loss=0.05, burst=2),), latency)
    assert row["wrong"] == 0
    assert row["sent_again"] > 0
    assert row["limit"] == 1.053
    assert row["seconds"] > row["lossless_seconds"] > LOSSLESS + latency


@pytest.mark.slow
def test_a_burst_of_losses_costs_little_of_the_window() -> None:
    """Sums that leave together after a loss were taken for congestion: 2.4 times, now 1.5."""
    [row] = measure("fat-tree:4", 8, 200_000, (Faults(loss=0.05, burst=4),), 0.0)
    assert row["wrong"] == 0
    assert row["ratio"] < 1.8


@pytest.mark.long
def test_published_figures_are_those_of_this_tree() -> None:
    """Virtual time gives the same everywhere, so a slower recovery shows."""
    file = ROOT / "benchmarks/results/loss.json"
    published = json.loads(file.read_text(encoding="utf-8"))["rows"]
    keys = ("topology", "elements", "loss", "burst", "reorder", "latency")
    [row] = measure("star:8", 8, 2_000_000, (Faults(loss=0.1),), 0.0)
    [same] = [each for each in published if all(each[key] == row[key] for key in keys)]
    assert row["ratio"] == pytest.approx(same["ratio"], rel=0.02)
