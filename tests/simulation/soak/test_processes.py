"""Jobs of processes in the soak: what ranks get, and what is found when they get something else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hopsum.cli.soak_command import make_data_plane
from hopsum.host_agent.io.attendance import Attendance
from hopsum.host_agent.node.process_source import ProcessSource
from hopsum.host_agent.process_calls import ALL, SUM
from hopsum.host_agent.sure_calls import SureCalls
from hopsum.simulation.soak.campaign import run_one
from hopsum.simulation.soak.minimise import minimise
from hopsum.simulation.soak.oracles import Oracle
from hopsum.simulation.soak.rank_calls import (
    Call,
    CallOutcome,
    ExpectedResult,
    Refusal,
    difference,
    expected,
    great_rank,
    script,
)
from hopsum.simulation.soak.run import SoakResult
from hopsum.simulation.soak.schedule import (
    FaultSchedule,
    JobEntry,
    NetworkEntry,
    Noise,
    RankFault,
    RankFaultKind,
)

NETWORK = NetworkEntry("star:4", 1e7, latency=1e-4)
WORKERS = ("h1", "h2", "h3")
PLAIN = JobEntry("a", 0.0, WORKERS, ("ps",), kind="process", elements=100, rounds=60)


def steady(dtype: str, *, great: bool = False) -> JobEntry:
    """A job that sums tensors of a type and length for all, again and again.

    `great`: whether some of their values are.
    """
    jobs = (replace(PLAIN, seed=seed) for seed in range(10_000))
    wanted = Call(SUM, dtype, "sum", PLAIN.elements, ALL)
    alike = (job for job in jobs if {*script(job)} == {wanted})
    return next(job for job in alike if (great_rank(job, wanted) is not None) == great)


JOB = steady("float32")
NOISE = Noise("", 0.0, 20.0, loss=0.03, duplicate=0.1, reorder=0.1, hold=0.005)
SEVERAL = ("h1", "h1", "h2", "h3", "h3")


def run(job: JobEntry, *faults: Noise, twice: bool = False) -> SoakResult:
    return run_one(FaultSchedule(1, NETWORK, (job,), faults), make_data_plane(), twice=twice)


def mishap(rank: int, call: int, what: RankFaultKind) -> RankFault:
    return RankFault(rank, call, what)


@pytest.mark.slow
@pytest.mark.parametrize("faults", [(), (NOISE,)], ids=["quiet", "under loss"])
@pytest.mark.parametrize(
    ("ranks", "servers", "outstanding"),
    [
        ((), ("ps",), 1),
        ((), ("h1",), 1),
        (SEVERAL, ("ps",), 1),
        (SEVERAL, ("ps",), 4),
        (SEVERAL, WORKERS, 1),
        (SEVERAL, (), 4),
    ],
    ids=["one a host", "server at a worker", "several", "at once", "rooted", "two sets"],
)
def test_all_ranks_get_all_results(
    ranks: tuple[str, ...], servers: tuple[str, ...], outstanding: int, faults: Sequence[Noise]
) -> None:
    job = replace(JOB, rounds=40, ranks=ranks, servers=servers, outstanding=outstanding)
    result = run(job, *faults, twice=bool(faults))
    assert result.violations == ()
    assert result.jobs == {"a": ("finished", "")}
    assert result.calls["answered"] == len(job.all_ranks) * job.rounds
    # At hosts with one rank, of jobs with one server.
    flows = outstanding == 1 and len(servers) == 1
    assert (result.calls["taken by flows"] > 0) == flows


@pytest.mark.slow
def test_calls_that_cannot_have_a_result_are_refused_at_every_rank() -> None:
    whats = (RankFaultKind.NAN, RankFaultKind.INFINITY, RankFaultKind.DIFFERS, RankFaultKind.PASSES)
    mishaps = tuple(mishap(1, 45 + 2 * at, what) for at, what in enumerate(whats))
    result = run(replace(JOB, mishaps=(*mishaps, mishap(2, 55, RankFaultKind.LEAVES))))
    assert result.violations == ()
    assert result.calls["refused: not finite"] == 6
    assert result.calls["refused: different"] == 3 + 2 * 5
    assert result.calls["answered"] == 3 * (55 - 3)
    assert result.jobs == {"a": ("finished", "")}


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_job() -> None:
    result = run(replace(JOB, ranks=SEVERAL, mishaps=(mishap(4, 30, RankFaultKind.DIES),)))
    assert result.violations == ()
    [(outcome, reason)] = result.jobs.values()
    assert outcome == "failed"
    assert "the process of rank 4 on h3 disconnected without leaving" in reason


def test_sums_with_the_greatest_exponent_are_exact_and_refused() -> None:
    job = replace(steady("float32", great=True), mishaps=(mishap(1, 20, RankFaultKind.DIFFERS),))
    result = run(job)
    assert result.violations == ()
    assert result.calls["refused: different"] == 3
    assert result.calls["answered"] == 3 * (job.rounds - 1)


def test_a_sum_that_overflows_is_refused() -> None:
    job = steady("int32")
    outcomes = set()
    for number in range(20):
        due = expected(replace(job, mishaps=(mishap(0, number, RankFaultKind.OVERFLOWS),)), number)
        outcomes.add(due.why if isinstance(due, Refusal) else "")
    assert outcomes == {"", "overflow"}


def test_differences_are_found() -> None:
    """Of a sum of float32, beyond its bound; of a result where an error is due, and vice versa."""
    due = expected(JOB, 0)
    assert isinstance(due, ExpectedResult)
    assert due.bound is not None
    good = due.values.astype(np.float32)
    assert difference(JOB, 0, 0, CallOutcome(good)) == ""
    wrong = good.copy()
    wrong[7] += np.float32(1e-3)
    assert difference(JOB, 0, 0, CallOutcome(wrong)) == "1 of 100 elements are wrong"
    assert "failed: why" in difference(JOB, 0, 0, CallOutcome(why="why"))
    refused = replace(JOB, mishaps=(mishap(1, 0, RankFaultKind.NAN),))
    assert "it has a result" in difference(refused, 0, 0, CallOutcome(good))
    assert "not finite was expected" in difference(refused, 0, 0, CallOutcome(why="other"))
    assert difference(refused, 0, 0, CallOutcome(why="only finite values can be summed")) == ""


@pytest.mark.slow
def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    copy: Any = ProcessSource._copy  # noqa: SLF001

    def wrong(self: Any, call: Any, total: Any) -> None:
        total[0] += 1
        copy(self, call, total)

    monkeypatch.setattr(ProcessSource, "_copy", wrong)
    result = run(replace(JOB, rounds=2))
    assert {violation.oracle for violation in result.violations} == {Oracle.SUMS}


@pytest.mark.slow
def test_a_wrong_result_of_a_flow_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """C complements each bit of the results, and of what it submits."""
    made: Any = SureCalls.__init__

    def wrong(self: Any, *args: Any) -> None:
        made(self, *args)
        self._rows["complemented"] = 1

    monkeypatch.setattr(SureCalls, "__init__", wrong)
    result = run(steady("int32"))
    assert Oracle.SUMS in {violation.oracle for violation in result.violations}


@pytest.mark.slow
def test_an_answer_that_is_missing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    done: Any = Attendance.done

    def forgetful(self: Attendance, rank: int, call: int) -> None:
        if call:
            done(self, rank, call)

    monkeypatch.setattr(Attendance, "done", forgetful)
    result = run(replace(JOB, rounds=2))
    assert {violation.oracle for violation in result.violations} == {Oracle.END}


def test_ranks_and_mishaps_become_fewer() -> None:
    mishaps = tuple(mishap(1, call, RankFaultKind.NAN) for call in range(4))
    job = replace(JOB, ranks=SEVERAL, mishaps=mishaps, outstanding=4)

    def fails(candidate: FaultSchedule) -> bool:
        return any(mishap(1, 2, RankFaultKind.NAN) in job.mishaps for job in candidate.jobs)

    [left] = minimise(FaultSchedule(1, NETWORK, (job,)), fails).jobs
    assert left.mishaps == (mishap(1, 2, RankFaultKind.NAN),)
    assert (len(left.workers), len(left.ranks), left.outstanding) == (1, 1, 1)
