"""The table that compares a small model's gradient with the ring and the predictions."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.layer import LAYER, rows
from hopsum.collectives.choices import Algorithm
from hopsum.experiment.result import Report, RunMeasurement, RunPrediction
from hopsum.host_agent.workload import Verdict


def report(algorithm: Algorithm, seconds: float, predicted: float, wrong: int = 0) -> Report:
    """A report on ten calls."""
    measured = RunMeasurement(
        seconds=seconds,
        links={},
        switches={},
        retransmissions=0,
        verdict=Verdict(wrong=wrong),
        intervals=[[(0.0, seconds / 10)] * 10],
    )
    experiment = replace(LAYER, algorithm=algorithm)
    return Report(experiment, 10 * LAYER.elements, RunPrediction({}, predicted), measured)


def test_medians_of_runs_are_compared_with_the_ring_and_the_prediction() -> None:
    trees = [report(Algorithm.IN_NETWORK, each, 0.5) for each in (0.9, 0.6, 0.5)]
    ring = [report(Algorithm.RING, each, 0.8, wrong=2) for each in (1.0, 1.2, 5.0)]
    in_network, by_ring = rows("random", [trees[0], ring[0], *trees[1:], *ring[1:]])
    assert in_network == {
        "workload": "random",
        "algorithm": "in-network",
        "runs": 3,
        "median_ms": 60.0,
        "best_ms": 50.0,
        "worst_ms": 90.0,
        "predicted_ms": 50.0,
        "of_predicted": 1.2,
        "of_ring": 0.5,
        "wrong": 0,
    }
    assert (by_ring["algorithm"], by_ring["median_ms"], by_ring["wrong"]) == ("ring", 120.0, 6)
    assert (by_ring["of_predicted"], by_ring["of_ring"]) == (1.5, 1.0)
