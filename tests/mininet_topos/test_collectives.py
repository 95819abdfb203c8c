"""Runs of collectives between real processes, over real links."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.collectives import Case, gloo_missing, measure
from hopsum.collectives.choices import Algorithm
from hopsum.collectives.plan import DataType
from hopsum.experiment.description import Experiment, WorldKind
from hopsum.experiment.prepare import prepare, task_of
from hopsum.experiment.result import Report
from hopsum.experiment.runner import run_experiment
from tests.support.machine import PATIENCE, until
from tests.support.processes import process

pytestmark = pytest.mark.network

HOPSUM = Path(sys.executable).with_name("hopsum")
ELEMENTS = 20_001
ROUNDS = 2


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep logs, builds and records of a test in its own folder."""
    monkeypatch.chdir(tmp_path)


def run(topology: str, workers: int, algorithm: Algorithm, dtype: DataType) -> Report:
    """A short run, of which every element is right."""
    report = run_experiment(
        Experiment(
            topology=topology,
            workers=workers,
            elements=ELEMENTS,
            rounds=ROUNDS,
            algorithm=algorithm,
            dtype=dtype,
            world=WorldKind.MININET,
            link_rate=25e6,
            limit=PATIENCE,
        )
    )
    assert not report.problems
    assert report.measured is not None
    assert report.measured.verdict.checked == workers * ROUNDS * ELEMENTS
    assert len(report.measured.calls) == ROUNDS
    return report


def test_hosts_sum_on_several_trees_over_their_own_links() -> None:
    report = run("torus:2x3", 6, Algorithm.MULTI_TREE, DataType.FLOAT32)
    trees = task_of(prepare(report.experiment).job).trees
    assert len(trees) > 1
    used = {frozenset(edge) for shared in trees for edge in shared.tree.parents.items()}
    assert report.measured is not None
    carried = {frozenset(link) for link, count in report.measured.links.items() if count}
    assert carried == used


def test_hosts_forward_what_is_for_others() -> None:
    report = run("torus:3x3", 7, Algorithm.RING, DataType.INT32)
    assert report.measured is not None
    # h3 and h4 are two links apart.
    assert all(report.measured.links[link] > 0 for link in (("h1", "h4"), ("h3", "h1")))


def _traffic(run: subprocess.Popen[str]) -> int:
    """The bytes received so far from the first host of a run."""
    assert run.poll() is None, run.communicate()[0]
    counter = Path("/sys/class/net/s1-eth1/statistics/rx_bytes")
    return int(counter.read_text()) if counter.exists() else 0


def test_a_rank_that_vanishes_is_named(tmp_path: Path) -> None:
    command = [
        HOPSUM, "run", "--world", "mininet", "--topology", "star:3", "--workers", "3",
        "--algorithm", "ring", "--elements", "100000", "--rounds", "50", "--link-rate", "500kbit",
    ]  # fmt: skip
    run = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path
    )
    until(lambda: _traffic(run) >= 50_000, "traffic")
    os.kill(process("serve", "h2"), signal.SIGKILL)
    output = run.communicate(timeout=PATIENCE)[0]
    assert run.returncode == 1
    assert "h2" in output
    assert "Traceback" not in output


def test_ways_to_sum_follow_each_other_on_one_network() -> None:
    case = Case("star:2", 2, 25e6, sizes=(200_000,))
    rows = measure(case, rounds=1)
    expected = {algorithm.value for algorithm in case.algorithms}
    if gloo_missing() is None:
        expected.add("gloo")
    assert {row["algorithm"] for row in rows} == expected
    assert [row["wrong"] for row in rows] == [0] * len(rows)
    # No faster than the link.
    assert all(row["goodput"] < 25e6 for row in rows)
