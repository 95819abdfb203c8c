"""Every algorithm between real processes, over real links."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectives.plan import DataType
from experiment.description import Algorithm, Experiment, WorldKind
from experiment.runner import run_experiment

AMONG_HOSTS = [algorithm for algorithm in Algorithm if algorithm.among_hosts]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs, builds and records of a test lie in its own folder."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("algorithm", AMONG_HOSTS)
@pytest.mark.parametrize(
    ("topology", "workers", "dtype"),
    [("star:3", 3, DataType.FLOAT32), ("leaf-spine:2x2", 4, DataType.INT32)],
)
def test_every_algorithm_sums_exactly(
    algorithm: Algorithm, topology: str, workers: int, dtype: DataType
) -> None:
    report = run_experiment(
        Experiment(
            topology=topology,
            workers=workers,
            elements=20_001,
            rounds=2,
            algorithm=algorithm,
            dtype=dtype,
            world=WorldKind.MININET,
            link_rate=25e6,
            limit=60.0,
        )
    )
    assert not report.problems
    assert report.measured is not None
    assert report.measured.verdict.checked == workers * 2 * 20_001
