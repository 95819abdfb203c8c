"""With a bug planted in the product, or in its P4 program, schedules do not pass."""

from __future__ import annotations

import faulthandler
import shutil
import weakref
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hopsum.cli.soak_command import make_data_plane
from hopsum.controller.dataplane.pipeline import Pipeline
from hopsum.controller.jobs.epochs import Epochs
from hopsum.controller.jobs.job import Job
from hopsum.controller.jobs.job_table import JobTable
from hopsum.controller.jobs.procedures import Procedure
from hopsum.experiment import pipelines
from hopsum.host_agent.stream import Stream
from hopsum.host_agent.workload import RandomTensors
from hopsum.simulation.cluster import VirtualCluster
from hopsum.simulation.soak import run
from hopsum.simulation.soak.campaign import failure_of, run_one
from hopsum.simulation.soak.oracles import Oracle
from hopsum.simulation.soak.run import DataPlane
from hopsum.simulation.soak.schedule import (
    ClockJump,
    FaultSchedule,
    JobEntry,
    NetworkEntry,
    Noise,
    from_json,
)

FOUND = sorted(Path(__file__).with_name("found").glob("*.json"))
HANG_SECONDS = 500.0
"""Less than pytest's limit."""
NETWORK = NetworkEntry("star:4", 1e6, latency=1e-4)
JOB = JobEntry("a", 0.0, ("h1", "h2", "h3"), ("ps",), elements=200, rounds=6)
CLOCK = ClockJump(0.1, -60.0)
NOISE = Noise("", 0.0, 20.0, loss=0.05, duplicate=0.1, reorder=0.1, hold=0.05)


@pytest.fixture
def ends_if_stuck() -> Iterator[None]:
    """End this process if a schedule hangs in compiled code, which pytest's limit cannot interrupt:
    one did."""
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.mark.slow
@pytest.mark.usefixtures("ends_if_stuck")
@pytest.mark.parametrize("file", FOUND, ids=lambda file: file.stem)
def test_what_failed_once_passes(file: Path) -> None:
    """Minimised schedules that have shown faults; see the commits that added them."""
    assert run_one(from_json(file.read_text()), make_data_plane()).violations == ()


@pytest.mark.slow
def test_a_quiet_schedule_carries_the_bytes_that_are_predicted() -> None:
    result = run_one(FaultSchedule(1, NETWORK, (JOB,)), make_data_plane(), twice=True)
    assert result.violations == ()
    assert result.jobs == {"a": ("finished", "")}


def test_an_earlier_run_is_collected_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loop and tasks would stay, and each later run would look through them."""
    clusters: list[weakref.ref[VirtualCluster]] = []

    class Recorded(VirtualCluster):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            clusters.append(weakref.ref(self))

    monkeypatch.setattr(run, "VirtualCluster", Recorded)
    for _ in range(3):
        assert run_one(FaultSchedule(1, NETWORK, (JOB,)), make_data_plane()).violations == ()
    assert [cluster() is None for cluster in clusters[:-1]] == [True, True]


def mutated(tmp_path: Path, file: str, old: str, new: str) -> DataPlane:
    """A loader of hopsum.p4 with some words of one of its files replaced."""
    source = tmp_path / "p4src"
    shutil.copytree(pipelines.PROGRAM.parent, source)
    text = (source / file).read_text()
    assert text.count(old) == 1
    (source / file).write_text(text.replace(old, new))

    @cache
    def pipeline(lanes: int, slots: int, max_hops: int) -> Pipeline:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(pipelines, "PROGRAM", source / "hopsum.p4")
            return pipelines.embedded_pipeline.__wrapped__(lanes, slots, max_hops)

    return DataPlane(pipeline, make_data_plane().load)


@pytest.mark.long
def test_a_duplicate_that_is_added_is_found(tmp_path: Path) -> None:
    """A mutation of hopsum.p4. What is left of the schedule is what makes a worker send again."""
    data_plane = mutated(
        tmp_path,
        "include/slots.p4",
        "(age_t.SAME,    0, 1, 0, _) : discard(OUTCOME_DUPLICATE);",
        "(age_t.SAME,    0, 1, 0, _) : add();",
    )
    schedule = FaultSchedule(1, NETWORK, (JOB, replace(JOB, name="b")), (CLOCK, NOISE, CLOCK))
    assert not run_one(schedule, make_data_plane()).failed
    result = run_one(schedule, data_plane)
    assert Oracle.SUMS in {violation.oracle for violation in result.violations}
    smallest = failure_of(result, data_plane, runs=16).minimised
    assert len(smallest.jobs) == 1
    [noise] = smallest.faults
    assert isinstance(noise, Noise)


@pytest.mark.long
def test_an_entry_that_stays_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is over leaves its rules; nothing else is needed to see it."""

    def forgetful(self: Epochs, number: int) -> Procedure[None]:
        self._forget(number)
        yield from ()

    monkeypatch.setattr(Epochs, "remove", forgetful)
    small = replace(JOB, workers=("h1", "h2"), elements=2, rounds=2)
    jobs = (small, replace(small, name="b"))
    result = run_one(FaultSchedule(1, NETWORK, jobs, (NOISE,)), make_data_plane())
    assert {violation.oracle for violation in result.violations} == {Oracle.LEAK}
    assert failure_of(result, make_data_plane(), seconds=0.0).minimised == result.schedule
    failure = failure_of(result, make_data_plane())
    assert failure.minimised.faults == ()
    [job] = failure.minimised.jobs
    assert (len(job.workers), job.rounds, job.elements) == (1, 1, 1)
    assert "table admission has an unused entry" in failure.minimised_violations[0].text


@pytest.mark.slow
def test_a_finished_job_without_sums_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "hopsum.simulation.soak.ledger._RecordedTensors.take_result", RandomTensors.take_result
    )
    small = replace(JOB, workers=("h1",), elements=2, rounds=1)
    result = run_one(FaultSchedule(1, NETWORK, (small,)), make_data_plane())
    assert {violation.oracle for violation in result.violations} == {Oracle.SUMS}


@pytest.mark.slow
@pytest.mark.parametrize("integrity", [False, True])
def test_a_job_whose_sum_overflows_fails(integrity: bool) -> None:
    job = replace(JOB, elements=100, rounds=3, overflow=2, integrity=integrity)
    result = run_one(FaultSchedule(1, NETWORK, (job,), (NOISE,)), make_data_plane())
    assert result.violations == ()
    outcome, reason = result.jobs[job.name]
    assert outcome == "failed"
    assert "overflow" in reason


@pytest.mark.slow
def test_an_overflow_that_is_taken_for_a_sum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a worker overlooked the flag."""
    monkeypatch.setattr("hopsum.simulation.soak.ledger.GREAT", 0)
    job = replace(JOB, elements=100, rounds=3, overflow=2)
    result = run_one(FaultSchedule(1, NETWORK, (job,)), make_data_plane())
    assert {violation.oracle for violation in result.violations} == {Oracle.SUMS}


@pytest.mark.slow
def test_an_unrecorded_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller without its journal would run the job again."""
    kept = JobTable.keep

    def forgetful(self: JobTable, job: Job) -> None:
        if not job.state.over:
            kept(self, job)

    monkeypatch.setattr(JobTable, "keep", forgetful)
    small = replace(JOB, workers=("h1",), elements=2, rounds=2)
    result = run_one(FaultSchedule(1, NETWORK, (small,)), make_data_plane())
    assert {violation.oracle for violation in result.violations} == {Oracle.JOURNAL}


@pytest.mark.slow
def test_a_worker_that_never_sends_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for ever for the last of its results, and says nothing."""
    monkeypatch.setattr(Stream, "tick", lambda self, now: None)
    monkeypatch.setattr(Stream, "deadline", None)
    noise = replace(NOISE, duplicate=0.0, reorder=0.0, loss=0.2)
    result = run_one(FaultSchedule(1, NETWORK, (JOB,), (noise,)), make_data_plane())
    assert {violation.oracle for violation in result.violations} == {Oracle.END}
