"""Fewer topologies at the same objective: the load of one is spread over others in use."""

from __future__ import annotations

import numpy as np

from hopsum.planning.embedding.choice import Columns, Units

SLACK = 1e-9


def sparsify(columns: Columns, units: Units) -> Units:
    """Remove topologies, lightest first, while the busiest row stays as busy as before.

    Programmes and searches stop at any of many equally good answers; fewer topologies start
    faster.
    """
    units = units.copy()
    limit = float(columns.loads(units).max(initial=0.0)) * (1 + SLACK)
    fruitless: set[int] = set()
    while True:
        used = [int(c) for c in np.flatnonzero(units) if int(c) not in fruitless]
        if not used:
            return units
        column = min(used, key=lambda c: (int(units[c]), c))
        without = _without(columns, units, column, limit)
        if without is None:
            fruitless.add(column)
        else:
            units = without


def _without(columns: Columns, units: Units, column: int, limit: float) -> Units | None:
    """Return the units without one column, whose own are spread over others in use.

    None if a row would be over `limit`.
    """
    same = columns.group == columns.group[column]
    others = np.flatnonzero((units > 0) & same & (np.arange(len(columns)) != column))
    if not len(others):
        return None
    rest = units.copy()
    rest[column] = 0
    loads = columns.loads(rest)
    for _ in range(int(units[column])):
        worst = (loads + columns.times[others]).max(axis=1)
        best = int(np.argmin(worst))
        if worst[best] > limit:
            return None
        rest[others[best]] += 1
        loads = loads + columns.times[others[best]]
    return rest
