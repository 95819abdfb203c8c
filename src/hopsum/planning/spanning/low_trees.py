"""Short spanning trees within limits on height: in edges, in latency, or both.

The shortest such tree is NP-hard to find. This heuristic roots a minimum spanning tree; nodes that
are too deep take their shortest path to the root instead, as in the balanced trees of Khuller,
Raghavachari and Young (Algorithmica 1995); then nodes move below nearer neighbours while the limits
hold.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from hopsum.planning.spanning.spanning_trees import Lengths, Limits, NumberedGraph, Tree

_INFINITE = float("inf")


class LowTrees:
    """Finds short trees within limits; `roots` are the nodes that have such trees."""

    def __init__(
        self,
        numbered: NumberedGraph,
        limits: Limits,
        roots: Sequence[int],
        usable: Sequence[bool],
    ) -> None:
        self.numbered = numbered
        self.limits = limits
        self._blocked = np.array([not use for use in usable])
        self._ways: dict[int, list[tuple[int, int]]] = {}
        """Root -> by node: (edge, next node) of its shortest path to the root."""
        for root in roots:
            for weights in (numbered.hops, numbered.delay):
                ways = self._shortest_ways(root, weights, usable)
                if self._fits(self._heights(ways, root)):
                    self._ways[root] = ways
                    break

    @property
    def roots(self) -> list[int]:
        """Return the roots at which a tree within the limits was found."""
        return list(self._ways)

    def short_tree(self, lengths: Lengths, root: int) -> Tree:
        """Return a short tree within the limits, from one of `roots`; lengths are 0 or more."""
        blocked = float(lengths.sum()) + 1.0
        lengths = np.where(self._blocked, blocked, lengths)
        ways = self._ways[root]
        above = [(-1, -1)] * self.numbered.size
        for edge, parent, child in self.numbered.order(
            self.numbered.minimum_tree(lengths).tolist(), root
        ):
            above[child] = (edge, parent)
        self._shorten(above, ways, root)
        if not self._fits(self._heights(above, root)):
            above = list(ways)
        self._improve(above, lengths.tolist(), root)
        return tuple(sorted(edge for edge, _ in above if edge >= 0))

    def _shortest_ways(
        self, root: int, weights: Sequence[int], usable: Sequence[bool]
    ) -> list[tuple[int, int]]:
        """Return shortest paths by `weights`; of equal ones those least in the other weight."""
        numbered = self.numbered
        others = numbered.delay if weights is numbered.hops else numbered.hops
        ways = [(-1, -1)] * numbered.size
        distance: dict[int, tuple[int, int]] = {root: (0, 0)}
        heap = [(0, 0, root)]
        while heap:
            first, second, node = heapq.heappop(heap)
            if distance[node] < (first, second):
                continue
            for edge, peer in numbered.links[node]:
                reached = (first + weights[edge], second + others[edge])
                if usable[edge] and (peer not in distance or reached < distance[peer]):
                    distance[peer] = reached
                    ways[peer] = (edge, node)
                    heapq.heappush(heap, (*reached, peer))
        return ways

    @staticmethod
    def _leads_to(ways: Sequence[tuple[int, int]], node: int, goal: int) -> bool:
        while node >= 0 and node != goal:
            node = ways[node][1]
        return node == goal

    def _shorten(
        self, above: list[tuple[int, int]], ways: Sequence[tuple[int, int]], root: int
    ) -> None:
        """Move nodes that are too deep to their shortest path, from the root downwards."""
        numbered, limits = self.numbered, self.limits
        height: list[float] = [_INFINITE] * numbered.size
        delay: list[float] = [_INFINITE] * numbered.size
        height[root] = delay[root] = 0
        for edge, parent, child in numbered.order([e for e, _ in above if e >= 0], root):
            if height[parent] + 1 <= height[child]:
                height[child] = height[parent] + 1
                delay[child] = delay[parent] + numbered.delay[edge]
                above[child] = (edge, parent)
            if (limits.height is None or height[child] <= limits.height) and (
                limits.delay is None or delay[child] <= limits.delay
            ):
                continue
            path = [child]
            while path[-1] != root:
                path.append(ways[path[-1]][1])
            for near, far in zip(path[:0:-1], path[-2::-1], strict=True):
                step = numbered.delay[ways[far][0]]
                if (height[near] + 1, delay[near] + step) != (height[far], delay[far]):
                    above[far] = ways[far]
                    height[far], delay[far] = height[near] + 1, delay[near] + step

    def _heights(
        self, above: Sequence[tuple[int, int]], root: int
    ) -> tuple[list[int], list[int]] | None:
        """Return edges and picoseconds from each node to the root; None if one is unconnected."""
        heights, delays = [-1] * len(above), [0] * len(above)
        heights[root] = 0
        for node in range(len(above)):
            path: list[int] = []
            while node >= 0 and heights[node] < 0 and len(path) <= len(above):
                path.append(node)
                node = above[node][1]
            if node < 0 or heights[node] < 0:
                return None
            for step in reversed(path):
                edge, parent = above[step]
                heights[step] = heights[parent] + 1
                delays[step] = delays[parent] + self.numbered.delay[edge]
        return heights, delays

    def _fits(self, found: tuple[list[int], list[int]] | None) -> bool:
        if found is None:
            return False
        heights, delays = found
        return (self.limits.height is None or max(heights) <= self.limits.height) and (
            self.limits.delay is None or max(delays) <= self.limits.delay
        )

    def _improve(self, above: list[tuple[int, int]], lengths: Sequence[float], root: int) -> None:
        """Move nodes, the one with the longest edge first, below neighbours over shorter edges."""
        for _ in range(2 * len(above)):
            found = self._heights(above, root)
            assert found is not None
            if not self._move(above, lengths, root, *found):
                return

    def _move(
        self,
        above: list[tuple[int, int]],
        lengths: Sequence[float],
        root: int,
        heights: Sequence[int],
        delays: Sequence[int],
    ) -> bool:
        lowest, slowest = list(heights), list(delays)
        for node in sorted(range(len(above)), key=lambda node: -heights[node]):
            parent = above[node][1]
            if parent >= 0:
                lowest[parent] = max(lowest[parent], lowest[node])
                slowest[parent] = max(slowest[parent], slowest[node])
        nodes = [node for node in range(len(above)) if node != root]
        for node in sorted(nodes, key=lambda node: (-lengths[above[node][0]], node)):
            now = lengths[above[node][0]]
            shorter = [(lengths[e], e, peer) for e, peer in self.numbered.links[node]]
            for length, edge, peer in sorted(entry for entry in shorter if entry[0] < now):
                if length >= now - 1e-12:
                    break
                lower = heights[peer] + 1 - heights[node]
                later = delays[peer] + self.numbered.delay[edge] - delays[node]
                fits = (
                    self.limits.height is None or lowest[node] + lower <= self.limits.height
                ) and (self.limits.delay is None or slowest[node] + later <= self.limits.delay)
                if fits and not self._leads_to(above, peer, node):
                    above[node] = (edge, peer)
                    return True
        return False
