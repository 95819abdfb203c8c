"""Routes of plain traffic as arrays, for thousands of hosts at once.

The same paths as `hopsum.network.paths.PlainRoutes`: fewest links, spread over equal paths by the
destination's number. A host with one link hangs below the node at its other end, so one search
serves all hosts there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hopsum.network.model import Network, NetworkError
from hopsum.network.paths import MANY_PATHS, forwards
from hopsum.timing.flows import Routes
from hopsum.timing.max_min import Floats, Integers, Usage
from hopsum.timing.tcp_segments import SEGMENT_BYTES, SEGMENT_HEADER_BYTES


@dataclass(frozen=True, slots=True)
class Framing:
    """Framing of data on a link.

    A packet carries `payload` bytes of data and `header` more; per byte of data the other way
    carries `answer` bytes (acknowledgements).
    """

    payload: int
    header: int
    answer: float

    @property
    def packet(self) -> int:
        """Bytes of a full packet."""
        return self.payload + self.header


TCP = Framing(SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES / 2 / SEGMENT_BYTES)
"""Full segments, and an acknowledgement for every two."""


@dataclass(frozen=True, slots=True)
class _PathTree:
    """Shortest paths from all nodes to a root.

    `links`: those that lead nearer to the root, in order of the nodes they leave. `counts`
    (nodes,): each node's number of shortest paths. `before` (nodes,) and `upto` (links,) are
    cumulative numbers of paths in that order: of the nodes before, and up to and including each
    link.
    """

    links: Integers
    before: Integers
    upto: Integers
    counts: Integers

    def next_links(self, nodes: Integers, targets: Integers) -> Integers:
        """Return the next hops of packets at `nodes` to `targets` below the root, (n,); or -1."""
        counts = self.counts[nodes]
        number = self.before[nodes] + targets % np.maximum(counts, 1)
        hops = np.full(len(nodes), -1, dtype=np.int64)
        some = counts > 0
        rows = np.searchsorted(self.upto, number[some], side="right")
        # The root's own path has no link.
        hops[some] = self.links[np.minimum(rows, len(self.links) - 1)]
        return hops


class LinkArrays:
    """The directed links of a network by number: 2 i is link i from a to b, 2 i + 1 back.

    `capacities`: bytes/s, infinite where unlimited. `latencies`: s. `pairs`: their ends by name.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.names = [*network.hosts, *network.switches]
        self.number = {name: i for i, name in enumerate(self.names)}
        self.pairs = list(network.directed_links())
        self.link = {pair: i for i, pair in enumerate(self.pairs)}
        self.capacities = np.repeat(
            [link.bandwidth / 8 if link.bandwidth else np.inf for link in network.links], 2
        ).astype(np.float64)
        self.latencies = np.repeat([link.latency for link in network.links], 2).astype(np.float64)
        ends = [(self.number[u], self.number[v]) for u, v in self.pairs]
        self._tails, self._heads = np.array(ends, dtype=np.int64).reshape(-1, 2).T
        order = np.argsort(self._tails, kind="stable")
        self._out = order
        self._out_start = np.searchsorted(self._tails[order], np.arange(len(self.names) + 1))
        self._forwards = np.array([forwards(network, name) for name in self.names])
        self._searches: dict[int, _PathTree] = {}

    def _root(self, destination: int) -> int:
        """Return the node whose search covers a destination: itself, or its only neighbour."""
        first, last = self._out_start[destination : destination + 2]
        if self._forwards[destination] or last - first != 1:
            return destination
        return int(self._heads[self._out[first]])

    def _search(self, root: int) -> _PathTree:
        """Return the paths from every node to `root`, by breadth-first search."""
        known = self._searches.get(root)
        if known is not None:
            return known
        distance = np.full(len(self.names), -1, dtype=np.int64)
        distance[root] = 0
        levels = [np.array([root], dtype=np.int64)]
        while len(levels[-1]):
            frontier = levels[-1]
            if len(levels) > 1:
                frontier = frontier[self._forwards[frontier]]
            heads = self._heads[self._leaving(frontier)]
            found = np.unique(heads[distance[heads] < 0])
            distance[found] = len(levels)
            levels.append(found)
        links = self._out
        nearer = distance[self._heads[links]] == distance[self._tails[links]] - 1
        nearer &= distance[self._heads[links]] >= 0
        nearer &= self._forwards[self._heads[links]] | (self._heads[links] == root)
        links = links[nearer]
        starts = np.searchsorted(self._tails[links], np.arange(len(self.names) + 1))
        counts = np.zeros(len(self.names), dtype=np.int64)
        counts[root] = 1
        for level in levels[1:-1]:
            lengths = starts[level + 1] - starts[level]
            rows = np.repeat(starts[level] - np.cumsum(lengths) + lengths, lengths)
            heads = self._heads[links[rows + np.arange(len(rows))]]
            at = np.repeat(level, lengths)
            np.add.at(counts, at, counts[heads])
            counts[level] = np.minimum(counts[level], MANY_PATHS)
        before = np.concatenate(([0], np.cumsum(counts[self._heads[links]])))
        self._searches[root] = ways = _PathTree(links, before[starts[:-1]], before[1:], counts)
        return ways

    def _leaving(self, nodes: Integers) -> Integers:
        """Return the links from these nodes on, node by node."""
        first = self._out_start[nodes]
        lengths = self._out_start[nodes + 1] - first
        where = np.repeat(first - np.cumsum(lengths) + lengths, lengths)
        return self._out[where + np.arange(len(where))]

    def paths(self, sources: Integers, targets: Integers) -> tuple[Integers, Integers]:
        """Return the links from each source to its target, by node number, (n,) each.

        Returns (starts, links) as in `Usage`; a source that is its own target uses no link. Raises
        NetworkError if there is no way.
        """
        roots = np.array([self._root(int(t)) for t in targets], dtype=np.int64)
        order = np.argsort(roots, kind="stable")
        order = order[sources[order] != targets[order]]
        borders = np.flatnonzero(np.diff(roots[order])) + 1
        links: list[Integers] = [np.zeros(0, dtype=np.int64)]
        flows: list[Integers] = [np.zeros(0, dtype=np.int64)]
        for moving in np.split(order, borders) if len(order) else ():
            root = int(roots[moving[0]])
            ways, here = self._search(root), sources[moving]
            while len(moving):
                hops = ways.next_links(here, targets[moving])
                last = here == root
                hops[last] = self._out[self._out_start[targets[moving[last]]]] ^ 1
                if (hops < 0).any():
                    i = moving[int(np.flatnonzero(hops < 0)[0])]
                    raise NetworkError(
                        f"no path from {self.names[sources[i]]} to {self.names[targets[i]]}"
                    )
                links.append(hops)
                flows.append(moving)
                here = self._heads[hops]
                going = here != targets[moving]
                moving, here = moving[going], here[going]
        flow = np.concatenate(flows)
        starts = np.zeros(len(sources) + 1, dtype=np.int64)
        np.cumsum(np.bincount(flow, minlength=len(sources)), out=starts[1:])
        return starts, np.concatenate(links)[np.argsort(flow, kind="stable")]

    def numbers(self, names: list[str] | tuple[str, ...]) -> Integers:
        """Return node numbers; NetworkError for an unknown name."""
        for name in names:
            if name not in self.number:
                raise NetworkError(f"there is no node {name!r} in {self.network.name}")
        return np.array([self.number[name] for name in names], dtype=np.int64)


def plain_routes(
    links: LinkArrays,
    sources: Integers,
    targets: Integers,
    framing: Framing = TCP,
    *,
    overhead: float = 0.0,
    limits: Floats | None = None,
) -> Routes:
    """Return routes of data between nodes, one for each pair (n,); a unit is a byte of data.

    Packets are stored and forwarded at every hop: the last one follows the data over all links but
    the slowest. `overhead`: more delay of every flow, s. `limits`: bytes of data/s, (n,).
    """
    starts, forth = links.paths(sources, targets)
    lengths = np.diff(starts)
    flow_of = np.repeat(np.arange(len(sources)), lengths)
    times = framing.packet / links.capacities[forth] if framing.header else np.zeros(len(forth))
    slowest = np.zeros(len(sources))
    np.maximum.at(slowest, flow_of, times)
    delays = np.bincount(flow_of, links.latencies[forth] + times, minlength=len(sources)) - slowest
    amounts = np.full(len(forth), 1 + framing.header / framing.payload)
    usage = Usage(starts, forth, amounts)
    if framing.answer:
        # Acknowledgements may take another path: routes are by destination.
        starts_back, back = links.paths(targets, sources)
        of = np.concatenate((flow_of, np.repeat(np.arange(len(sources)), np.diff(starts_back))))
        order = np.argsort(of, kind="stable")
        taken = np.concatenate((amounts, np.full(len(back), framing.answer)))
        usage = Usage(starts + starts_back, np.concatenate((forth, back))[order], taken[order])
    unlimited = np.full(len(sources), np.inf)
    return Routes(usage, delays + overhead, unlimited if limits is None else limits)
