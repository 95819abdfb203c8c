"""Candidate trees of switches: shortest paths to a common switch, and from there to a server.

In a Clos network these are all the useful trees; elsewhere they are a heuristic for the Steiner
tree that is cheapest under prices of links.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence

from hopsum.network.model import Network, NetworkError
from hopsum.planning.model.demand import DirectedLink

HOP = 1e-9
"""Price of a link that would be free, as a fraction of the highest price."""


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
    ) -> Iterator[tuple[float, str, frozenset[tuple[str, str]]]]:
        """Yield a tree's price, root and links between switches, for each centre and server.

        `prices`: of a unit on each link; links that are not listed are not used. The price assumes
        that every switch sums. Equal trees are yielded once.
        """
        if not self._possible:
            return
        most = max(prices.values(), default=0.0) or 1.0
        cost = {
            (u, v): price + prices[v, u] + HOP * most
            for (u, v), price in prices.items()
            if (v, u) in prices
        }
        if any((worker, self._access[worker]) not in cost for worker in self._workers):
            return
        attached = sum(cost[worker, self._access[worker]] for worker in self._workers)
        seen = set[tuple[str, frozenset[tuple[str, str]]]]()
        for centre in self._neighbours:
            before = self._paths_from(centre, cost)
            for server in self.servers:
                links = self._links(centre, before, self._access[server])
                if links is None or (server, self._access[server]) not in cost:
                    continue
                if (server, links) not in seen:
                    seen.add((server, links))
                    between = sum(cost[link] for link in links)
                    price = attached + cost[server, self._access[server]] + between
                    yield price, server, links

    def parents(self, server: str, links: frozenset[tuple[str, str]]) -> dict[str, str]:
        """Return the parent, towards the server, of every other node of a tree."""
        neighbours: dict[str, list[str]] = {}
        for u, v in sorted(links):
            neighbours.setdefault(u, []).append(v)
            neighbours.setdefault(v, []).append(u)
        parents = {self._access[server]: server}
        queue = [self._access[server]]
        for node in queue:
            for peer in neighbours.get(node, ()):
                if peer not in parents:
                    parents[peer] = node
                    queue.append(peer)
        return parents | {worker: self._access[worker] for worker in self._workers}

    def _paths_from(
        self, centre: str, cost: Mapping[tuple[str, str], float]
    ) -> dict[str, str | None]:
        """Return each switch's predecessor on the cheapest path from the centre."""
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

    def _links(
        self, centre: str, before: Mapping[str, str | None], root: str
    ) -> frozenset[tuple[str, str]] | None:
        """Return the links of the paths from the centre to all workers' switches and to `root`."""
        above: dict[str, str] = {}
        ends = {root, *(self._access[worker] for worker in self._workers)}
        for end in ends:
            node = end
            while node != centre and node not in above:
                after = before.get(node)
                if after is None:
                    return None
                above[node] = after
                node = after
        # The paths may all meet before the centre: links beyond that point are unused.
        below: dict[str, list[str]] = {}
        for node, parent in above.items():
            below.setdefault(parent, []).append(node)
        top = centre
        while top not in ends and len(below.get(top, ())) == 1:
            (lower,) = below[top]
            del above[lower]
            top = lower
        return frozenset((u, v) if u < v else (v, u) for u, v in above.items())
