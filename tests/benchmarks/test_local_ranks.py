"""Several ranks a host, by who adds them up."""

from __future__ import annotations

import pytest

from benchmarks.local_ranks import Way, measure


@pytest.mark.slow
def test_one_copy_a_host_crosses_its_link_where_something_on_it_adds_up() -> None:
    agent = measure(Way.AGENT, 2)
    workers, switch, ring = (measure(way, 2) for way in (Way.WORKERS, Way.SWITCH, Way.RING))
    assert (agent["up"], agent["down"]) == (switch["up"], switch["down"]) == (1.07, 1.06)
    assert (workers["up"], workers["down"]) == (2.14, 1.06)
    # 2 (N - 1) / N of 8 ranks, with TCP's headers.
    assert ring["up"] == ring["down"] == pytest.approx(2 * 7 / 8 * 1.07, abs=0.02)
    assert agent["seconds"] == pytest.approx(switch["seconds"], rel=0.02)
    assert 1.7 * agent["seconds"] < ring["seconds"] < workers["seconds"]
