"""Ring collectives: n - 1 steps of 1/n of the tensor each way (Patarasuk and Yuan, JPDC 2009)."""

from __future__ import annotations

import numpy as np

from hopsum.collectives.choices import Collective
from hopsum.collectives.schedule import (
    Ranges,
    Schedule,
    Step,
    borders,
    check_counts,
    make_step,
)


def ring_all_reduce(ranks: int, elements: int) -> Schedule:
    """Return a reduce-scatter, then an all-gather, around the ring 0, 1, ..., ranks - 1.

    Every rank sends 2 (ranks - 1) / ranks of the tensor. Raises ScheduleError for no ranks.
    """
    check_counts("ring", ranks, elements)
    whole = Ranges.whole(range(ranks), elements)
    steps = (_around(ranks, elements, gather=False), _around(ranks, elements, gather=True))
    return Schedule(
        "ring", Collective.ALL_REDUCE, ranks, elements, steps if ranks > 1 else (), whole, whole
    )


def _around(ranks: int, elements: int, *, gather: bool) -> Step:
    """Return a step: in turn k rank r sends part r - k (r + 1 - k to gather) to rank r + 1."""
    numbers = np.arange(ranks)
    edges = borders(elements, ranks)
    parts = (numbers + gather) % ranks
    return make_step(
        numbers,
        (numbers + 1) % ranks,
        edges[parts],
        edges[parts + 1],
        combine=not gather,
        after=(0,) if gather else (),
        repeat=ranks - 1,
        period=ranks,
    )
