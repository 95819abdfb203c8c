"""Minimum cuts with integer capacities, which are exact."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm

from hopsum.planning.model.graph import Edge, PlanningGraph


def integer_capacities(graph: PlanningGraph) -> tuple[dict[Edge, int], Fraction]:
    """Return capacities as integer multiples of a unit, and the unit (the largest possible)."""
    scale = lcm(*(capacity.denominator for capacity in graph.capacity.values()))
    whole = {edge: int(capacity * scale) for edge, capacity in graph.capacity.items()}
    divisor = gcd(*whole.values()) or 1
    return {edge: value // divisor for edge, value in whole.items()}, Fraction(divisor, scale)


@dataclass(frozen=True, slots=True)
class Cut:
    """The flow from the sources to a sink, and the cut that limits it.

    `near`: the smallest set of nodes around the sink with no more than `value` into it; `far`: the
    largest. Both are empty where the flow stopped at its limit.
    """

    value: int
    near: frozenset[int]
    far: frozenset[int]


class FlowNetwork:
    """A directed network of nodes 0..count-1, for minimum cuts."""

    def __init__(self, count: int) -> None:
        self._ends: list[int] = []
        self._capacity: list[int] = []
        self._arcs: list[list[int]] = [[] for _ in range(count)]

    def add(self, u: int, v: int, capacity: int, back: int = 0) -> None:
        """Add an arc u -> v, and the reverse arc."""
        self._arcs[u].append(len(self._ends))
        self._arcs[v].append(len(self._ends) + 1)
        self._ends += (v, u)
        self._capacity += (capacity, back)

    def minimum_cut(self, sources: Iterable[int], sink: int, limit: int) -> Cut:
        """Return the cut between a set of sources and a sink, if below `limit` (Dinic 1970)."""
        uncut = Cut(limit, frozenset(), frozenset())
        return next(self.nested_cuts(sources, sink, limit), uncut)

    def nested_cuts(self, sources: Iterable[int], sink: int, limit: int) -> Iterator[Cut]:
        """Yield arc-disjoint cuts below `limit` between a set of sources and a sink.

        Each is a minimum cut once the arcs into the sink's side of the previous ones have infinite
        capacity (Koch and Martin, Networks 32, 1998).
        """
        starts = frozenset(sources)
        residual = list(self._capacity)
        value = 0
        while value < limit:
            level = self._levels(residual, starts, sink)
            if all(level[start] < 0 for start in starts):
                far = self._reachable(residual, starts)
                near = frozenset(node for node, depth in enumerate(level) if depth >= 0)
                yield Cut(value, near, frozenset(range(len(level))) - far)
                for node in near:
                    for arc in self._arcs[node]:
                        if self._ends[arc] not in near:
                            residual[arc ^ 1] = limit
                continue
            turns = [0] * len(level)
            for start in starts:
                if level[start] > 0:
                    value += self._push(residual, level, turns, start, sink, limit - value)

    def _levels(self, residual: list[int], starts: frozenset[int], sink: int) -> list[int]:
        """Return distances to the sink in arcs; -1 if there is no path or a source is nearer."""
        level = [-1] * len(self._arcs)
        level[sink] = 0
        queue = [sink]
        for node in queue:
            if node in starts:
                break
            for arc in self._arcs[node]:
                peer = self._ends[arc]
                if level[peer] < 0 and residual[arc ^ 1]:
                    level[peer] = level[node] + 1
                    queue.append(peer)
        return level

    def _reachable(self, residual: list[int], starts: frozenset[int]) -> set[int]:
        reached = set(starts)
        queue = list(starts)
        for node in queue:
            for arc in self._arcs[node]:
                peer = self._ends[arc]
                if residual[arc] and peer not in reached:
                    reached.add(peer)
                    queue.append(peer)
        return reached

    def _push(
        self,
        residual: list[int],
        level: list[int],
        turns: list[int],
        start: int,
        sink: int,
        limit: int,
    ) -> int:
        """Find a blocking flow on the shortest paths from one source; return its value.

        At most `limit`. `turns[v]`: the first arc of v that may lead on.
        """
        pushed = 0
        path: list[int] = []
        node = start
        while pushed < limit:
            if node == sink:
                amount = min(limit - pushed, *(residual[arc] for arc in path))
                pushed += amount
                for arc in path:
                    residual[arc] -= amount
                    residual[arc ^ 1] += amount
                path.clear()
                node = start
                continue
            arcs, depth = self._arcs[node], level[node] - 1
            for turn in range(turns[node], len(arcs)):
                arc = arcs[turn]
                if residual[arc] and level[self._ends[arc]] == depth:
                    turns[node] = turn
                    path.append(arc)
                    node = self._ends[arc]
                    break
            else:
                if not path:
                    break
                node = self._ends[path.pop() ^ 1]
                turns[node] += 1
        return pushed
