"""The benchmark of losses, on one small case."""

from __future__ import annotations

from benchmarks.loss import measure
from simulation.faults import Faults


def test_a_small_case() -> None:
    [row] = measure("star:2", 2, 10_000, (Faults(loss=0.05, burst=2),))
    assert row["wrong"] == 0
    assert row["sent_again"] > 0
    assert row["limit"] == 1.053
    assert row["seconds"] > row["lossless_seconds"]
