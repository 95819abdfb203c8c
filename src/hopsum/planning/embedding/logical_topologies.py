"""Logical topologies mapped onto the network: bytes of each on every link per unit of data.

Between hosts, parts of a logical topology travel as plain packets along `hopsum.network.paths`;
trees of switches choose their own links.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

from hopsum.collectives.algorithms.rooted import network_tree
from hopsum.collectives.plan import PlanError, Results
from hopsum.collectives.schedule import ScheduleError
from hopsum.collectives.tree import Tree
from hopsum.network.model import Network, NetworkError
from hopsum.network.paths import PlainRoutes
from hopsum.network.ring import virtual_ring
from hopsum.planning.model.demand import DirectedLink, Model
from hopsum.planning.model.routes import Route, link_loads, make_route
from hopsum.protocol.wire import HOPS_DEFAULT, MAX_CHILDREN


@dataclass(frozen=True)
class LogicalTopology:
    """One candidate of a job.

    A ring is its `order` of workers. The others are trees: `parents` leads every node but `root`
    towards it, host by host, or for a tree of switches link by link. `traffic`: units sent over
    each directed link for one unit of data. `slots_at`: the switches that hold slots for it.
    """

    model: Model
    order: tuple[str, ...]
    root: str
    parents: Mapping[str, str]
    traffic: Mapping[DirectedLink, Fraction]
    slots_at: frozenset[str] = frozenset()

    @cached_property
    def key(self) -> tuple[Model, tuple[str, ...], str, tuple[tuple[str, str], ...]]:
        """Return a key that is equal for equal topologies."""
        return self.model, self.order, self.root, tuple(sorted(self.parents.items()))

    @property
    def aggregators(self) -> tuple[str, ...]:
        """Return the hosts or switches that sum, the root last; in a ring all of them."""
        if self.order:
            return self.order
        if self.model is Model.IN_NETWORK:
            return (*sorted(self.slots_at), self.root)
        return (*sorted(set(self.parents.values()) - {self.root}), self.root)

    def sent(self, node: str) -> Fraction:
        """Return the units a node sends per unit of data: with those received, tr(i) ([002][])."""
        return sum((load for (u, _), load in self.traffic.items() if u == node), Fraction(0))

    def received(self, node: str) -> Fraction:
        """Return the units that a node receives for one unit of data."""
        return sum((load for (_, v), load in self.traffic.items() if v == node), Fraction(0))

    def describe(self) -> str:
        """Return a one-line description for people."""
        if self.order:
            return f"ring {' '.join(self.order)}"
        inner = [name for name in self.aggregators if name != self.root]
        return f"{self.model} at {self.root}" + (f" over {' '.join(inner)}" if inner else "")


@dataclass
class Paths:
    """The links that plain packets take between hosts, computed once per pair."""

    network: Network
    _routes: PlainRoutes = field(init=False)
    _hops: dict[str, dict[str, str]] = field(init=False, default_factory=dict)
    _links: dict[tuple[str, str], tuple[DirectedLink, ...]] = field(
        init=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        self._routes = PlainRoutes(self.network)

    def links(self, source: str, target: str) -> tuple[DirectedLink, ...]:
        """Return the directed links from one host to another; PlanError if there is no path."""
        if (source, target) not in self._links:
            if target not in self._hops:
                self._hops[target] = self._routes.next_hops(target)
            hops, path = self._hops[target], [source]
            while path[-1] != target:
                if path[-1] not in hops:
                    raise PlanError(f"{self.network.name}: no path from {source} to {target}")
                path.append(hops[path[-1]])
            self._links[source, target] = tuple(pairwise(path))
        return self._links[source, target]


def parameter_server(paths: Paths, workers: Sequence[str], server: str) -> LogicalTopology:
    """Return a star: all workers send to `server`, a host, which returns the result."""
    parents = {worker: server for worker in workers if worker != server}
    return _tree(paths, Model.PARAMETER_SERVER, server, parents)


def aggregation_tree(paths: Paths, root: str, parents: Mapping[str, str]) -> LogicalTopology:
    """Return a tree of hosts: each sums its children's data, and passes results back ([002][])."""
    return _tree(paths, Model.AGGREGATION_TREE, root, parents)


def _tree(paths: Paths, model: Model, root: str, parents: Mapping[str, str]) -> LogicalTopology:
    counts: dict[DirectedLink, int] = {}
    for child, parent in parents.items():
        for link in (*paths.links(child, parent), *paths.links(parent, child)):
            counts[link] = counts.get(link, 0) + 1
    return LogicalTopology(model, (), root, dict(parents), _exact(counts))


def ring(paths: Paths, order: Sequence[str]) -> LogicalTopology:
    """Return a ring in this order of workers; each sends 2 (w - 1) / w of the data to the next."""
    if len(order) == 1:
        return LogicalTopology(Model.RING, tuple(order), "", {}, {})
    counts: dict[DirectedLink, int] = {}
    for source, target in pairwise((*order, order[0])):
        for link in paths.links(source, target):
            counts[link] = counts.get(link, 0) + 1
    each = Fraction(2 * (len(order) - 1), len(order))
    traffic = {link: count * each for link, count in counts.items()}
    return LogicalTopology(Model.RING, tuple(order), "", {}, traffic)


def physical_order(network: Network, workers: Sequence[str]) -> tuple[str, ...]:
    """Return the workers in the order of their links: around a ring, or else rack by rack.

    Rack by rack is the order in which a walk along the spanning tree of their paths meets them, so
    that no link of that tree is crossed more than once in each direction.
    """
    around = virtual_ring(network, workers)
    if around:
        return tuple(workers[i] for i in around)
    try:
        tree = network_tree(network, workers)
    except (NetworkError, ScheduleError) as error:
        raise PlanError(str(error)) from None
    wanted, order, stack = set(workers), [], [tree.root]
    while stack:
        node = stack.pop()
        if node in wanted:
            order.append(node)
        stack += reversed(tree.children[node])
    return tuple(order)


def in_network_tree(
    network: Network,
    workers: tuple[str, ...],
    server: str,
    parents: Mapping[str, str],
    sums: Callable[[str], bool],
    max_hops: int = HOPS_DEFAULT,
) -> LogicalTopology | None:
    """Return a tree of links to `server` that sums at the switches in `sums` and copies results.

    None where packets cannot take it: too many flows at the server, or more than `max_hops`
    entries in a stack.
    """
    tree = Tree(server, parents)
    if max(tree.depths.values()) > max_hops:
        return None
    able = {node for node in tree.nodes if node in network.switches and sums(node)}
    route = make_route(network, workers, parents, server, able)
    if len(route.junctions[server].flows) > MAX_CHILDREN:
        return None
    loads = {link: int(load) for link, load in link_loads(route, Results.REPLICATED).items()}
    at = frozenset(name for name in summing(route))
    return LogicalTopology(Model.IN_NETWORK, (), server, dict(parents), _exact(loads), at)


def summing(route: Route) -> list[str]:
    """Return the switches of a route that hold slots."""
    return [name for name, junction in route.junctions.items() if junction.merged]


def _exact(counts: Mapping[DirectedLink, int]) -> dict[DirectedLink, Fraction]:
    return {link: Fraction(count) for link, count in counts.items() if count}
