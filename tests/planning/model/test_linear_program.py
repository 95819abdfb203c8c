"""Programs that HiGHS fails on at first."""

from __future__ import annotations

import subprocess
import sys

import highspy
import pytest

from hopsum.planning.model.linear_program import LinearProgram, SolverError, Status
from tests.support.paths import ROOT


def knapsack() -> LinearProgram:
    """The best of two things, of which one fits."""
    program = LinearProgram(maximise=True)
    light, heavy = (program.add_variable(cost, upper=1.0, integer=True) for cost in (2.0, 3.0))
    program.add_constraint({light: 1.0, heavy: 2.0}, upper=2.0)
    return program


def test_a_program_that_the_solver_fails_on_is_solved_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found by the soak (schedule 911239): a job failed because HiGHS had."""
    status = highspy.Highs.getModelStatus
    ends: list[highspy.HighsModelStatus] = []

    def fail_at_first(solver: highspy.Highs) -> highspy.HighsModelStatus:
        ends.append(status(solver) if ends else highspy.HighsModelStatus.kSolveError)
        return ends[-1]

    monkeypatch.setattr(highspy.Highs, "getModelStatus", fail_at_first)
    solution = knapsack().solve()
    assert (solution.status, solution.objective) == (Status.OPTIMAL, 3.0)
    assert len(ends) == 2


def test_a_solver_that_keeps_failing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        highspy.Highs, "getModelStatus", lambda solver: highspy.HighsModelStatus.kSolveError
    )
    with pytest.raises(SolverError, match="HiGHS ended with Solve error"):
        knapsack().solve()


def test_nothing_is_written() -> None:
    """What the solver writes, past Python, would precede the output of `hopsum plan --json`."""
    code = "from tests.planning.model.test_linear_program import knapsack; knapsack().solve()"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert (found.stdout, found.stderr) == (b"", b"")
