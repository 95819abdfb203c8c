"""Find a ring among the attachment points of hosts ([004 claim 11][004])."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx

from hopsum.network.model import Network

_STARTS = 16
_STEPS = 5_000
"""Number of starting points of the search for a ring, and of steps for each."""


def virtual_ring(network: Network, hosts: Sequence[str]) -> tuple[int, ...]:
    """Return the processes in the order of the physical ring, if there is one, else an empty tuple.

    `hosts`: where each process runs. [004 claim 11][004] asks whether the physical topology has a
    ring; we take that as a cycle of links through every point where a process's host is attached
    (the host itself if it has links to other hosts, else its switch) and through nothing else, so
    that neighbours on the virtual ring are at most one link further apart than on one switch.
    Finding one is NP-hard: a ring that the bounded search misses is no ring, and the tree serves.
    """
    points: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        neighbours = list(network.ports(host).values())
        direct = len(neighbours) != 1 or neighbours[0] in network.hosts
        points.setdefault(host if direct else neighbours[0], []).append(rank)
    graph = network.graph.subgraph(points)
    if len(points) < 3 or min(dict(graph.degree).values()) < 2 or not nx.is_biconnected(graph):
        return ()
    if nx.is_bipartite(graph):
        one, other = nx.bipartite.sets(graph)
        if len(one) != len(other):
            return ()
    starts = sorted(points)[:: max(1, len(points) // _STARTS)]
    order: list[str] = next(filter(None, (_cycle_through(graph, start) for start in starts)), [])
    return tuple(
        rank for point in order for rank in sorted(points[point], key=lambda r: (hosts[r], r))
    )


def _cycle_through(graph: nx.Graph[str], start: str) -> list[str]:
    """Return a Hamiltonian cycle from `start`, if found.

    A path is extended where choices are fewest. At a dead end the path is turned round behind a
    neighbour of its end (Pósa's rotation), which makes another end.
    """
    ways = {node: sorted(graph[node]) for node in graph}
    path, places = [start], {start: 0}
    for step in range(_STEPS):
        end = path[-1]
        free = [node for node in ways[end] if node not in places]
        if free:
            node = min(free, key=lambda n: (sum(m not in places for m in ways[n]), n))
            places[node] = len(path)
            path.append(node)
            continue
        if len(path) == len(ways) and start in ways[end]:
            return path
        pivots = [node for node in ways[end] if places[node] < len(path) - 2]
        if not pivots:
            return []
        pivot = places[pivots[(step * 2654435761 >> 8) % len(pivots)]]
        path[pivot + 1 :] = path[:pivot:-1]
        places.update((path[i], i) for i in range(pivot + 1, len(path)))
    return []
