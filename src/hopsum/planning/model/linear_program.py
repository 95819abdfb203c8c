"""Linear and mixed-integer programs by HiGHS; the only module that uses the solver.

Rows and columns may be added between solves: the basis is kept, so that cut and column generation
continue from where they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import highspy
import numpy as np
from numpy.typing import NDArray

from hopsum.protocol.errors import OperationError

INFINITY = float("inf")


class Status(StrEnum):
    """Status of a solve."""

    OPTIMAL = "optimal"
    """Within the requested gap."""
    TIME_LIMIT = "time limit"
    """Time limit reached; `values` holds the best point found, if any."""
    NODE_LIMIT = "node limit"
    """Node limit reached; `values` as for the time limit."""
    INFEASIBLE = "infeasible"
    UNBOUNDED = "unbounded"


class SolverError(OperationError):
    """HiGHS failed although the input is valid; the message gives its status."""


@dataclass(frozen=True, slots=True)
class Solution:
    """A solution. `values` (columns,) and `duals` (rows,) are None if there are none.

    `bound`: no point is better. `duals`, only of a program without integer variables: change of
    the objective per unit of a row's bound.
    """

    status: Status
    objective: float
    bound: float
    values: NDArray[np.float64] | None
    duals: NDArray[np.float64] | None


_ENDS = {
    highspy.HighsModelStatus.kOptimal: Status.OPTIMAL,
    highspy.HighsModelStatus.kTimeLimit: Status.TIME_LIMIT,
    highspy.HighsModelStatus.kSolutionLimit: Status.NODE_LIMIT,
    highspy.HighsModelStatus.kInfeasible: Status.INFEASIBLE,
    highspy.HighsModelStatus.kUnbounded: Status.UNBOUNDED,
    highspy.HighsModelStatus.kUnboundedOrInfeasible: Status.INFEASIBLE,
}


class _QuietSolver(highspy.Highs):
    """A solver that writes nothing: HiGHS 1.16 writes its version when its callbacks are set up."""

    def enableCallbacks(self) -> None:
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()  # type: ignore[no-untyped-call]


class LinearProgram:
    """A program under construction; variables are non-negative unless their bounds differ.

    `time_limit`: seconds per solve; for integer programs, `gap`: relative gap at which to stop,
    and `nodes`: node limit. The same `seed` gives the same result unless the time limit is reached.
    """

    def __init__(
        self,
        *,
        maximise: bool,
        time_limit: float = INFINITY,
        gap: float = 1e-9,
        seed: int = 0,
        nodes: int = 2**31 - 1,
    ) -> None:
        self._solver = _QuietSolver()  # type: ignore[no-untyped-call]
        self._integer = False
        for option, value in (
            ("threads", 1),
            ("random_seed", seed % 2**31),
            ("mip_rel_gap", gap),
            ("mip_max_nodes", nodes),
            ("time_limit", time_limit),
            ("mip_root_presolve_only", True),
        ):
            self._solver.setOptionValue(option, value)
        if maximise:
            self._solver.changeObjectiveSense(highspy.ObjSense.kMaximize)

    @property
    def columns(self) -> int:
        """Number of variables."""
        return int(self._solver.getNumCol())

    @property
    def rows(self) -> int:
        """Number of constraints."""
        return int(self._solver.getNumRow())

    def add_variable(
        self,
        cost: float = 0.0,
        *,
        lower: float = 0.0,
        upper: float = INFINITY,
        integer: bool = False,
        rows: Mapping[int, float] | None = None,
    ) -> int:
        """Add a variable with its coefficients in existing `rows`; return its column."""
        column = self.columns
        indices, values = _sparse(rows or {})
        self._solver.addCol(cost, lower, upper, len(indices), indices, values)
        if integer:
            self._integer = True
            # HiGHS 1.15 failed on some integer programs because of its presolve, and gave wrong
            # answers; that of 1.16 can loop forever, past the time limit.
            self._solver.setOptionValue("presolve", "off")
            self._solver.changeColIntegrality(column, highspy.HighsVarType.kInteger)
        return column

    def add_constraint(
        self, terms: Mapping[int, float], *, lower: float = -INFINITY, upper: float = INFINITY
    ) -> int:
        """Add lower <= sum(coefficient * column) <= upper; returns its row."""
        row = self.rows
        indices, values = _sparse(terms)
        self._solver.addRow(lower, upper, len(indices), indices, values)
        return row

    def set_bounds(self, column: int, lower: float, upper: float) -> None:
        """Change the bounds of a variable."""
        self._solver.changeColBounds(column, lower, upper)

    def set_cost(self, column: int, cost: float) -> None:
        """Change the objective coefficient of a variable."""
        self._solver.changeColCost(column, cost)

    def suggest(self, values: Mapping[int, float]) -> None:
        """Give an integer program a point to start from."""
        solution = highspy.HighsSolution()
        full = np.zeros(self.columns)
        for column, value in values.items():
            full[column] = value
        solution.col_value = full.tolist()
        self._solver.setSolution(solution)

    def solve(self) -> Solution:
        """Solve; SolverError if HiGHS fails."""
        self._solver.run()
        end = self._solver.getModelStatus()
        if end not in _ENDS:
            raise SolverError(f"HiGHS ended with {self._solver.modelStatusToString(end)}")
        status = _ENDS[end]
        info = self._solver.getInfo()
        has_point = info.primal_solution_status == 2
        solution = self._solver.getSolution()
        values = np.array(solution.col_value) if has_point else None
        duals = np.array(solution.row_dual) if has_point and not self._integer else None
        objective = float(info.objective_function_value)
        bound = float(info.mip_dual_bound) if self._integer else objective
        return Solution(status, objective, bound, values, duals)


def _sparse(terms: Mapping[int, float]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    indices = np.fromiter(terms.keys(), dtype=np.int32, count=len(terms))
    values = np.fromiter(terms.values(), dtype=np.float64, count=len(terms))
    return indices, values
