"""The integer linear program of [002][], by column generation.

    minimise    t + gain * (number of topologies)
    subject to  sum over jobs j, topologies k of  tr(k, i) x(j, k) <= t B(i)   for each link, node i
                sum over k of  x(j, k) = 1                                     for each job j
                x(j, k) <= z(j, k), x(j, k) in {0, 1/q, 2/q, ..., 1}, z(j, k) in {0, 1}
                sum of slots(j, k, s) z(j, k) <= slots(s)                      for each switch s
                sum over k of  z(j, k) <= K                                    for each job j

First without integers: under the duals of the rows, each job's cheapest topology that is not yet a
candidate becomes one, until there is none. The result is a bound for all topologies, not only for
the candidates. Then with integers, over the candidates that the bound does not rule out. The
integer optimum may use topologies that the relaxed program does not need: so before this step all
topologies become candidates where they are few, else some that are cheap under similar prices.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hopsum.planning.embedding.candidates import Candidates
from hopsum.planning.embedding.capacities import Vector
from hopsum.planning.embedding.choice import Columns, Group, PlanOptions, Units
from hopsum.planning.model.column_generation import generate_columns
from hopsum.planning.model.linear_program import INFINITY, LinearProgram, Status

TOLERANCE = 1e-6


@dataclass(frozen=True)
class Relaxation:
    """Solution of the program without integers.

    `weights` (columns,): of the jobs' data. `excess` (columns,): seconds by which a column's cost
    under `prices` (rows,) exceeds its value.
    """

    bound: float
    weights: Vector
    excess: Vector
    prices: Vector


@dataclass(frozen=True)
class IntegerSolution:
    """Units (columns,), None if none were found, and a lower bound for units on these columns."""

    units: Units | None
    bound: float
    status: Status


def relax(
    jobs: Sequence[Candidates],
    groups: Sequence[Group],
    options: PlanOptions,
    scale: float,
    deadline: float,
) -> tuple[Columns, Relaxation]:
    """Solve without integers, adding candidates to the jobs until none helps or the time is up.

    `scale`: approximate seconds of an answer. `bound` and `excess` are in seconds for all the data.
    """
    bound = 0.0

    def price(solved: _LinearSolution) -> bool:
        nonlocal bound
        cheapest = [candidates.price(solved.prices) for candidates in jobs]
        total = 0.0
        for group in groups:
            least = min(
                (cost for model, cost in cheapest[group.job].items() if model in group.models),
                default=0.0,
            )
            total += group.units / options.units * least
        bound = max(bound, total - float(solved.slot_prices @ solved.columns.free_slots))
        complete = solved.objective - bound <= TOLERANCE * solved.objective
        return not (
            complete
            or len(Columns(jobs, groups, options)) == len(solved.columns)
            or time.monotonic() > deadline
        )

    solved = generate_columns(
        lambda: _solve_relaxation(Columns(jobs, groups, options), scale), price
    )
    columns = solved.columns
    excess = columns.times * options.units @ solved.prices + columns.slots @ solved.slot_prices
    excess -= solved.worth[columns.group]
    return columns, Relaxation(bound, solved.weights, np.maximum(excess, 0.0), solved.prices)


@dataclass(frozen=True)
class _LinearSolution:
    """Objective, weights (columns,), and duals: of rows (together 1), groups, switches' slots."""

    columns: Columns
    objective: float
    weights: Vector
    prices: Vector
    worth: Vector
    slot_prices: Vector


def _solve_relaxation(columns: Columns, scale: float) -> _LinearSolution:
    """Return the solution of the program over these columns alone."""
    program = LinearProgram(maximise=False)
    units = columns.options.units
    busiest = program.add_variable(1.0)
    of_column = [program.add_variable() for _ in range(len(columns))]
    whole = columns.times * (units / scale)
    rows = np.flatnonzero(whole.any(axis=0))
    for row in rows:
        terms = {of_column[c]: float(whole[c, row]) for c in np.flatnonzero(whole[:, row])}
        program.add_constraint({**terms, busiest: -1.0}, upper=0.0)
    for number, group in enumerate(columns.groups):
        terms = {of_column[c]: 1.0 for c in np.flatnonzero(columns.group == number)}
        share = group.units / units
        program.add_constraint(terms, lower=share, upper=share)
    limited = np.flatnonzero(columns.slots.any(axis=0))
    for switch in limited:
        terms = {
            of_column[c]: float(columns.slots[c, switch])
            for c in np.flatnonzero(columns.slots[:, switch])
        }
        program.add_constraint(terms, upper=float(columns.free_slots[switch]))
    solution = program.solve()
    prices = np.zeros(columns.times.shape[1])
    slot_prices = np.zeros(len(columns.switches))
    worth = np.zeros(len(columns.groups))
    if solution.duals is not None:
        count = len(rows), len(rows) + len(columns.groups)
        prices[rows] = np.maximum(-solution.duals[: count[0]], 0.0)
        prices /= max(float(prices.sum()), 1e-300)
        worth = solution.duals[count[0] : count[1]] * scale
        slot_prices[limited] = np.maximum(-solution.duals[count[1] :], 0.0) * scale
    weights = np.zeros(len(columns)) if solution.values is None else solution.values[of_column]
    return _LinearSolution(columns, solution.objective * scale, weights, prices, worth, slot_prices)


def solve_integers(
    columns: Columns, relaxed: Relaxation, known: Units | None, scale: float, time_limit: float
) -> IntegerSolution:
    """Return the best units on the columns, starting from `known`.

    They may be proved optimal.
    """
    options, units = columns.options, columns.options.units
    keep = np.arange(len(columns))
    if known is not None:
        # One unit on a column lifts the relaxed optimum by at least its excess.
        most = columns.objective(known, scale)
        excess = relaxed.bound + relaxed.excess / units
        keep = np.flatnonzero((excess <= most * (1 + TOLERANCE)) | (known > 0))
    program = LinearProgram(
        maximise=False,
        time_limit=time_limit,
        gap=options.gap / (1 + options.gap),
        seed=options.seed,
        nodes=options.nodes,
    )
    gain = options.least_gain
    busiest = program.add_variable(1.0, lower=max(0.0, relaxed.bound / scale - TOLERANCE))
    weight = {
        int(c): program.add_variable(upper=columns.groups[columns.group[c]].units, integer=True)
        for c in keep
    }
    times = columns.times / scale
    for row in np.flatnonzero(times[keep].any(axis=0)):
        terms = {weight[c]: float(times[c, row]) for c in weight if times[c, row]}
        program.add_constraint({**terms, busiest: -1.0}, upper=0.0)
    for number, group in enumerate(columns.groups):
        terms = {weight[c]: 1.0 for c in weight if columns.group[c] == number}
        program.add_constraint(terms, lower=group.units, upper=group.units)
    used: dict[int, int] = {}
    for c in weight:
        if gain or options.max_topologies is not None or columns.slots[c].any():
            used[c] = program.add_variable(gain, upper=1.0, integer=True)
            most_units = float(columns.groups[columns.group[c]].units)
            program.add_constraint({weight[c]: 1.0, used[c]: -most_units}, upper=0.0)
    for switch in np.flatnonzero(columns.slots.any(axis=0)):
        held = {used[c]: float(columns.slots[c, switch]) for c in used if columns.slots[c, switch]}
        if held:
            program.add_constraint(held, upper=float(columns.free_slots[switch]))
    if options.max_topologies is not None:
        for job in range(len(columns.jobs)):
            mine = {used[c]: 1.0 for c in used if columns.job[c] == job}
            program.add_constraint(mine, upper=float(options.max_topologies))
    if known is not None:
        start = {weight[c]: float(known[c]) for c in weight}
        start |= {used[c]: float(known[c] > 0) for c in used}
        start[busiest] = float(columns.loads(known).max(initial=0.0)) / scale
        program.suggest(start)
    solution = program.solve()
    # The first topology of each group costs nothing.
    bound = (solution.bound - gain * len(columns.groups)) * scale
    if not np.isfinite(bound) or abs(bound) == INFINITY:
        bound = relaxed.bound
    if solution.status is Status.INFEASIBLE:
        return IntegerSolution(None, INFINITY, solution.status)
    if solution.values is None:
        return IntegerSolution(None, max(bound, relaxed.bound), solution.status)
    chosen = np.zeros(len(columns), dtype=np.int64)
    for c, variable in weight.items():
        chosen[c] = round(float(solution.values[variable]))
    return IntegerSolution(chosen, max(bound, relaxed.bound), solution.status)
