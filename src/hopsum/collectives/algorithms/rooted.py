"""Rooted trees of named nodes: the topology of tree algorithms."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from hopsum.collectives.schedule import ScheduleError
from hopsum.network.model import Network, shorten
from hopsum.network.paths import PlainRoutes


@dataclass(frozen=True)
class RootedTree:
    """A tree. `parents`: every node but the root -> the next one towards it.

    Raises ScheduleError when that is no tree: a cycle, a parent that is not in it.
    """

    root: str
    parents: Mapping[str, str]

    def __post_init__(self) -> None:
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
                        f"tree: {way[-1]} hangs on {node}, which has no parent and is not the "
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
        # A frozen dataclass keeps what it had to work out anyway.
        object.__setattr__(self, "_depths", depths)

    @property
    def depths(self) -> dict[str, int]:
        """Every node -> edges to the root."""
        depths: dict[str, int] = self.__dict__["_depths"]
        return depths

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

    def pruned(self, keep: Iterable[str]) -> RootedTree:
        """Return the tree without branches that contain no node to keep; the root stays."""
        kept = set(keep)
        needed = {self.root}
        for node in self.upwards:
            if node in kept or any(child in needed for child in self.children[node]):
                needed.add(node)
        return RootedTree(
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


def heap_tree(names: Sequence[str], degree: int = 2) -> RootedTree:
    """Return a balanced tree: the parent of node i is (i - 1) // degree."""
    check_ranks(names)
    if degree < 1:
        raise ScheduleError(f"tree of degree {degree}: expected 1 or more")
    return RootedTree(names[0], {name: names[i // degree] for i, name in enumerate(names[1:])})


def network_tree(network: Network, ranks: Sequence[str], root: str | None = None) -> RootedTree:
    """Return the tree that plain packets from the ranks to `root` follow; ranks may be inner nodes.

    `root` None: the switch (where there is none, the rank) with the lowest such tree, the first of
    equals. Raises NetworkError where there is no way to `root`, ScheduleError for ranks that are no
    hosts, or without a switch (or rank) that all of them reach.
    """
    check_ranks(ranks)
    absent = [rank for rank in ranks if rank not in network.hosts]
    if absent:
        raise ScheduleError(f"{network.name}: there are no hosts {shorten(absent)}")
    routes = PlainRoutes(network)
    if root is None:
        root = _centre(network, ranks)
    parents: dict[str, str] = {}
    for rank in ranks:
        path = routes.path(rank, root)
        parents.update(pairwise(path))
    return RootedTree(root, parents)


def _centre(network: Network, ranks: Sequence[str]) -> str:
    """Return the switch, or rank, whose farthest rank is nearest."""
    neighbours: dict[str, list[str]] = {name: [] for name in (*network.hosts, *network.switches)}
    for link in network.links:
        neighbours[link.a].append(link.b)
        neighbours[link.b].append(link.a)
    farthest = dict.fromkeys(network.switches or ranks, 0)
    reached = dict.fromkeys(farthest, 0)
    for rank in ranks:
        distance = {rank: 0}
        queue = deque([rank])
        while queue:
            node = queue.popleft()
            if node != rank and network.switches and node in network.hosts:
                continue
            for neighbour in neighbours[node]:
                if neighbour not in distance:
                    distance[neighbour] = distance[node] + 1
                    queue.append(neighbour)
        for node in farthest:
            if node in distance:
                reached[node] += 1
                farthest[node] = max(farthest[node], distance[node])
    everywhere = [node for node in farthest if reached[node] == len(ranks)]
    if not everywhere:
        raise ScheduleError(f"{network.name}: ranks {shorten(ranks)} are not connected")
    return min(everywhere, key=lambda node: farthest[node])
