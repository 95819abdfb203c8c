"""Exact bytes of a schedule on every link, before it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from hopsum.collectives.schedule import Schedule

Path = Callable[[str, str], Sequence[str]]
"""Returns the nodes on the path from one node to another, both included."""


def pair_volumes(schedule: Schedule) -> Iterator[tuple[int, int, int]]:
    """Return source, target and total elements of every pair that exchanges data."""
    if not schedule.steps:
        return
    keys = np.concatenate([s.sources * schedule.nodes + s.targets for s in schedule.steps])
    volumes = np.concatenate([step.volumes() for step in schedule.steps])
    pairs, where = np.unique(keys, return_inverse=True)
    totals = np.zeros(len(pairs), dtype=np.int64)
    np.add.at(totals, where, volumes)
    for pair, total in zip(pairs.tolist(), totals.tolist(), strict=True):
        if total:
            yield pair // schedule.nodes, pair % schedule.nodes, total


def link_volumes(schedule: Schedule, path: Path) -> dict[tuple[str, str], int]:
    """Return the elements on each directed link; links without any are left out.

    `path`: the route between two nodes by name, e.g. `PlainRoutes(network).path`; raises what that
    raises, for instance when nodes are not connected.
    """
    links: dict[tuple[str, str], int] = {}
    for source, target, total in pair_volumes(schedule):
        for link in pairwise(path(schedule.name(source), schedule.name(target))):
            links[link] = links.get(link, 0) + total
    return links
