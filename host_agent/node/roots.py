"""Calls whose results, or values, are those of one rank: over the trees rooted at the ranks' hosts.

A job whose servers are its workers has a tree with its root at each of them. Over these a sum goes
to the hosts that it is for alone, and what is copied from one host to the others. With one set of
trees the two follow each other on a tree; a second set, for what is copied, lets them go on at
once, and a last tree is for checks and other tensors of one fragment, which wait for neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from collectives.operation import Ranges
from collectives.plan import JobPlan
from host_agent.io.process_socket import ALL
from host_agent.node.calls import COPY, Wanted
from protocol.wire import Reduction, frame_bytes


class Way(NamedTuple):
    """How a tensor is submitted: see `Named`."""

    reduction: Reduction | None = None
    ranges: Ranges | None = None


class Roots:
    """The trees of `plan` for the parts of `ranks`, the host of each; see `roots_of`."""

    def __init__(self, plan: JobPlan, ranks: Sequence[str]) -> None:
        self._here = [
            [rank for rank, host in enumerate(ranks) if host == worker] for worker in plan.workers
        ]
        """Ranks of each worker's host."""
        self._ranks = len(ranks)
        self._lanes = plan.values
        self._trees = len(plan.trees)
        workers = len(plan.workers)
        self._copies_from = workers if self._trees >= 2 * workers else 0
        """First tree of those for copies."""
        self._apart = self._trees > 2 * workers
        """Whether the last tree is for short tensors that all get."""
        self._bare = frame_bytes(0, 1) / frame_bytes(plan.lanes, 1)
        """Length of a frame without lanes, in frames with lanes."""

    def way(self, wanted: Wanted, elements: int) -> Way:
        """Return how a call is submitted, the same at all hosts.

        `elements`: of the tensor, which may be for several calls for all.
        """
        if wanted.code == COPY:
            return Way(Reduction.BROADCAST, self._ranges(wanted, self._copies_from))
        if self.splits(wanted):
            reduction = wanted.reduction or Reduction.SUM
            return Way(reduction.to_root, self._ranges(wanted, 0))
        return self.for_all(wanted.reduction, elements)

    def for_all(self, reduction: Reduction | None, elements: int) -> Way:
        """Return how a tensor is submitted that all get."""
        if not self._apart or elements > self._lanes:
            return Way(reduction)
        return Way(reduction, [*[(0, 0)] * (self._trees - 1), (0, elements)])

    def splits(self, wanted: Wanted) -> bool:
        """Return whether a sum goes only to those that it is for.

        If that costs a host's link, both ways, fewer bytes than a sum for all. The latter is
        divided among the trees by whole fragments, and so has fewer of them where parts are short.
        """
        if wanted.target == ALL:
            return False
        frames = sum(self._frames(stop - start) for start, stop in self._ranges(wanted, 0))
        return frames * (1 + self._bare) < 2 * self._frames(wanted.elements)

    def _frames(self, elements: int) -> int:
        return -(-elements // self._lanes)

    def _ranges(self, wanted: Wanted, first: int) -> Ranges:
        """Return the shares of the ranks of each worker; `first`: of the trees with these roots."""
        ranges = [(0, 0)] * self._trees
        for place, ranks in enumerate(self._here, first):
            shares = [wanted.share(rank, self._ranks) for rank in ranks]
            owned = [share for share in shares if share[0] < share[1]]
            if owned:
                ranges[place] = owned[0][0], owned[-1][1]
        return ranges


def roots_of(plan: JobPlan, ranks: Sequence[str]) -> Roots | None:
    """Return the roots of a plan whose servers are its workers, else None.

    Also None where a host's ranks are not consecutive, so that their parts are several ranges, and
    with check lanes, which protect sums for all alone.
    """
    consecutive = len([*groupby(ranks)]) == len(set(ranks))
    if not plan.rooted or plan.integrity or not consecutive or len(plan.workers) < 2:
        return None
    return Roots(plan, ranks)
