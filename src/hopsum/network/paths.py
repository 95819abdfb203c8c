"""Shortest paths for plain traffic: deterministic; hosts forward only if there is no switch.

Routes are by destination and spread over equal paths. Number a network's nodes from 0, hosts first,
in the order of the network, and the shortest paths between two nodes from 0 in dictionary order,
where a node's links have the order of the network's. Then packets to node d take, of P shortest
paths from where they are, number d mod P. In a leaf-spine of S spines that is spine d mod S for a
host of another rack; in a fat-tree of K, core switch d mod K^2 / 4 for a host of another pod, and
aggregation switch d mod K / 2 for one of the same pod.

All packets to one destination follow one tree, so there are no loops, and a flow's packets keep
their order. Flows to one host share their path: a hash of the flow would need P4 support.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache

from hopsum.network.model import Network, NetworkError

MANY_PATHS = 1 << 31
"""Paths are counted up to this number: a grid has exponentially many."""


def forwards(network: Network, node: str) -> bool:
    """Return whether a node forwards others' packets: a switch, or a host without switches."""
    return node in network.switches or not network.switches


@lru_cache(maxsize=4096)
def _next_hops(
    neighbours: tuple[tuple[int, ...], ...], forwarding: tuple[bool, ...], destination: int
) -> tuple[int, ...]:
    """Return each node's next one towards the destination (-1: none), by breadth-first search."""
    towards = [-1] * len(neighbours)
    distance = [-1] * len(neighbours)
    paths = [0] * len(neighbours)
    towards[destination], distance[destination], paths[destination] = destination, 0, 1
    queue = deque([destination])
    while queue:
        node = queue.popleft()
        if node != destination:
            # Everything nearer has been counted.
            nearer = [hop for hop in neighbours[node] if 0 <= distance[hop] < distance[node]]
            nearer = [hop for hop in nearer if hop == destination or forwarding[hop]]
            paths[node] = min(MANY_PATHS, sum(paths[hop] for hop in nearer))
            number = destination % paths[node]
            for hop in nearer:
                if number < paths[hop]:
                    towards[node] = hop
                    break
                number -= paths[hop]
            if not forwarding[node]:
                continue
        for neighbour in neighbours[node]:
            if distance[neighbour] < 0:
                distance[neighbour] = distance[node] + 1
                queue.append(neighbour)
    return tuple(towards)


class PlainRoutes:
    """Next hops of plain packets in a network: fewest links, spread over equal paths."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._names = [*network.hosts, *network.switches]
        self._number = {name: i for i, name in enumerate(self._names)}
        lists: list[list[int]] = [[] for _ in self._names]
        for link in network.links:
            lists[self._number[link.a]].append(self._number[link.b])
            lists[self._number[link.b]].append(self._number[link.a])
        self._neighbours = tuple(tuple(numbers) for numbers in lists)
        self._forwarding = tuple(forwards(network, name) for name in self._names)

    def next_hops(self, destination: str) -> dict[str, str]:
        """Return the next node towards `destination` from every other node."""
        hops = _next_hops(self._neighbours, self._forwarding, self._number[destination])
        return {
            name: self._names[hop]
            for name, hop in zip(self._names, hops, strict=True)
            if hop >= 0 and name != destination
        }

    def path(self, source: str, destination: str) -> list[str]:
        """Return the nodes from source to destination, both included.

        NetworkError if there is no way.
        """
        for name in (source, destination):
            if name not in self._number:
                raise NetworkError(f"there is no node {name!r} in {self._network.name}")
        hops = _next_hops(self._neighbours, self._forwarding, self._number[destination])
        path = [self._number[source]]
        while path[-1] != self._number[destination]:
            if hops[path[-1]] < 0:
                raise NetworkError(f"no path from {source} to {destination}")
            path.append(hops[path[-1]])
        return [self._names[i] for i in path]


def spanning_tree(network: Network) -> set[frozenset[str]]:
    """Return the links of a breadth-first spanning tree from the first switch, or host."""
    roots = [*network.switches, *network.hosts]
    hops = PlainRoutes(network).next_hops(roots[0]) if roots else {}
    return {frozenset(pair) for pair in hops.items()}
