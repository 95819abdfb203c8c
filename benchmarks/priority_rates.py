"""Rates under strict priorities: each level takes what it can, lower levels share the rest.

This models links that always send a waiting packet of the lowest level number first
(`docs/protocol.md`, Priorities). Flows of one level share max-min fairly.
"""

from __future__ import annotations

import numpy as np

from hopsum.timing.max_min import Floats, Integers, Usage, max_min_rates


def priority_rates(
    usage: Usage, capacities: Floats, levels: Integers, limits: Floats | None = None
) -> Floats:
    """Return rates (n,) of flows of these levels, 0 first; infinite where nothing limits them.

    `capacities`, `limits`: as for `max_min_rates`, which is called once per level.
    """
    rates = np.zeros(len(levels))
    left = capacities.astype(np.float64)
    for level in np.unique(levels):
        flows = np.flatnonzero(levels == level)
        of_level = usage.take(flows)
        shared = max_min_rates(of_level, left, limits=None if limits is None else limits[flows])
        rates[flows] = shared
        # A flow of infinite rate crosses no link with a capacity.
        taken = of_level.loads(np.where(np.isfinite(shared), shared, 0.0), len(left))
        left = np.maximum(left - taken, 0.0)
    return rates
