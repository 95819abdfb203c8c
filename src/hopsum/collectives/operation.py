"""A collective on a plan's trees: the elements that each takes, and how its packets combine.

With a tree for each worker, rooted there, a reduce-scatter is a reduction to the root on every
tree, and an all-gather a broadcast from it; reduce and broadcast are those of one tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hopsum.collectives.choices import Collective, DataType
from hopsum.collectives.plan import (
    JobPlan,
    PlanError,
    prologue_count,
    prologue_lanes,
    tensor_ranges,
    wire_width,
)
from hopsum.collectives.schedule import part
from hopsum.protocol.wire import Reduction, Width, carries_lanes

Ranges = Sequence[tuple[int, int]]
"""Elements (start, stop) of a flat tensor for each tree of a plan."""


class Lanes(NamedTuple):
    """Lanes of a packet on its way up, and down."""

    up: int
    down: int


class Fragments(NamedTuple):
    """Fragments of a tensor on a tree."""

    prologues: int
    data: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.prologues + self.data


def tree_ranges(
    plan: JobPlan, collective: Collective, length: int, width: Width = Width.WIDTH_32
) -> Ranges:
    """Return the elements (start, stop) of a flat tensor that each tree takes.

    `width`: of its values in packets. Raises PlanError for a plan without such trees.
    """
    if collective is Collective.ALL_REDUCE:
        return tensor_ranges(plan, length, width)
    return root_ranges(plan, collective, worker_parts(collective, len(plan.workers), length))


def worker_parts(collective: Collective, workers: int, length: int) -> Ranges:
    """Return the elements that each worker is the root of: nearly equal parts, or all of worker 0.

    `collective`: all but an all-reduce.
    """
    if collective in (Collective.REDUCE, Collective.BROADCAST):
        return ((0, length), *[(length, length)] * (workers - 1))
    return tuple(part(0, length, workers, worker) for worker in range(workers))


def root_ranges(plan: JobPlan, collective: Collective, parts: Ranges) -> Ranges:
    """Return the elements that each tree takes, if `parts` are those of the workers' trees.

    Raises PlanError for a plan without such trees.
    """
    if not plan.rooted or plan.host_parts:
        raise PlanError(
            f"job {plan.job}: {collective} takes a tree for each worker, with its root there; "
            f"the plan has {len(plan.trees)} for {len(plan.workers)} workers, with their roots at "
            f"{', '.join(plan.servers) or 'none'}: use the workers as servers"
        )
    others = ((0, 0),) * (len(plan.trees) - len(plan.workers))
    return (*parts, *others) if collective.sums else (*others, *parts)


def reduction_of(plan: JobPlan, collective: Collective) -> Reduction:
    """Return the reduction of a collective's packets."""
    if not collective.sums:
        return Reduction.BROADCAST
    return plan.reduction if collective is Collective.ALL_REDUCE else plan.reduction.to_root


def lanes_of(plan: JobPlan, collective: Collective) -> Lanes:
    """Return the lanes of a collective's packets on the wire."""
    reduction = reduction_of(plan, collective)
    up, down = (plan.lanes if carries_lanes(reduction, up=up) else 0 for up in (True, False))
    return Lanes(up, down)


def prologue_lanes_of(plan: JobPlan) -> Lanes:
    """Return the lanes of prologues on the wire."""
    return Lanes(prologue_lanes(plan), prologue_lanes(plan))


def width_of(
    plan: JobPlan, collective: Collective, data_type: DataType, wire_bits: int = 0
) -> Width:
    """Return the width of values in packets.

    `wire_bits`: that it is to have, if sums can have it (`wire_width`); 0: the type's own. Where
    nothing is added values travel as they are.
    """
    widths = {each.bits: each for each in Width}
    own = widths[data_type.bits]
    if not collective.sums:
        return own
    return wire_width(
        widths[wire_bits] if wire_bits else own,
        len(plan.workers),
        scaled=data_type.scaled,
        integrity=plan.integrity,
    )


def fragments_of(
    plan: JobPlan, collective: Collective, length: int, data_type: DataType, wire_bits: int = 0
) -> tuple[Fragments, ...]:
    """Return the fragments of a tensor on each tree; `wire_bits`: see `width_of`."""
    width = width_of(plan, collective, data_type, wire_bits)
    scaled = data_type.scaled and collective.sums
    found = []
    for start, stop in tree_ranges(plan, collective, length, width):
        data = -(-(stop - start) // (plan.values * width.per_lane))
        prologues = prologue_count(data, plan.in_flight, width) if scaled else 0
        found.append(Fragments(prologues, data))
    return tuple(found)
