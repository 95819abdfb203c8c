"""The table that compares the flow simulator with Mininet."""

from __future__ import annotations

import pytest

from benchmarks.flow_level import CASES, Case, row, simulated_seconds
from hopsum.collectives.choices import Algorithm
from hopsum.experiment.comparison import Comparison, compare
from hopsum.experiment.description import Experiment
from hopsum.experiment.prepare import prepare
from hopsum.experiment.result import RunMeasurement
from hopsum.host_agent.workload import Verdict

CASE = Case("star:5", 4)


@pytest.mark.parametrize(
    ("calls", "within"), [((1.0, 1.15, 9.0), True), ((0.8, 1.16, 1.16), False)]
)
def test_the_median_counts(calls: tuple[float, ...], within: bool) -> None:
    measured = RunMeasurement(
        sum(calls), {}, {}, 2, Verdict(100, 1), intervals=[[(0.0, c) for c in calls]]
    )
    found = row(CASE, Algorithm.RING, 1.0, measured)
    assert found["measured"] == found["ratio"] == calls[1]
    assert (found["within_goal"], found["best"]) == (within, calls[0])
    assert (found["retransmissions"], found["wrong"], found["algorithm"]) == (2, 1, "ring")


@pytest.mark.parametrize("algorithm", [Algorithm.RING, Algorithm.IN_NETWORK, Algorithm.SERVER])
def test_seconds_are_those_of_the_flow_simulator(algorithm: Algorithm) -> None:
    experiment = Experiment("star:5", 4, 25_000, 3, algorithm, link_rate=1e7)
    (compared,) = compare(Comparison("star:5", (100_000,), (4,), (algorithm.value,), link_rate=1e7))
    assert simulated_seconds(prepare(experiment)) == pytest.approx(compared.seconds)


def test_the_cases_have_every_algorithm_on_three_networks() -> None:
    for algorithm in Algorithm:
        if algorithm is not Algorithm.EMBEDDING:
            assert sum(algorithm in case.algorithms for case in CASES) >= 3
