"""Collectives among hosts as schedules."""

from __future__ import annotations

from collections.abc import Sequence

from hopsum.collectives.algorithms.catalogue import make_schedule
from hopsum.collectives.schedule import Schedule
from hopsum.collectives.schedule_checker import check_schedule
from hopsum.network.model import Network
from hopsum.planning.model.placement import without_servers


def schedule(
    algorithm: str,
    network: Network,
    elements: int,
    workers: int | Sequence[str] | None = None,
) -> Schedule:
    """Return an all-reduce among hosts, by `ring`, `tree`, `level-wise` or another algorithm.

    `workers`: how many hosts, or their names; None: all. It is checked: each worker ends with the
    sum of all. Raises ScheduleError, NetworkError.
    """
    ranks = without_servers(network, workers).workers
    made = make_schedule(algorithm, network, ranks, elements)
    check_schedule(made)
    return made
