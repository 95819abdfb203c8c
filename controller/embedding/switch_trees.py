"""Candidate trees of switches: shortest paths to a switch where they meet, from there to a server.

In a Clos network these are all the trees worth having; elsewhere they are a heuristic for the
Steiner tree that is cheapest under prices of links.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence

from collectives.algorithms.rooted import RootedTree
from collectives.network import Network, NetworkError
from controller.embedding.demand import DirectedLink

HOP = 1e-9
"""The price of a further link where links are free, in parts of the dearest one."""


class SwitchTrees:
    """The trees of one job. `servers`: hosts that may be the root."""

    def __init__(self, network: Network, workers: Sequence[str], servers: Sequence[str]) -> None:
        self._workers = tuple(workers)
        self._neighbours = {
            name: [peer for peer in network.ports(name).values() if peer in network.switches]
            for name in network.switches
        }
        self._access: dict[str, str] = {}
        for host in (*workers, *servers):
            try:
                at = network.access_switch(host)
            except NetworkError:
                continue
            if at in network.switches:
                self._access[host] = at
        self._possible = all(worker in self._access for worker in workers)
        self.servers = tuple(server for server in servers if server in self._access)

    def under(
        self, prices: Mapping[DirectedLink, float]
    ) -> Iterator[tuple[float, str, dict[str, str]]]:
        """For each centre and server the price of a tree that sums everywhere, root and parents.

        `prices` are those of a unit on a link; a link that is not listed is not to be used.
        """
        if not self._possible:
            return
        most = max(prices.values(), default=0.0) or 1.0
        cost = {
            (u, v): price + prices[v, u] + HOP * most
            for (u, v), price in prices.items()
            if (v, u) in prices
        }
        for centre in self._neighbours:
            before = self._paths_from(centre, cost)
            for server in self.servers:
                tree = self._tree(centre, before, server)
                if tree is not None and all(edge in cost for edge in tree.parents.items()):
                    price = sum(cost[edge] for edge in tree.parents.items())
                    yield price, server, dict(tree.parents)

    def _paths_from(
        self, centre: str, cost: Mapping[tuple[str, str], float]
    ) -> dict[str, str | None]:
        """For every switch the one before it on the cheapest path from the centre."""
        before: dict[str, str | None] = {}
        queue: list[tuple[float, int, str, str | None]] = [(0.0, 0, centre, None)]
        pushed = 0
        while queue:
            spent, _, node, previous = heapq.heappop(queue)
            if node in before:
                continue
            before[node] = previous
            for peer in self._neighbours[node]:
                if peer not in before and (node, peer) in cost:
                    pushed += 1
                    heapq.heappush(queue, (spent + cost[node, peer], pushed, peer, node))
        return before

    def _tree(
        self, centre: str, before: Mapping[str, str | None], server: str
    ) -> RootedTree | None:
        parents: dict[str, str] = {}
        for host in (server, *self._workers):
            node, previous = host, self._access[host]
            while previous not in parents and previous != centre:
                parents[node] = previous
                after = before.get(previous)
                if after is None:
                    return None
                node, previous = previous, after
            parents[node] = previous
        return RootedTree(centre, parents).rooted_at(server).pruned(self._workers)
