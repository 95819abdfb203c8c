"""Several aggregation trees at once, on the real P4 program and the real agents."""

from __future__ import annotations

import pytest

from hopsum.collectives.plan import DataType
from hopsum.experiment.description import Experiment
from hopsum.experiment.prepare import prepare
from hopsum.experiment.result import Report
from hopsum.experiment.runner import run_experiment

# Frames as small as these fill the pipe in a tensor that is quick to simulate.
BASE = {
    "topology": "leaf-spine:4x2",
    "workers": 8,
    "elements": 24_000,
    "rounds": 1,
    "dtype": DataType.INT32,
    "lanes": 64,
    "window": 32,
    "link_rate": 8e6,
}


def run(**choices: object) -> Report:
    return run_experiment(Experiment(**{**BASE, **choices}))  # type: ignore[arg-type]


def seconds(report: Report) -> float:
    assert report.measured is not None
    assert report.problems == []
    return report.measured.seconds


@pytest.mark.slow
@pytest.mark.parametrize(("uplink", "trees", "times"), [(2e6, 4, 4.0), (4e6, 2, 2.0)])
def test_trees_use_all_uplinks(uplink: float, trees: int, times: float) -> None:
    one = run(uplink_rate=uplink)
    many = run(uplink_rate=uplink, planner="multi-tree", planner_options={"max-trees": "4"})
    plan = prepare(many.experiment).plan
    assert plan is not None
    assert len(plan.trees) == trees
    assert 0.9 * times <= seconds(one) / seconds(many) <= 1.1 * times


@pytest.mark.slow
@pytest.mark.parametrize("dtype", list(DataType))
def test_sums_are_exact_under_loss(dtype: DataType) -> None:
    report = run(
        uplink_rate=2e6, planner="multi-tree", elements=8_000, loss=0.01, seed=3, dtype=dtype
    )
    assert report.measured is not None
    assert report.problems == []
    assert report.measured.retransmissions > 0
    assert report.measured.verdict.checked == 8 * 8_000


def test_windows_of_all_trees_fit_a_queue() -> None:
    experiment = Experiment(
        **{**BASE, "uplink_rate": 2e6, "planner": "multi-tree", "window": None}  # type: ignore[arg-type]
    )
    plan = prepare(experiment).plan
    assert plan is not None
    assert len(plan.trees) * plan.window <= 512
