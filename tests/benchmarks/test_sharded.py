"""FSDP's collectives, by what carries them."""

from __future__ import annotations

import pytest

from benchmarks.sharded import measure


@pytest.mark.parametrize("workers", [3, 8])
def test_links_limit_each_way(workers: int) -> None:
    over_gloo, mixed, all_reduces, rooted = measure(workers)
    # Of TCP's and our frames, headers included.
    assert over_gloo["each_way"] == pytest.approx(3.2 * (workers - 1) / workers, rel=0.01)
    assert mixed["each_way"] == pytest.approx(1.067 * (2 - 1 / workers), rel=0.02)
    assert all_reduces["each_way"] == pytest.approx(2.13, abs=0.02)
    assert rooted["each_way"] == pytest.approx(1.065 + 0.065, rel=0.01)
    seconds = [row["seconds"] for row in (over_gloo, all_reduces, mixed, rooted)]
    assert seconds[-1] < seconds[-2] < min(seconds[:2])
    for row in (over_gloo, mixed, all_reduces, rooted):
        # One tensor takes 0.161 s.
        assert row["seconds"] == pytest.approx(0.1613 * row["each_way"], rel=0.02)
