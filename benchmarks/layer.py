"""All-reduce of one layer's gradient in Mininet, against the ring in turns, and the predictions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from statistics import median
from typing import Any

from hopsum.cli.demo import demo_experiments
from hopsum.collectives.choices import Algorithm
from hopsum.experiment.description import Experiment, WorldKind
from hopsum.experiment.result import Report
from hopsum.experiment.runner import run_experiment

ELEMENTS = 42_250
"""The model of `make run`."""
LAYER = Experiment(
    topology="fat-tree:4",
    workers=8,
    elements=ELEMENTS,
    rounds=100,
    world=WorldKind.MININET,
    link_rate=25e6,
)


def measure(repeats: int = 3) -> list[dict[str, Any]]:
    """Return a row for each workload and algorithm: medians of `repeats` runs in turns.

    The parameter server, several times as slow, runs once.
    """
    turns = [Algorithm.IN_NETWORK, Algorithm.RING]
    random = [replace(LAYER, algorithm=algorithm) for algorithm in turns]
    training = demo_experiments(WorldKind.MININET)
    slow = [each for each in training if each.algorithm not in turns]
    fast = [each for each in training if each.algorithm in turns]
    found = []
    for name, experiments, once in (("random", random, []), ("digits", fast, slow)):
        reports = [run_experiment(each) for _ in range(repeats) for each in experiments]
        reports += [run_experiment(each) for each in once]
        found += rows(name, reports)
    return found


def rows(workload: str, reports: Iterable[Report]) -> list[dict[str, Any]]:
    """Return a row per algorithm: milliseconds of a call, and ratios to prediction and ring."""
    runs: dict[Algorithm, list[Report]] = {}
    for report in reports:
        runs.setdefault(report.experiment.algorithm, []).append(report)
    calls = {each: [_milliseconds(report) for report in found] for each, found in runs.items()}
    ring = median(calls[Algorithm.RING])
    return [
        {
            "workload": workload,
            "algorithm": algorithm.value,
            "runs": len(times),
            "median_ms": round(median(times), 1),
            "best_ms": round(min(times), 1),
            "worst_ms": round(max(times), 1),
            "predicted_ms": round(_predicted(runs[algorithm][0]), 1),
            "of_predicted": round(median(times) / _predicted(runs[algorithm][0]), 2),
            "of_ring": round(median(times) / ring, 2),
            "wrong": sum(_wrong(report) for report in runs[algorithm]),
        }
        for algorithm, times in calls.items()
    ]


def _milliseconds(report: Report) -> float:
    assert report.measured is not None
    return 1000 * report.measured.seconds / len(report.measured.calls)


def _predicted(report: Report) -> float:
    assert report.measured is not None
    return 1000 * report.predicted.seconds / len(report.measured.calls)


def _wrong(report: Report) -> int:
    assert report.measured is not None
    return report.measured.verdict.wrong
