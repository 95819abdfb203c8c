"""Routes of plain traffic as arrays, for thousands of hosts at once.

The same paths as `collectives.paths.PlainRoutes`: fewest links, ties by the order of the links. A
host with one link hangs below the node at its other end, so one search serves all hosts there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectives.network import Network, NetworkError
from collectives.paths import forwards
from collectives.tcp_segments import SEGMENT_BYTES, SEGMENT_HEADER_BYTES
from collectives.timing.flows import Routes
from collectives.timing.max_min import Floats, Integers, Usage


@dataclass(frozen=True, slots=True)
class Framing:
    """What data looks like on a link.

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
BARE = Framing(1, 0, 0.0)
"""Data alone, cut through: the alpha-beta model."""


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
        self._searches: dict[int, NDArray[np.int64]] = {}

    def _root(self, destination: int) -> int:
        """The node whose search serves a destination: itself, or the one it hangs below."""
        first, last = self._out_start[destination : destination + 2]
        if self._forwards[destination] or last - first != 1:
            return destination
        return int(self._heads[self._out[first]])

    def _search(self, root: int) -> NDArray[np.int64]:
        """The link every node sends on towards `root` (-1: none), by breadth-first search."""
        known = self._searches.get(root)
        if known is not None:
            return known
        towards = np.full(len(self.names), -1, dtype=np.int64)
        seen = np.zeros(len(self.names), dtype=np.bool_)
        seen[root] = True
        frontier = np.array([root], dtype=np.int64)
        while len(frontier):
            first = self._out_start[frontier]
            lengths = self._out_start[frontier + 1] - first
            ends = np.cumsum(lengths)
            links = self._out[np.arange(ends[-1]) + np.repeat(first - ends + lengths, lengths)]
            links = links[~seen[self._heads[links]]]
            # The node found first in the queue's order leads on, as in PlainRoutes.
            found, where = np.unique(self._heads[links], return_index=True)
            order = np.argsort(where, kind="stable")
            found, where = found[order], where[order]
            towards[found] = links[where] ^ 1
            seen[found] = True
            frontier = found[self._forwards[found]]
        self._searches[root] = towards
        return towards

    def paths(self, sources: Integers, targets: Integers) -> tuple[Integers, Integers]:
        """The links from each source to its target, by node number, (n,) each.

        Returns (starts, links) as in `Usage`. Raises NetworkError if there is no way, or a source
        is its own target.
        """
        roots = np.array([self._root(int(t)) for t in targets], dtype=np.int64)
        distinct, row = np.unique(roots, return_inverse=True)
        table = np.array([self._search(int(root)) for root in distinct]).reshape(
            len(distinct), len(self.names)
        )
        here = sources.copy()
        hops: list[Integers] = []
        while (moving := here != targets).any():
            links = np.full(len(here), -1, dtype=np.int64)
            links[moving] = table[row[moving], here[moving]]
            at_root = moving & (here == roots)
            links[at_root] = self._out[self._out_start[targets[at_root]]] ^ 1
            lost = moving & (links < 0)
            if lost.any():
                i = int(np.flatnonzero(lost)[0])
                raise NetworkError(
                    f"no way from {self.names[sources[i]]} to {self.names[targets[i]]}"
                )
            here[moving] = self._heads[links[moving]]
            hops.append(links)
        if not hops:
            return np.zeros(len(sources) + 1, dtype=np.int64), np.zeros(0, dtype=np.int64)
        matrix = np.stack(hops, axis=1)
        used = matrix >= 0
        starts = np.zeros(len(sources) + 1, dtype=np.int64)
        np.cumsum(used.sum(axis=1), out=starts[1:])
        return starts, matrix[used]

    def numbers(self, names: list[str] | tuple[str, ...]) -> Integers:
        """Node numbers; NetworkError for a name that is not there."""
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
    """Routes of data between nodes, one for each pair (n,); a unit is a byte of data.

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
        # A flow's links, each followed by the same link in the other direction.
        both = np.stack((forth, forth ^ 1), axis=1).ravel()
        taken = np.stack((amounts, np.full(len(forth), framing.answer)), axis=1).ravel()
        usage = Usage(2 * starts, both, taken)
    unlimited = np.full(len(sources), np.inf)
    return Routes(usage, delays + overhead, unlimited if limits is None else limits)
