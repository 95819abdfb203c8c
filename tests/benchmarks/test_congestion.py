"""Jobs and TCP connections that get equal shares of a link, within 20 %."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.congestion import CASES, Case, rows

MOST = 1.2
STOP = 1.5
"""Seconds; published figures count for longer."""


@pytest.mark.slow
@pytest.mark.parametrize(("make", "jobs", "connections"), CASES)
def test_flows_share_a_link_fairly(
    make: Callable[[int, int], Case], jobs: int, connections: int
) -> None:
    found = rows(make(jobs, connections), STOP)
    assert len(found) == jobs + (connections > 0)
    assert sum(row["share"] for row in found) == pytest.approx(1, abs=0.02), "the link is busy"
    parts = [row["of_fair_share"] for row in found]
    assert max(parts) < MOST * min(parts)
