"""Jobs and TCP connections that share a link get the same of it, within 20 %."""

from __future__ import annotations

import pytest

from benchmarks.congestion import CASES, Case, measure

MOST = 1.2


@pytest.mark.slow
@pytest.mark.parametrize(("make", "jobs", "connections"), CASES)
def test_flows_share_a_link_fairly(make: type[Case], jobs: int, connections: int) -> None:
    rows = list(measure(make, jobs, connections))
    assert len(rows) == jobs + (connections > 0)
    assert sum(row["share"] for row in rows) == pytest.approx(1, abs=0.02), "the link is busy"
    parts = [row["of_fair_share"] for row in rows]
    assert max(parts) < MOST * min(parts)
