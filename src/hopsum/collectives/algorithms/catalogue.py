"""All-reduce algorithms that hosts run among themselves, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hopsum.collectives.algorithms.halving_doubling import halving_doubling_all_reduce
from hopsum.collectives.algorithms.level_wise_form import form_for
from hopsum.collectives.algorithms.ring import ring_all_reduce
from hopsum.collectives.algorithms.trees import (
    SharedTree,
    double_tree_all_reduce,
    multi_tree_all_reduce,
    tree_all_reduce,
)
from hopsum.collectives.choices import DEFAULT_FORM, FormOptions
from hopsum.collectives.choices import LEVEL_WISE as LEVEL_WISE
from hopsum.collectives.choices import MULTI_TREE as MULTI_TREE
from hopsum.collectives.schedule import Schedule, ScheduleError
from hopsum.collectives.tree import check_ranks
from hopsum.network.model import Network

_Make = Callable[[Network, Sequence[str], int], Schedule]

SCHEDULES: Mapping[str, _Make] = {
    "ring": lambda network, ranks, elements: ring_all_reduce(len(ranks), elements),
    "halving-doubling": lambda network, ranks, elements: halving_doubling_all_reduce(
        len(ranks), elements
    ),
    "tree": lambda network, ranks, elements: tree_all_reduce(ranks, elements),
    "double-tree": lambda network, ranks, elements: double_tree_all_reduce(ranks, elements),
    LEVEL_WISE: lambda network, ranks, elements: form_for(network, ranks, elements).all_reduce(
        ranks, elements
    ),
}


def make_schedule(
    algorithm: str,
    network: Network,
    ranks: Sequence[str],
    elements: int,
    trees: Sequence[SharedTree] = (),
    form: FormOptions = DEFAULT_FORM,
) -> Schedule:
    """Return the algorithm's all-reduce among these hosts; its nodes are named.

    `trees`: of MULTI_TREE; `form`: of LEVEL_WISE. Raises ScheduleError for an unknown name, for
    ranks that are none, repeated or not connected, or for trees without all ranks; NetworkError
    where the network does not allow the algorithm.
    """
    if algorithm == MULTI_TREE:
        return multi_tree_all_reduce(ranks, elements, trees)
    if algorithm not in SCHEDULES:
        raise ScheduleError(f"algorithm {algorithm!r}: expected one of {', '.join(SCHEDULES)}")
    check_ranks(ranks)
    if algorithm == LEVEL_WISE:
        return form_for(network, ranks, elements, form).all_reduce(ranks, elements)
    schedule = SCHEDULES[algorithm](network, ranks, elements)
    return schedule if schedule.names else schedule.named(ranks)
