"""`hopsum.sweep`: runs of all combinations."""

from __future__ import annotations

from typing import Any

import pytest

import hopsum

NETWORK = hopsum.star(3, link_rate="10Mbit")


def test_rows_are_the_runs_of_all_combinations_in_their_order() -> None:
    rows = hopsum.sweep(NETWORK, {"workers": [2, 3], "seed": [4, 1]}, elements=1000, loss=0.02)
    assert [(row["workers"], row["seed"]) for row in rows] == [(2, 4), (2, 1), (3, 4), (3, 1)]
    for row in rows:
        run = hopsum.run(NETWORK, row["workers"], elements=1000, loss=0.02, seed=row["seed"])
        assert row["problems"] == []
        assert row["seconds"] == run.seconds
        assert row["predicted_seconds"] == run.predicted_seconds
        assert row["goodput"] == run.goodput
        assert row["retransmissions"] == run.retransmissions


@pytest.mark.slow
def test_processes_have_the_same_results() -> None:
    over = {"loss": [0.0, 0.05], "seed": [1, 2]}
    rows = hopsum.sweep(NETWORK, over, workers=2, elements=1000)
    assert hopsum.sweep(NETWORK, over, workers=2, elements=1000, processes=2) == rows


@pytest.mark.parametrize(
    ("over", "options", "message"),
    [
        ({"seed": []}, {}, "over: seed: expected at least one value"),
        ({"seed": [1]}, {"processes": 2, "ray": "auto"}, "expected one of them"),
        ({"seed": [1]}, {"world": "mininet"}, "expected simulation"),
        ({"world": ["mininet"]}, {}, "expected simulation"),
        ({"seed": [1]}, {"ray": ""}, "ray"),
    ],
)
def test_what_cannot_be_is_refused(
    over: dict[str, list[Any]], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(hopsum.HopsumError, match=message):
        hopsum.sweep(NETWORK, over, **options)
