"""Decomposition: which part of a tensor goes over which logical topology ([002][]).

The weights come with the plan. Every worker cuts every tensor at the same places, so
the cuts are computed exactly, from fractions, and lie between blocks. (Collecting and broadcasting
overlap block by block because trees and schedules stream: nothing here waits for a whole part.)
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from hopsum.collectives.plan import HostPart, JobPlan
from hopsum.protocol.errors import InputError

TensorPart = tuple[HostPart | None, int, int]
"""A logical topology, None for the plan's trees, and its elements (start, stop) of a tensor."""


class WeightError(InputError):
    """Weights that cannot divide a tensor."""


def check_weights(weights: Sequence[Fraction]) -> None:
    """Raise WeightError unless there are some, none is negative, and they sum to 1 ([002][])."""
    if not weights or any(weight < 0 for weight in weights) or sum(weights) != 1:
        shown = ", ".join(map(str, weights)) or "none"
        raise WeightError(
            f"weights {shown} (sum {sum(weights)}): expected some, none below 0, of sum 1"
        )


def divide(length: int, weights: Sequence[Fraction], block: int) -> tuple[tuple[int, int], ...]:
    """Return the elements (start, stop) of a flat tensor of `length` that each topology exchanges.

    Whole blocks of `block` elements (a switch sums a fragment at a time), each cut rounded to the
    nearest, half to even; the last topology with a weight gets the broken block. The ranges follow
    each other from 0 to `length`. Raises WeightError.
    """
    check_weights(weights)
    blocks = -(-length // block)
    ranges = []
    start, taken = 0, Fraction(0)
    for weight in weights:
        taken += weight
        stop = min(length, round(blocks * taken) * block)
        ranges.append((start, stop))
        start = stop
    return tuple(ranges)


def decompose(plan: JobPlan, length: int) -> tuple[TensorPart, ...]:
    """Return the elements of a flat tensor of `length` that each part sums, the trees' first.

    Cut at whole fragments, as `divide`. A plan with neither trees nor parts of hosts only lists the
    workers: the single part, None, is then the whole tensor. Raises WeightError.
    """
    if not plan.host_parts:
        return ((None, 0, length),)
    parts: list[HostPart | None] = [*plan.host_parts]
    weights = [part.weight for part in plan.host_parts]
    if plan.trees:
        parts.insert(0, None)
        weights.insert(0, plan.tree_weight)
    ranges = divide(length, weights, plan.values)
    return tuple((part, start, stop) for part, (start, stop) in zip(parts, ranges, strict=True))


def tree_elements(plan: JobPlan, length: int) -> int:
    """Return how many elements of a flat tensor the plan's trees sum; see `decompose`."""
    return sum(stop - start for part, start, stop in decompose(plan, length) if part is None)
