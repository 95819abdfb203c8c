"""Regions of a network below an oversubscribed layer: where aggregating pays ([002][]).

The layers of a network with switches: the switches to which hosts attach (racks), then what
switches up to 2, 3, ... links from the workers connect (pods). A region is a connected component
that remains when the layers above are removed. It is oversubscribed if the links by which its
workers reach the others have less free bandwidth than the workers themselves. Networks of hosts
have no regions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from hopsum.collectives.plan import PlanError
from hopsum.network.model import Network
from hopsum.planning.embedding.logical_topologies import Paths
from hopsum.planning.model.demand import DirectedLink, Resources


@dataclass(frozen=True)
class Region:
    """A region, or the whole job. `parts`: regions in it, which share no node.

    `workers`: those in no part. `hosts`: those that may aggregate for it: all its workers,
    including those of its parts, then its auxiliary nodes.
    """

    workers: tuple[str, ...]
    hosts: tuple[str, ...]
    parts: tuple[Region, ...]

    def all_workers(self) -> Iterator[str]:
        """Return its own workers and those of its parts."""
        yield from self.workers
        for part in self.parts:
            yield from part.all_workers()


def find_regions(
    resources: Resources, paths: Paths, workers: Sequence[str], auxiliary: Sequence[str]
) -> Region:
    """Return the region of the job's workers, with its oversubscribed inner regions.

    Those of two workers or more. PlanError if workers cannot reach each other.
    """
    hosts = (*workers, *auxiliary)
    found: list[set[str]] = []
    for piece in _pieces(resources.network, workers, auxiliary):
        inside = [worker for worker in workers if worker in piece]
        # A layer that adds no workers to the one below has nothing more to sum.
        more = 1 < len(inside) < len(workers) and not any(o.issuperset(inside) for o in found)
        if more and _oversubscribed(resources, paths, workers, piece):
            found.append(piece.intersection(hosts))
    return _nest(set(hosts), found, workers, hosts)


def _pieces(network: Network, workers: Sequence[str], auxiliary: Sequence[str]) -> list[set[str]]:
    """Return sets of nodes, small layers first; those of one layer share no node."""
    if not network.switches:
        return []
    levels = _levels(network, workers)
    hosts = [*workers, *auxiliary]
    racks: dict[str, set[str]] = {}
    for host in hosts:
        peers = set(network.ports(host).values())
        if len(peers) == 1:
            (access,) = peers
            racks.setdefault(access, {access}).add(host)
    pieces = list(racks.values())
    for level in range(2, max(levels.values(), default=0)):
        inner = {switch for switch, at in levels.items() if at <= level}
        pieces += _components(network, inner.union(hosts), inner)
    return pieces


def _levels(network: Network, workers: Sequence[str]) -> dict[str, int]:
    """Return the number of links from every switch to the nearest worker."""
    levels: dict[str, int] = dict.fromkeys(workers, 0)
    queue = deque(workers)
    while queue:
        node = queue.popleft()
        for peer in network.ports(node).values():
            if peer in network.switches and peer not in levels:
                levels[peer] = levels[node] + 1
                queue.append(peer)
    return {node: level for node, level in levels.items() if node in network.switches}


def _components(network: Network, nodes: set[str], inner: set[str]) -> list[set[str]]:
    """Return the components connected by the switches in `inner`."""
    pieces, seen = [], set[str]()
    for start in sorted(inner):
        if start in seen:
            continue
        piece, queue = {start}, [start]
        for node in queue:
            if node in inner:
                fresh = [
                    peer
                    for peer in network.ports(node).values()
                    if peer in nodes and peer not in piece
                ]
                piece.update(fresh)
                queue += fresh
        seen |= piece
        pieces.append(piece)
    return pieces


def _oversubscribed(
    resources: Resources, paths: Paths, workers: Sequence[str], piece: set[str]
) -> bool:
    leaving, entering = set[DirectedLink](), set[DirectedLink]()
    inside = [worker for worker in workers if worker in piece]
    for worker in inside:
        for other in workers:
            if other not in piece:
                leaving.update(_crossing(paths.links(worker, other), piece))
                entering.update(_crossing(paths.links(other, worker), piece))
    way = min(
        sum((resources.links[link] for link in links), Fraction(0)) for links in (leaving, entering)
    )
    return way < sum(resources.host_rate(worker) for worker in inside)


def _crossing(links: Sequence[DirectedLink], piece: set[str]) -> Iterator[DirectedLink]:
    return ((u, v) for u, v in links if (u in piece) != (v in piece))


def _nest(
    piece: set[str], within: list[set[str]], workers: Sequence[str], hosts: Sequence[str]
) -> Region:
    """Return a region with the outermost of the sets in it as parts.

    Sets are nested or disjoint.
    """
    smaller = [other for other in within if other < piece]
    outermost = [one for one in smaller if not any(one < other for other in smaller)]
    for i, one in enumerate(outermost):
        if any(one & other for other in outermost[i + 1 :]):
            raise PlanError("regions that overlap without one holding the other: not a hierarchy")
    parts = tuple(_nest(one, smaller, workers, hosts) for one in outermost)
    covered = set[str]().union(*outermost)
    return Region(
        tuple(worker for worker in workers if worker in piece and worker not in covered),
        tuple(host for host in hosts if host in piece),
        parts,
    )
