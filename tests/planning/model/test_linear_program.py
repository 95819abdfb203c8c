"""What HiGHS ends with, and what it writes."""

from __future__ import annotations

import subprocess
import sys

import highspy
import pytest

from hopsum.planning.model.linear_program import LinearProgram, SolverError
from tests.support.paths import ROOT


def knapsack() -> LinearProgram:
    """The best of two things, of which one fits."""
    program = LinearProgram(maximise=True)
    light, heavy = (program.add_variable(cost, upper=1.0, integer=True) for cost in (2.0, 3.0))
    program.add_constraint({light: 1.0, heavy: 2.0}, upper=2.0)
    return program


def test_a_solver_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
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
