"""Hosts that forward: schedules on networks without switches, in virtual time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hopsum.collectives.algorithms.level_wise import Siblings
from hopsum.collectives.algorithms.level_wise_form import FormOptions, Shape
from hopsum.collectives.choices import Algorithm
from hopsum.collectives.plan import DataType, PlanError
from hopsum.experiment.description import Experiment, ExperimentError
from hopsum.experiment.prepare import prepare, task_of
from hopsum.experiment.result import Report
from hopsum.experiment.runner import run_experiment

ELEMENTS = 40_000


def run(topology: str, workers: int, algorithm: Algorithm, **choices: object) -> Report:
    return run_experiment(
        Experiment(
            topology=topology,
            workers=workers,
            elements=ELEMENTS,
            rounds=1,
            algorithm=algorithm,
            dtype=DataType.INT32,
            link_rate=25e6,
            **choices,  # type: ignore[arg-type]
        )
    )


def seconds(report: Report) -> float:
    assert report.problems == []
    assert report.measured is not None
    assert report.measured.verdict.checked == ELEMENTS * report.experiment.workers
    return report.measured.seconds


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "workers"), [("torus:2x3", 6), ("complete:5", 5), ("hypercube:3", 8)]
)
def test_trees_of_hosts_are_exact_and_faster_than_a_ring(topology: str, workers: int) -> None:
    trees = run(topology, workers, Algorithm.MULTI_TREE)
    # The more trees, the shorter their streams, and the more TCP's first windows count.
    assert seconds(trees) == pytest.approx(trees.predicted.seconds, rel=0.3)
    assert seconds(trees) < 0.75 * seconds(run(topology, workers, Algorithm.RING))


@pytest.mark.slow
def test_tree_neighbours_talk_over_their_own_link() -> None:
    report = run("torus:3x3", 9, Algorithm.MULTI_TREE, planner_options={"max-trees": "2"})
    trees = task_of(prepare(report.experiment).job).trees
    used = {frozenset(edge) for shared in trees for edge in shared.tree.parents.items()}
    assert seconds(report) > 0
    assert report.measured is not None
    carried = {frozenset(link) for link, count in report.measured.links.items() if count}
    assert carried == used


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [Algorithm.RING, Algorithm.DOUBLE_TREE])
def test_other_traffic_crosses_forwarding_hosts(algorithm: Algorithm) -> None:
    report = run("torus:3x3", 7, algorithm)
    assert seconds(report) > 0
    assert report.measured is not None
    # The way of acknowledgements need not be that of the data.
    least = 0.05 * max(report.predicted.links.values())
    for link, predicted in report.predicted.links.items():
        assert report.measured.links[link] == pytest.approx(predicted, rel=0.05, abs=least)


def test_the_planner_and_the_algorithm_are_one() -> None:
    base = Experiment(topology="torus:2x2", workers=4, planner="multi-tree")
    assert prepare(base).experiment.algorithm is Algorithm.MULTI_TREE
    assert len(task_of(prepare(base).job).trees) > 1
    switched = Experiment(topology="star:3", workers=3, algorithm=Algorithm.MULTI_TREE)
    prepared = prepare(switched)
    assert prepared.experiment.algorithm is Algorithm.IN_NETWORK
    assert prepared.experiment.planner == "multi-tree"
    assert prepared.plan is not None
    assert task_of(prepared.job).trees == ()


@pytest.mark.slow
def test_a_run_goes_over_the_trees_of_mtree() -> None:
    trees = run("complete:5", 5, Algorithm.IN_NETWORK, planner="mtree")
    assert trees.experiment.algorithm is Algorithm.MULTI_TREE
    assert (trees.experiment.planner, len(task_of(prepare(trees.experiment).job).trees)) == (
        "mtree",
        5,
    )
    assert seconds(trees) == pytest.approx(trees.predicted.seconds, rel=0.3)
    whole = run(
        "complete:5",
        5,
        Algorithm.MULTI_TREE,
        planner="mtree",
        planner_options={"tree-bandwidth": "25M"},
    )
    assert len(task_of(prepare(whole.experiment).job).trees) == 1
    assert seconds(trees) < 0.6 * seconds(whole)


def test_options_of_mtree_need_its_planner() -> None:
    base = Experiment(topology="torus:2x2", workers=4, planner="multi-tree")
    for options in ({"tree-bandwidth": "1M"}, {"keep": "0.5"}):
        experiment = replace(base, planner_options=options)
        with pytest.raises(PlanError, match="no such option, but mtree has"):
            prepare(experiment)
    with pytest.raises(PlanError, match=r"mtree on star:3: .* has switches"):
        prepare(Experiment(topology="star:3", workers=3, planner="mtree"))


@pytest.mark.slow
@pytest.mark.parametrize("planner", ["mtree", "multi-tree"])
def test_some_hosts_sum_over_trees_of_their_own(planner: str) -> None:
    report = run("torus:3x3", 5, Algorithm.MULTI_TREE, planner=planner)
    assert seconds(report) == pytest.approx(report.predicted.seconds, rel=0.3)
    trees = task_of(prepare(report.experiment).job).trees
    assert all(set(shared.tree.nodes) == {f"h{i}" for i in range(1, 6)} for shared in trees)


@pytest.mark.slow
def test_inner_hosts_of_a_tree_sum_level_by_level(tmp_path: Path) -> None:
    # 003, figure 2: parents that are processors as well.
    links = {"a": "r", "b": "r", "a1": "a", "a2": "a", "b1": "b", "b2": "b", "b3": "b"}
    values = {
        "nodes": [{"id": name, "kind": "host"} for name in ("r", *links)],
        "edges": [{"source": child, "target": above} for child, above in links.items()],
    }
    file = tmp_path / "figure-2.json"
    file.write_text(json.dumps(values))
    for form in (FormOptions(Shape.LEVELS, siblings) for siblings in (None, *Siblings)):
        report = run(str(file), 8, Algorithm.LEVEL_WISE, form=form)
        assert seconds(report) == pytest.approx(report.predicted.seconds, rel=0.3)
        assert report.to_dict()["level_wise"] == {**form.to_dict(), "used": list(report.forms)}
        assert report.forms[0].startswith("2 levels")
    with pytest.raises(ExperimentError, match="options of level-wise"):
        run(str(file), 8, Algorithm.RING, form=FormOptions(Shape.FLAT))
