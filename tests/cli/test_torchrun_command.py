"""What `hopsum torchrun` makes of a training."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.experiment.description import ExperimentError
from cli.experiment.training import check_script, trained
from controller.jobs.job_state import JobState
from controller.jobs.restarting_counter import RestartingCounter
from protocol import hopsum_pb2 as pb

WORKERS = ("h1", "h2")
LINKS = {("h1", "s1"): 100, ("h2", "s1"): 100, ("ps", "s1"): 100, ("s1", "h1"): 100}


def job(state: JobState, reason: str = "") -> Any:
    intervals = pb.Intervals(starts=[1.0, 2.0], finishes=[1.5, 2.25])
    return SimpleNamespace(
        spec=SimpleNamespace(name="torch-1"),
        state=state,
        reason=reason,
        round=2,
        request=SimpleNamespace(workers=WORKERS),
        reports={host: pb.Report(intervals=intervals) for host in WORKERS},
        sent={host: RestartingCounter(40) for host in (*WORKERS, "ps")},
    )


def test_what_is_measured() -> None:
    after = {link: count + 150 for link, count in LINKS.items()}
    found = trained(9.0, WORKERS, [job(JobState.FINISHED)], LINKS, after, [0, 0])
    assert (found.seconds, found.summing, found.sums) == (9.0, 0.75, 2)
    assert (found.sent, found.in_switches) == (300, 80)
    assert found.errors == ()


def test_ranks_and_jobs_that_failed_are_named() -> None:
    failed = job(JobState.FAILED, "agent on h2: gone")
    failed.reports = {}
    found = trained(9.0, WORKERS, [failed], LINKS, LINKS, [0, -9])
    assert found.summing == 0
    assert found.errors == (
        "rank 1 on h2 ended with -9: logs/rank-1.log",
        "job torch-1: failed: agent on h2: gone",
    )


def test_a_script_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.experiment.training.find_spec", lambda name: object())
    script = tmp_path / "train.py"
    script.touch()
    check_script([str(script)])
    with pytest.raises(ExperimentError, match=r"nothing\.py: No such file .*; expected a Python"):
        check_script(["nothing.py"])
    monkeypatch.setattr("cli.experiment.training.find_spec", lambda name: None)
    with pytest.raises(ExperimentError, match="PyTorch is not installed; pip install"):
        check_script([str(script)])
