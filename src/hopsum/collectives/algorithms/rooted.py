"""Trees for tree algorithms: balanced ones, and those that plain packets follow."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise

from hopsum.collectives.schedule import ScheduleError
from hopsum.collectives.tree import Tree, check_ranks
from hopsum.network.model import Network, shorten
from hopsum.network.paths import PlainRoutes


def heap_tree(names: Sequence[str], degree: int = 2) -> Tree:
    """Return a balanced tree: the parent of node i is (i - 1) // degree."""
    check_ranks(names)
    if degree < 1:
        raise ScheduleError(f"tree of degree {degree}: expected 1 or more")
    return Tree(names[0], {name: names[i // degree] for i, name in enumerate(names[1:])})


def network_tree(network: Network, ranks: Sequence[str], root: str | None = None) -> Tree:
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
    return Tree(root, parents)


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
