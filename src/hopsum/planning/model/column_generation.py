"""Column generation: a master program over some columns, and pricing to find missing ones.

All planners whose programs have too many columns to list use this loop. Most masters are
fractional packings: columns, such as trees, share capacities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hopsum.planning.model.linear_program import LinearProgram

Solved = TypeVar("Solved")


def generate_columns(solve: Callable[[], Solved], price: Callable[[Solved], bool]) -> Solved:
    """Solve the master and price columns until none is added; return the master's last solution.

    `price`: adds columns of negative reduced cost under a solution's prices to the master; False if
    it added none, or if the solution is good enough.
    """
    while True:
        solved = solve()
        if not price(solved):
            return solved


@dataclass(frozen=True, slots=True)
class PackingSolution:
    """The best rates (columns,), their sum, and the prices (rows,) of capacity, 0 or more."""

    rates: NDArray[np.float64]
    total: float
    prices: NDArray[np.float64]


class Packing:
    """The master of a packing: rates of columns with the largest sum that fit the capacities.

    `trees`: columns of rate `least` or more, which use their rate on each of their rows.
    """

    def __init__(
        self, capacities: Iterable[float], trees: Iterable[Sequence[int]] = (), least: float = 0.0
    ) -> None:
        self._program = LinearProgram(maximise=True)
        for capacity in capacities:
            self._program.add_constraint({}, upper=float(capacity))
        for tree in trees:
            self.add(dict.fromkeys(tree, 1.0), least)

    def add(self, loads: Mapping[int, float], least: float = 0.0) -> None:
        """Add a column of rate `least` or more, with its use of each row per unit of rate."""
        self._program.add_variable(1.0, lower=least, rows=loads)

    def solve(self) -> PackingSolution | None:
        """Return the best rates; None if the columns do not fit even at their least rates."""
        solution = self._program.solve()
        if solution.values is None or solution.duals is None:
            return None
        return PackingSolution(solution.values, solution.objective, np.maximum(solution.duals, 0.0))
