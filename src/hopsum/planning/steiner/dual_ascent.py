"""A lower bound on the length of Steiner trees of many terminals: dual ascent.

R. T. Wong, A dual ascent approach for Steiner tree problems on a directed graph, Mathematical
Programming 28, 1984. Any tree crosses every cut that separates a terminal from the roots; the duals
of such cuts are raised, which reduces the lengths of the arcs that cross them, until arcs of
reduced length 0 lead from every terminal to a root. The sum of the duals is a lower bound on the
length of every tree, no better than the bidirected cut's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hopsum.planning.steiner.steiner_tree import Arcs, Lengths


def dual_ascent_bound(
    arcs: Arcs, lengths: Lengths, terminals: Sequence[int], roots: Collection[int]
) -> int:
    """Return a lower bound on the length of trees that join the terminals to one of the roots.

    `lengths`: of the arcs, integers of 0 or more. All terminals must reach a root.
    """
    left = [int(length) for length in lengths]
    leaving: list[list[int]] = [[] for _ in range(arcs.nodes)]
    tails, heads = arcs.tails.tolist(), arcs.heads.tolist()
    for arc, tail in enumerate(tails):
        leaving[tail].append(arc)
    paid = 0
    waiting = list(terminals)
    while waiting:
        # The smallest cut first: it reduces the fewest arcs.
        cuts = [_reached(start, leaving, heads, left, roots) for start in waiting]
        ways = {start: cut for start, cut in zip(waiting, cuts, strict=True) if cut is not None}
        waiting = list(ways)
        if not waiting:
            break
        inside = min(ways.values(), key=len)
        out = [arc for node in inside for arc in leaving[node] if heads[arc] not in inside]
        least = min(left[arc] for arc in out)
        paid += least
        for arc in out:
            left[arc] -= least
    return paid


def _reached(
    start: int,
    leaving: Sequence[Sequence[int]],
    heads: Sequence[int],
    left: Sequence[int],
    roots: Collection[int],
) -> set[int] | None:
    """Return the nodes reached from a terminal over saturated arcs; None if a root is reached."""
    reached = {start}
    queue = [start]
    for node in queue:
        if node in roots:
            return None
        for arc in leaving[node]:
            if not left[arc] and heads[arc] not in reached:
                reached.add(heads[arc])
                queue.append(heads[arc])
    return reached
