"""Ring collectives: n - 1 steps of 1/n of the tensor each way (Patarasuk and Yuan, JPDC 2009)."""

from __future__ import annotations

import numpy as np

from collectives.schedule import (
    Collective,
    Ranges,
    Schedule,
    Step,
    borders,
    check_counts,
    make_step,
)


def ring_all_reduce(ranks: int, elements: int) -> Schedule:
    """Reduce-scatter, then all-gather, around the ring 0, 1, ..., ranks - 1.

    Every rank sends 2 (ranks - 1) / ranks of the tensor. Raises ScheduleError for no ranks.
    """
    check_counts("ring", ranks, elements)
    whole = Ranges.whole(range(ranks), elements)
    steps = (_around(ranks, elements, gather=False), _around(ranks, elements, gather=True))
    return Schedule(
        "ring", Collective.ALL_REDUCE, ranks, elements, steps if ranks > 1 else (), whole, whole
    )


def ring_reduce_scatter(ranks: int, elements: int) -> Schedule:
    """Return the first half: rank r ends with the sum of part (r + 1) mod ranks."""
    check_counts("ring", ranks, elements)
    steps = (_around(ranks, elements, gather=False),) if ranks > 1 else ()
    whole = Ranges.whole(range(ranks), elements)
    return Schedule(
        "ring", Collective.REDUCE_SCATTER, ranks, elements, steps, whole, _parts(ranks, elements)
    )


def ring_all_gather(ranks: int, elements: int) -> Schedule:
    """Return the second half: from part (r + 1) mod ranks at rank r to everything everywhere."""
    check_counts("ring", ranks, elements)
    steps = (_around(ranks, elements, gather=True, after=()),) if ranks > 1 else ()
    whole = Ranges.whole(range(ranks), elements)
    return Schedule(
        "ring", Collective.ALL_GATHER, ranks, elements, steps, _parts(ranks, elements), whole
    )


def _around(ranks: int, elements: int, *, gather: bool, after: tuple[int, ...] = (0,)) -> Step:
    """In turn k rank r sends part r - k, or r + 1 - k when gathering, to rank r + 1."""
    numbers = np.arange(ranks)
    edges = borders(elements, ranks)
    parts = (numbers + gather) % ranks
    return make_step(
        numbers,
        (numbers + 1) % ranks,
        edges[parts],
        edges[parts + 1],
        combine=not gather,
        after=after if gather else (),
        repeat=ranks - 1,
        period=ranks,
    )


def _parts(ranks: int, elements: int) -> Ranges:
    edges = borders(elements, ranks).tolist()
    return Ranges.of(
        (rank, edges[(rank + 1) % ranks], edges[(rank + 1) % ranks + 1]) for rank in range(ranks)
    )
