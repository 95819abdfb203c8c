"""A balanced tree of processes: low, of bounded fan-out, near neighbours ([004 claims 1-3][004]).

Processes are ordered so that close ones are next to each other, and every subtree is a piece of
that order: cuts fall where the physical distance jumps. Racks and pods thus become subtrees, and
few edges cross between them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hopsum.coordination.failure import TreeError
from hopsum.network.model import shorten

Distances = NDArray[np.int64]
"""(processes, processes), symmetric, 0 on the diagonal: links between two processes."""

DEFAULT_FAN_OUT = 4
_ROOTS_TRIED = 8


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """Limits of a coordination tree ([004 claims 2 and 3][004]).

    `fan_out`: the most children of a process. `height`: the most edges from a process to the root,
    None: the least possible. `distance`: neighbours of the tree are *less* than this many links
    apart, None: any.
    """

    fan_out: int = DEFAULT_FAN_OUT
    height: int | None = None
    distance: int | None = None


DEFAULT_LIMITS = TreeLimits()


@dataclass(frozen=True)
class CoordinationTree:
    """Processes by rank, and their parents.

    `names`: by rank; `parents`: by rank, -1 at the root; `ring`: all ranks in the order of the
    virtual ring, or empty where the physical topology has none ([004 claim 11][004]).
    """

    names: tuple[str, ...]
    parents: tuple[int, ...]
    ring: tuple[int, ...] = ()

    @cached_property
    def root(self) -> int:
        """The rank of the master controller's process."""
        return self.parents.index(-1)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """By rank."""
        lists: list[list[int]] = [[] for _ in self.names]
        for rank, parent in enumerate(self.parents):
            if parent >= 0:
                lists[parent].append(rank)
        return tuple(map(tuple, lists))

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Edges from each rank to the root."""
        depths = [0] * len(self.names)
        order = [self.root]
        for rank in order:
            for child in self.children[rank]:
                depths[child] = depths[rank] + 1
                order.append(child)
        return tuple(depths)

    @property
    def height(self) -> int:
        """Edges from the farthest process to the root."""
        return max(self.depths)

    @property
    def fan_out(self) -> int:
        """The most children of any process."""
        return max(map(len, self.children))

    @cached_property
    def digest(self) -> str:
        """A short fingerprint, by which processes started for different trees detect it at once."""
        text = repr((self.names, self.parents, self.ring))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def reach(self, distances: Distances) -> int:
        """Return the largest physical distance between neighbours of the tree."""
        return max((int(distances[e]) for e in enumerate(self.parents) if e[1] >= 0), default=0)

    def total(self, distances: Distances) -> int:
        """Return the sum of the physical distances along the edges."""
        return sum(int(distances[e]) for e in enumerate(self.parents) if e[1] >= 0)


def capacity(fan_out: int, height: int) -> int:
    """Return the maximum number of processes in a tree of this fan-out and height."""
    return sum(fan_out**level for level in range(height + 1))


def least_height(processes: int, fan_out: int) -> int:
    """Return the least height of a tree with this fan-out that holds all processes."""
    height = 0
    while capacity(fan_out, height) < processes:
        height += 1
    return height


def balanced_tree(
    names: Sequence[str],
    distances: Distances | None = None,
    *,
    fan_out: int = DEFAULT_FAN_OUT,
    height: int | None = None,
    distance: int | None = None,
) -> CoordinationTree:
    """Build the tree over all processes.

    `distances`: physical, in links; None: none is known, and the order of names stands for it.
    `fan_out`, `height`, `distance`: as of `TreeLimits`. The first tree within `distance` wins, of
    ever greater heights. Raises TreeError for names that occur twice and for limits that no tree
    was found for; deciding whether one exists is NP-hard (a Hamiltonian path is the case of fan-out
    1), so a distance near the limit may be refused although a tree exists.
    """
    _check(names, fan_out, distance)
    least = least_height(len(names), fan_out)
    most = least if height is None else height
    if least > most:
        raise TreeError(
            f"{len(names)} processes: a tree of fan-out {fan_out} and height {most} holds only "
            f"{capacity(fan_out, most)}; allow a height of {least} or a larger fan-out"
        )
    if distances is None:
        gaps = np.zeros(max(0, len(names) - 1), dtype=np.int64)
        return _Pieces(fan_out, None).tree(names, list(range(len(names))), gaps, least)
    order, gaps = locality_order(distances)
    # A path is the highest tree.
    tallest = min(most, max(least, len(names) - 1))
    best: CoordinationTree | None = None
    for allowed in _heights(least, tallest):
        tree = _Pieces(fan_out, distances).tree(names, order, gaps, allowed)
        if distance is None or tree.reach(distances) < distance:
            return tree
        if best is None or tree.reach(distances) < best.reach(distances):
            best = tree
    assert best is not None and distance is not None
    grown = _by_levels(names, distances, fan_out, tallest, distance)
    if grown is not None:
        return grown
    raise TreeError(
        f"no tree found over {len(names)} processes with fan-out {fan_out}, height {most} and "
        f"neighbours less than {distance} links apart; a distance of "
        f"{best.reach(distances) + 1} works, or allow more height or fan-out"
    )


def _heights(least: int, most: int) -> Iterator[int]:
    """Yield heights to try, in ever larger steps: a try may take a second."""
    height, step = least, 1
    while height < most:
        yield height
        height, step = height + step, 2 * step
    yield most


def _check(names: Sequence[str], fan_out: int, distance: int | None) -> None:
    if not names:
        raise TreeError("no processes: expected at least one")
    if fan_out < 2:
        raise TreeError(f"fan-out {fan_out}: expected 2 or more")
    if distance is not None and distance < 1:
        raise TreeError(f"distance {distance}: expected 1 link or more")
    if len(set(names)) < len(names):
        seen: set[str] = set()
        twice = [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
        raise TreeError(
            f"several processes are called {shorten(dict.fromkeys(twice))}; expected one name each"
        )


def locality_order(distances: Distances) -> tuple[list[int], NDArray[np.int64]]:
    """Return ranks ordered by proximity, and the gaps between successive ones.

    The leaves of an average-linkage dendrogram: every cluster is contiguous. A gap is the distance
    at which the two sides of a border join, times 1000. O(n^2).
    """
    from scipy.cluster.hierarchy import cophenet, leaves_list, linkage
    from scipy.spatial.distance import squareform

    count = len(distances)
    if count < 2:
        return list(range(count)), np.zeros(0, dtype=np.int64)
    joined = linkage(squareform(distances.astype(float), checks=False), "average")
    order = leaves_list(joined)
    height = squareform(cophenet(joined))[order[:-1], order[1:]]
    return [int(rank) for rank in order], np.rint(height * 1000).astype(np.int64)


class _Pieces:
    """Cut an order of ranks into subtrees, from the root down."""

    def __init__(self, fan_out: int, distances: Distances | None) -> None:
        self._fan_out = fan_out
        self._distances = distances

    def tree(
        self, names: Sequence[str], order: list[int], gaps: NDArray[np.int64], height: int
    ) -> CoordinationTree:
        """Return the tree over all of `order`."""
        parents = [-1] * len(order)
        self._attach(parents, order, gaps, height, -1)
        return CoordinationTree(tuple(names), tuple(parents))

    def _attach(
        self,
        parents: list[int],
        piece: list[int],
        gaps: NDArray[np.int64],
        height: int,
        parent: int,
    ) -> None:
        at = self._head(piece, parent)
        head = piece[at]
        parents[head] = parent
        rest = piece[:at] + piece[at + 1 :]
        if not rest:
            return
        if 0 < at < len(piece) - 1:
            # Taking the head out joins the gaps on its two sides.
            gaps = np.concatenate((gaps[: at - 1], [max(gaps[at - 1], gaps[at])], gaps[at + 1 :]))
        else:
            gaps = gaps[1:] if at == 0 else gaps[:-1]
        near = gaps[:0] if self._distances is None else 1000 * self._distances[head, rest]
        cuts = _cuts(gaps, near, self._fan_out, capacity(self._fan_out, height - 1))
        for start, stop in zip([0, *cuts], [*cuts, len(rest)], strict=True):
            self._attach(parents, rest[start:stop], gaps[start : stop - 1], height - 1, head)

    def _head(self, piece: list[int], parent: int) -> int:
        """Return the place of the process that heads a piece: near the parent, then central."""
        if self._distances is None or len(piece) == 1:
            return 0
        inside = self._distances[np.ix_(piece, piece)]
        near = inside.max(axis=1) if parent < 0 else self._distances[parent, piece]
        return int(np.lexsort((inside.sum(axis=1), near))[0])


def _cuts(gaps: NDArray[np.int64], near: NDArray[np.int64], parts: int, most: int) -> list[int]:
    """Return where to cut len(gaps) + 1 items into `parts` pieces of at most `most`, or all apart.

    A piece costs an edge of the length from its nearest item to the head (`near`); a cut saves the
    edge across the gap inside a piece. Minimizes the sum; among equal ones the sizes are most even.
    Without distances: the most even sizes. O(parts * n * most).
    """
    count = len(gaps) + 1
    if count <= parts or most == 1:
        return list(range(1, count))
    if not len(near):
        return [count * part // parts for part in range(1, parts)]
    saved = np.concatenate(([0], gaps))
    low = np.iinfo(np.int64).min // 4
    best = np.full(count + 1, low)
    best[0] = 0
    came: list[NDArray[np.int64]] = []
    for _ in range(parts):
        after = np.full(count + 1, low)
        source = np.zeros(count + 1, dtype=np.int64)
        for stop in range(1, count + 1):
            start = max(0, stop - most)
            sizes = np.arange(stop - start, 0, -1)
            edges = np.minimum.accumulate(near[start:stop][::-1])[::-1]
            gain = (saved[start:stop] - edges) * (count * count + 1) - sizes * sizes
            values = best[start:stop] + gain
            pick = int(values.argmax())
            after[stop], source[stop] = values[pick], start + pick
        came.append(source)
        best = after
    cuts: list[int] = []
    stop = count
    for source in reversed(came):
        stop = int(source[stop])
        cuts.append(stop)
    return cuts[-2::-1]


def _by_levels(
    names: Sequence[str], distances: Distances, fan_out: int, height: int, distance: int
) -> CoordinationTree | None:
    """Grow a tree by levels over pairs within the distance, with as many in each as possible."""
    central = np.lexsort((distances.sum(axis=1), distances.max(axis=1)))
    for root in central[:_ROOTS_TRIED]:
        parents = _levels_from(int(root), distances < distance, fan_out, height)
        if parents is not None:
            return CoordinationTree(tuple(names), parents)
    return None


def _levels_from(
    root: int, near: NDArray[np.bool_], fan_out: int, height: int
) -> tuple[int, ...] | None:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    parents = np.full(len(near), -1)
    outside = np.delete(np.arange(len(near)), root)
    level = np.array([root])
    for _ in range(height):
        if not len(outside) or not len(level):
            break
        reached = near[np.ix_(level, outside)].sum(axis=1)
        places = np.repeat(level, np.minimum(reached, fan_out))
        edges = csr_array(near[np.ix_(outside, places)])
        chosen = maximum_bipartite_matching(edges, perm_type="column")
        taken = chosen >= 0
        parents[outside[taken]] = places[chosen[taken]]
        level, outside = outside[taken], outside[~taken]
    return None if len(outside) else tuple(int(parent) for parent in parents)
