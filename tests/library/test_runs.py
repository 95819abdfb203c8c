"""`hopsum.run`: results as tables, in notebooks' event loops too."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import hopsum

NETWORK = hopsum.star(3, link_rate="10Mbit")


@pytest.fixture(scope="module")
def result() -> hopsum.Result:
    return hopsum.run(NETWORK, workers=2, elements=2000, rounds=3, trace_fragment=1)


def test_a_run_is_exact_and_as_predicted(result: hopsum.Result) -> None:
    assert result.exact, result.problems
    assert result.seconds == pytest.approx(result.predicted_seconds, rel=0.1)
    assert all(row["predicted_bytes"] == row["measured_bytes"] for row in result.links)
    assert {(row["from"], row["to"]) for row in result.links} == set(NETWORK.directed_links())
    assert result.retransmissions == 0
    assert result.goodput == pytest.approx(32 * 6000 / result.seconds)


def test_rounds_have_a_row_for_each_worker(result: hopsum.Result) -> None:
    rows = result.rounds
    assert [(row["worker"], row["round"]) for row in rows] == [
        (worker, number) for worker in range(2) for number in range(3)
    ]
    assert min(row["start"] for row in rows) == 0
    assert max(row["end"] for row in rows) == pytest.approx(result.seconds, rel=0.05)
    assert all(row["seconds"] == row["end"] - row["start"] > 0 for row in rows)


def test_switches_events_and_the_journey(result: hopsum.Result) -> None:
    [switch] = result.switches
    assert switch["switch"] == "s1"
    assert switch["completed"] > 0
    assert result.events[0]["seconds"] == 0
    assert any("h1 -> s1" in line for line in result.journey)
    assert "<svg" in result.journey_svg()


def test_it_shows_itself(result: hopsum.Result) -> None:
    assert "2 workers on star:3" in str(result)
    assert "exact" in str(result)
    assert "<table>" in result._repr_html_()
    assert "measured_bytes" in result.links._repr_html_()


def test_the_same_run_gives_the_same_result(result: hopsum.Result) -> None:
    again = hopsum.run(NETWORK, workers=2, elements=2000, rounds=3)
    assert again.to_dict() == result.to_dict()


def test_a_run_where_an_event_loop_runs() -> None:
    async def cell() -> Any:
        return hopsum.run(NETWORK, workers=2, elements=500)

    assert asyncio.run(cell()).exact


def test_loss_and_outages() -> None:
    lossy = hopsum.run(NETWORK, workers=2, elements=20_000, loss=0.02, seed=3)
    assert lossy.exact
    assert lossy.seconds > lossy.predicted_seconds
    cut = hopsum.run(
        NETWORK, workers=2, elements=20_000, outages=["link-cut:h1-s1@0.01-0.2"], progress=False
    )
    assert cut.exact
    assert cut.seconds > 0.2


def test_impossible_runs_say_why() -> None:
    with pytest.raises(hopsum.InputError, match="loss 2: expected a probability"):
        hopsum.run(NETWORK, loss=2)
    with pytest.raises(hopsum.InputError, match="world 'space': expected one of simulation, mini"):
        hopsum.run(NETWORK, world="space")
    with pytest.raises(hopsum.OperationError, match="not done after"):
        hopsum.run(NETWORK, elements=100_000, limit=0.001)


def test_plots_return_axes(result: hopsum.Result) -> None:
    pytest.importorskip("matplotlib")
    axes = result.plot()
    assert axes.get_xlabel() == "round"
    assert list(axes.lines[0].get_ydata()) == pytest.approx(
        [row["seconds"] for row in result.rounds[:3]], rel=0.1
    )


def test_a_run_has_the_options_of_its_planner() -> None:
    network = hopsum.leaf_spine(2, 2, link_rate="10Mbit", uplink_rate="4Mbit")
    options = {"max-trees": 1}
    done = hopsum.run(network, 4, planner="multi-tree", options=options, elements=2000)
    assert done.exact, done.problems
    assert done.to_dict()["planner_options"]["max-trees"] == "1"
    with pytest.raises(hopsum.InputError, match="no such option"):
        hopsum.run(network, 4, options=options, elements=2000)
    with pytest.raises(hopsum.InputError, match="world 'moon': expected one of"):
        hopsum.run(network, world="moon")
