"""The heuristic: place unit by unit at the least cost, then move units off the busiest row.

Rounds of three steps. (1) Every unit of weight, the jobs in turn, goes to the candidate that
minimises the load of the busiest row (ties: the norm of all rows). (2) While it helps, units on the
busiest row move to another candidate, all or some. (3) Rows get prices that grow exponentially with
their load (Plotkin, Shmoys and Tardos 1995); each job's cheapest topologies under them become
candidates too. Starting points are all models together, and each by itself (which ends with few
topologies). Unless the result is proved good enough, the planner also rounds the program without
integers (`round_weights`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from hopsum.planning.embedding.candidates import Candidates
from hopsum.planning.embedding.capacities import Vector
from hopsum.planning.embedding.choice import Columns, Group, PlanOptions, Units
from hopsum.planning.model.demand import Model

ROUNDS = 6
LUMPS = 16
"""Maximum number of lumps per group in which units are placed."""
SHARPNESS = 24.0
"""Exponent of the price of the most heavily loaded row."""
SOURCES = 6
"""Topologies on the busiest row that are considered for a move."""
NORM = 8
MANY = 400
"""Number of candidates above which single models are tried only if few topologies are allowed.
"""
TIE = 1e-3
"""Weight of the norm relative to the worst row."""
LEAST = 1e-9
ROUNDING = 1e-6


def search(
    jobs: Sequence[Candidates],
    groups: Sequence[Group],
    options: PlanOptions,
    deadline: float,
) -> tuple[Columns, Units | None]:
    """Return the best units found, with their columns; adds candidates to the jobs.

    None if no choice is within the limits on slots and numbers of topologies.
    """
    best: tuple[Columns, Units] | None = None
    for _ in range(ROUNDS):
        columns = Columns(jobs, groups, options)
        before = None if best is None else _score(columns, columns.carried(*best))
        for units in _choices(columns, best, deadline):
            if best is None or _score(columns, units) < _score(columns, columns.carried(*best)):
                best = columns, units
        if best is None:
            return columns, None
        if time.monotonic() > deadline:
            break
        after = _score(columns, columns.carried(*best))
        loads = columns.loads(columns.carried(*best))
        new = [candidates.price(prices_of(loads)) for candidates in jobs]
        settled = before is not None and after > before * (1 - 1e-4)
        if settled or not new or len(Columns(jobs, groups, options)) == len(columns):
            break
    columns = Columns(jobs, groups, options)
    return columns, columns.carried(*best) if best is not None else None


def bound_of(columns: Columns, units: Units | None) -> float:
    """Return the bound in seconds that the prices at a choice prove for all weights."""
    if units is None:
        return 0.0
    prices = prices_of(columns.loads(units))
    cheapest = [candidates.price(prices) for candidates in columns.jobs]
    return sum(
        group.units
        / columns.options.units
        * min((c for model, c in cheapest[group.job].items() if model in group.models), default=0.0)
        for group in columns.groups
    )


def prices_of(loads: Vector) -> Vector:
    """Return prices of a second of each row, which sum to 1: exponential in the rows' loads."""
    worst = float(loads.max(initial=0.0))
    if not worst:
        return np.full(len(loads), 1 / max(1, len(loads)))
    weights: Vector = np.exp(SHARPNESS * (loads / worst - 1))
    prices: Vector = weights / weights.sum()
    return prices


def _choices(
    columns: Columns, best: tuple[Columns, Units] | None, deadline: float
) -> Iterator[Units]:
    """Yield choices after local search: from the best so far, else from every starting point."""
    if best is not None:
        yield improve(columns, columns.carried(*best), deadline)
    few = columns.options.max_topologies is not None or columns.options.least_gain > 0
    by_model = best is None and (few or len(columns) <= MANY)
    for model in (None, *Model) if by_model else (None,):
        units = _place(columns, np.zeros(len(columns), dtype=np.int64), model)
        if units is not None:
            yield improve(columns, units, deadline)
        if time.monotonic() > deadline:
            return


def round_weights(columns: Columns, weights: Vector, deadline: float) -> Units | None:
    """Round weights (columns,) to units and improve them; None if the limits do not allow it."""
    units: Units = np.floor(weights * columns.options.units + ROUNDING).astype(np.int64)
    filled = _place(columns, units, None) if columns.holds(units) else None
    return None if filled is None else improve(columns, filled, deadline)


def _place(columns: Columns, units: Units, model: Model | None) -> Units | None:
    """Place every group's missing units at least cost; None if impossible.

    `model`: only candidates of this model, where a group has any.
    """
    units = units.copy()
    loads = columns.loads(units)
    allowed = _allowed(columns, model)
    lumps = [
        _lumps(group.units - int(units[columns.group == number].sum()))
        for number, group in enumerate(columns.groups)
    ]
    for turn in range(max(map(len, lumps), default=0)):
        for number, sizes in enumerate(lumps):
            if turn < len(sizes):
                options = _open(columns, units, allowed[number])
                if not len(options):
                    return None
                after = loads + sizes[turn] * columns.times[options]
                chosen = options[int(np.argmin(_costs(columns, units, options, after)))]
                units[chosen] += sizes[turn]
                loads = loads + sizes[turn] * columns.times[chosen]
    return units


def _lumps(units: int) -> list[int]:
    count = min(max(units, 0), LUMPS)
    return [units // count + (i < units % count) for i in range(count)]


def _allowed(columns: Columns, model: Model | None) -> list[Units]:
    """Return each group's columns, only those of `model` if there are any."""
    found = []
    for number in range(len(columns.groups)):
        mine = np.flatnonzero(columns.group == number)
        same = [
            column
            for column in mine
            if model is None
            or columns.jobs[columns.names[column][0]].found[columns.names[column][1]].model is model
        ]
        found.append(np.array(same) if same else mine)
    return found


def _open(columns: Columns, units: Units, options: Units) -> Units:
    """Return the columns that are in use, or may be used within the limits."""
    used = units > 0
    fits = (columns.slots[used].sum(axis=0) + columns.slots[options] <= columns.free_slots).all(1)
    most = columns.options.max_topologies
    if most is not None:
        counts = np.bincount(columns.job[used], minlength=len(columns.jobs))
        fits &= counts[columns.job[options]] < _most_now(columns, units, most)[columns.job[options]]
    chosen: Units = options[fits | used[options]]
    return chosen


def _most_now(columns: Columns, units: Units, most: int) -> NDArray[np.int64]:
    """Return how many topologies (jobs,) each job may use now; each new group has one reserved."""
    limits = np.full(len(columns.jobs), most)
    started = set(columns.group[units > 0].tolist())
    for number, group in enumerate(columns.groups):
        if number not in started:
            limits[group.job] -= 1
    # A group without any may take the one reserved for it.
    for number, group in enumerate(columns.groups):
        if number not in started:
            limits[group.job] += 1
            break
    return limits


def _costs(
    columns: Columns, units: Units, options: Units, after: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the cost (options,) of each option, from the rows' loads `after` (options, rows)."""
    worst = after.max(axis=1)
    scale = float(worst.max(initial=0.0)) or 1.0
    norm = ((after / scale) ** NORM).mean(axis=1) ** (1 / NORM) * scale
    new = (units[options] == 0) * columns.options.least_gain * scale
    costs: NDArray[np.float64] = worst + TIE * norm + new
    return costs


def _score(columns: Columns, units: Units) -> float:
    loads = columns.loads(units)
    worst = float(loads.max(initial=0.0))
    norm = float(((loads / worst) ** NORM).mean() ** (1 / NORM) * worst) if worst else 0.0
    further = int(np.count_nonzero(units)) - len(columns.groups)
    return worst * (1 + columns.options.least_gain * further) + TIE * norm


def improve(columns: Columns, units: Units, deadline: float) -> Units:
    """Move units off the busiest row while that helps."""
    units = units.copy()
    score = _score(columns, units)
    while time.monotonic() < deadline:
        move = _best_move(columns, units, score)
        if move is None:
            return units
        score, source, target, amount = move
        units[source] -= amount
        units[target] += amount
    return units


def _amounts(units: int) -> list[int]:
    """Yield amounts to move: all units, decreasing parts of them, and one."""
    return list(dict.fromkeys((units, -(-units // 4), -(-units // 16), 1)))


def _best_move(columns: Columns, units: Units, score: float) -> tuple[float, int, int, int] | None:
    loads = columns.loads(units)
    row = int(np.argmax(loads))
    on_it = units * columns.times[:, row]
    sources = [int(c) for c in np.argsort(-on_it, kind="stable")[:SOURCES] if on_it[c] > 0]
    used = int(np.count_nonzero(units)) - len(columns.groups)
    best: tuple[float, int, int, int] | None = None
    for source in sources:
        for amount in _amounts(int(units[source])):
            rest = units.copy()
            rest[source] -= amount
            options = _open(columns, rest, np.flatnonzero(columns.group == columns.group[source]))
            options = options[options != source]
            if not len(options):
                continue
            after = loads + amount * (columns.times[options] - columns.times[source])
            worst = after.max(axis=1)
            share = np.maximum(after, 0) / np.where(worst > 0, worst, 1.0)[:, None]
            norm = (share**NORM).mean(axis=1) ** (1 / NORM)
            further = used - (rest[source] == 0) + (rest[options] == 0)
            costs = worst * (1 + columns.options.least_gain * further + TIE * norm)
            place = int(np.argmin(costs))
            if costs[place] < (best[0] if best else score * (1 - LEAST)):
                best = float(costs[place]), source, int(options[place]), amount
    return best
