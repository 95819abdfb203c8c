"""Schedules of collectives that no algorithm of the product makes."""

from __future__ import annotations

from collections.abc import Sequence

from hopsum.collectives.choices import Collective
from hopsum.collectives.schedule import Ranges, Schedule, make_step


def broadcast_from(root: int, names: Sequence[str], elements: int) -> Schedule:
    """Each other rank gets the root's tensor from it."""
    return _with_root(Collective.BROADCAST, root, names, elements)


def reduce_to(root: int, names: Sequence[str], elements: int) -> Schedule:
    """The root adds up the tensors of all."""
    return _with_root(Collective.REDUCE, root, names, elements)


def _with_root(collective: Collective, root: int, names: Sequence[str], elements: int) -> Schedule:
    reduces = collective is Collective.REDUCE
    others = [rank for rank in range(len(names)) if rank != root]
    ends = (others, root) if reduces else (root, others)
    steps = (make_step(*ends, 0, elements, combine=reduces),) if others else ()
    whole, one = Ranges.whole(range(len(names)), elements), Ranges.whole([root], elements)
    given, wanted = (whole, one) if reduces else (one, whole)
    made = Schedule("with root", collective, len(names), elements, steps, given, wanted)
    return made.named(names)
