"""`hopsum.run(..., world="mininet")`: the same call as in virtual time, with real processes."""

from __future__ import annotations

import pytest

import hopsum

pytestmark = pytest.mark.network


def test_a_run_of_the_library_in_mininet() -> None:
    network = hopsum.star(2, link_rate="10Mbit", latency="1ms")
    done = hopsum.run(network, 2, elements=20_000, rounds=2, world="mininet")
    assert done.exact, done.problems
    assert done.to_dict()["world"] == "mininet"
    assert [(row["worker"], row["round"]) for row in done.rounds] == [
        (worker, number) for worker in range(2) for number in range(2)
    ]
    assert done.seconds > 0
    # Latency is not emulated, nor predicted.
    without = hopsum.plan(hopsum.star(2, link_rate="10Mbit"), 2, elements=20_000, rounds=2)
    assert done.predicted_seconds == without.seconds
