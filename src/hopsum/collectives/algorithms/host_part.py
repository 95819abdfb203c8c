"""The all-reduce over one logical topology of hosts of a plan: a ring, or a tree ([002][])."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hopsum.collectives.algorithms.ring import ring_all_reduce
from hopsum.collectives.algorithms.trees import DEFAULT_BLOCK, SharedTree, multi_tree_all_reduce
from hopsum.collectives.plan import HostPart
from hopsum.collectives.schedule import Schedule
from hopsum.collectives.tree import Tree


def host_part_all_reduce(
    part: HostPart, workers: Sequence[str], elements: int, block: int = DEFAULT_BLOCK
) -> Schedule:
    """Return the schedule that sums `elements` over one topology; its nodes are named.

    Blocks of `block` elements are passed on one by one, so that collecting and broadcasting
    overlap. Auxiliary hosts are relays. ScheduleError for a tree that lacks a worker.
    """
    if part.order:
        return replace(ring_all_reduce(len(part.order), elements), names=part.order)
    tree = SharedTree(Tree(part.root, part.parents))
    schedule = multi_tree_all_reduce(workers, elements, [tree], block)
    return replace(schedule, algorithm="host-tree")
