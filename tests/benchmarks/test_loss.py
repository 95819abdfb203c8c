"""The benchmark of losses, on one small case."""

from __future__ import annotations

import pytest

from benchmarks.loss import measure
from simulation.faults import Faults

LOSSLESS = 0.014
"""Seconds that 10,000 numbers take at 25 Mbit/s, a little less."""


@pytest.mark.parametrize("latency", [0.0, 0.001])
def test_a_small_example(latency: float) -> None:
    [row] = measure("star:2", 2, 10_000, (Faults(loss=0.05, burst=2),), latency)
    assert row["wrong"] == 0
    assert row["sent_again"] > 0
    assert row["limit"] == 1.053
    assert row["seconds"] > row["lossless_seconds"] > LOSSLESS + latency
