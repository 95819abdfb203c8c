"""Calls whose results, or values, are those of one rank: over the trees rooted at the ranks' hosts.

A job whose servers are its workers has a tree with its root at each of them. Over these a sum goes
to the hosts that it is for alone, and what is copied from one host to the others. The calls of one
tree follow each other. So there is a second set of trees for what is copied, which lets copies and
sums go on at once (FSDP gathers parameters while it scatters gradients). It is also the one for
checks, lest they wait for the values of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from hopsum.collectives.choices import Collective
from hopsum.collectives.operation import Ranges, root_ranges
from hopsum.collectives.plan import JobPlan
from hopsum.host_agent.node.calls import COPY, CallSpec
from hopsum.host_agent.process_calls import ALL
from hopsum.host_agent.segment import CallOptions
from hopsum.protocol.wire import Reduction, frame_bytes


class Roots:
    """The trees of `plan` for the parts of `ranks`, the host of each; see `roots_of`."""

    def __init__(self, plan: JobPlan, ranks: Sequence[str]) -> None:
        self._here = [
            [rank for rank, host in enumerate(ranks) if host == worker] for worker in plan.workers
        ]
        """Ranks of each worker's host."""
        self._plan = plan
        self._ranks = len(ranks)
        self._two_sets = len(plan.trees) > len(plan.workers)
        self._bare = frame_bytes(0, 1) / frame_bytes(plan.lanes, 1)
        """Length of a frame without lanes, in frames with lanes."""

    def options(self, wanted: CallSpec, elements: int) -> CallOptions:
        """Return how a call is submitted, the same at all hosts.

        `elements`: of the tensor, which may be for several calls for all.
        """
        if wanted.code == COPY:
            ranges = root_ranges(self._plan, Collective.ALL_GATHER, self._parts(wanted))
            return CallOptions(Reduction.BROADCAST, ranges=ranges)
        if self.splits(wanted):
            reduction = wanted.reduction or Reduction.SUM
            ranges = root_ranges(self._plan, Collective.REDUCE_SCATTER, self._parts(wanted))
            return CallOptions(reduction.to_root, ranges=ranges)
        return self.for_all(wanted.reduction, elements)

    def for_all(self, reduction: Reduction | None, elements: int) -> CallOptions:
        """Return how a tensor is submitted that all get; one of one fragment over the last tree."""
        if not self._two_sets or elements > self._plan.values:
            return CallOptions(reduction)
        ranges = [*[(0, 0)] * (len(self._plan.trees) - 1), (0, elements)]
        return CallOptions(reduction, ranges=ranges)

    def splits(self, wanted: CallSpec) -> bool:
        """Return whether a sum goes only to those that it is for.

        If that costs a host's link, both ways, fewer bytes than a sum for all. The latter is
        divided among the trees by whole fragments, and so has fewer of them where parts are short.
        """
        if wanted.target == ALL:
            return False
        frames = sum(self._frames(stop - start) for start, stop in self._parts(wanted))
        return frames * (1 + self._bare) < 2 * self._frames(wanted.elements)

    def _frames(self, elements: int) -> int:
        return -(-elements // self._plan.values)

    def _parts(self, wanted: CallSpec) -> Ranges:
        """Return the shares of the ranks of each worker."""
        parts = []
        for ranks in self._here:
            shares = [wanted.share(rank, self._ranks) for rank in ranks]
            owned = [share for share in shares if share[0] < share[1]]
            parts.append((owned[0][0], owned[-1][1]) if owned else (0, 0))
        return tuple(parts)


def roots_of(plan: JobPlan, ranks: Sequence[str]) -> Roots | None:
    """Return the roots of a plan whose servers are its workers, else None.

    Also None where a host's ranks are not consecutive, so that their parts are several ranges, and
    with check lanes, which protect sums for all alone.
    """
    consecutive = len([*groupby(ranks)]) == len(set(ranks))
    if not plan.rooted or plan.integrity or not consecutive or len(plan.workers) < 2:
        return None
    return Roots(plan, ranks)
