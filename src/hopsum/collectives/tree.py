"""Trees of named nodes: what planners, plans of hosts and schedules have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from hopsum.collectives.schedule import ScheduleError
from hopsum.network.model import shorten


@dataclass(frozen=True)
class Tree:
    """A rooted tree of named nodes. `parents`: every node but the root -> the next one towards it.

    Raises ScheduleError when that is no tree: a cycle, a parent that is not in it.
    """

    root: str
    parents: Mapping[str, str]

    def __post_init__(self) -> None:
        _ = self.depths

    @cached_property
    def depths(self) -> dict[str, int]:
        """Every node -> edges to the root. Raises ScheduleError when this is no tree."""
        if self.root in self.parents:
            raise ScheduleError(
                f"tree: its root {self.root} has a parent, {self.parents[self.root]}; expected none"
            )
        depths = {self.root: 0}
        for node in self.parents:
            way: list[str] = []
            while node not in depths:
                if node not in self.parents:
                    raise ScheduleError(
                        f"tree: {way[-1]} is below {node}, which has no parent and is not the "
                        f"root {self.root}; expected one tree"
                    )
                way.append(node)
                node = self.parents[node]
                if node in way:
                    circle = way[way.index(node) :]
                    raise ScheduleError(
                        f"tree: a cycle {shorten([*circle, node])}; expected every node to lead "
                        f"to the root {self.root}"
                    )
            for above, each in enumerate(reversed(way), depths[node] + 1):
                depths[each] = above
        return depths

    @property
    def height(self) -> int:
        """Edges from the farthest node to the root."""
        return max(self.depths.values())

    @property
    def nodes(self) -> tuple[str, ...]:
        """The root and all nodes under it."""
        return (self.root, *self.parents)

    @cached_property
    def children(self) -> dict[str, tuple[str, ...]]:
        """Every node -> its children, in the order of `parents`."""
        children: dict[str, list[str]] = {node: [] for node in self.nodes}
        for node, parent in self.parents.items():
            children[parent].append(node)
        return {node: tuple(below) for node, below in children.items()}

    @cached_property
    def upwards(self) -> tuple[str, ...]:
        """All nodes, children before parents."""
        return tuple(sorted(self.nodes, key=lambda node: -self.depths[node]))

    @cached_property
    def heights(self) -> dict[str, int]:
        """Every node -> edges to the farthest leaf under it."""
        heights = dict.fromkeys(self.nodes, 0)
        for node in self.upwards:
            if node != self.root:
                parent = self.parents[node]
                heights[parent] = max(heights[parent], heights[node] + 1)
        return heights

    def check_ranks(self, ranks: Sequence[str]) -> None:
        """Raise ScheduleError for no ranks, one listed twice, or one that is not in the tree."""
        check_ranks(ranks)
        absent = [rank for rank in ranks if rank not in self.depths]
        if absent:
            raise ScheduleError(
                f"tree rooted at {self.root}: ranks {shorten(absent)} are not connected to it"
            )

    def pruned(self, keep: Iterable[str]) -> Tree:
        """Return the tree without branches that contain no node to keep; the root stays."""
        kept = set(keep)
        needed = {self.root}
        for node in self.upwards:
            if node in kept or any(child in needed for child in self.children[node]):
                needed.add(node)
        return Tree(
            self.root, {node: parent for node, parent in self.parents.items() if node in needed}
        )


def check_ranks(ranks: Sequence[str]) -> None:
    """Raise ScheduleError for no ranks or one listed twice."""
    if not ranks:
        raise ScheduleError("no ranks: expected at least one")
    twice = (
        {rank for rank in ranks if ranks.count(rank) > 1} if len(set(ranks)) < len(ranks) else ()
    )
    if twice:
        raise ScheduleError(f"ranks {shorten(sorted(twice))} are listed more than once")
