"""Graphs for planners and bounds: nodes by name, exact capacities, nodes that may combine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from hopsum.collectives.plan import PlanError
from hopsum.network.model import Network, shorten

Edge = tuple[str, str]
"""An undirected edge; its ends in the order of `PlanningGraph.nodes`."""


@dataclass(frozen=True)
class PlanningGraph:
    """An undirected full-duplex network.

    `capacity[u, v]`: capacity of the edge in *each* direction, in the units of the input's
    `bandwidth`; `latency[u, v]`: one-way latency in seconds. `workers`: the nodes whose data are
    summed and that need the result. `combines`: the nodes that can add (workers, aggregating
    switches and helping hosts); the others only forward. `name` is for messages.
    """

    name: str
    nodes: tuple[str, ...]
    capacity: Mapping[Edge, Fraction]
    latency: Mapping[Edge, float]
    workers: frozenset[str]
    combines: frozenset[str]

    def __post_init__(self) -> None:
        for (u, v), capacity in self.capacity.items():
            if self.edge(u, v) != (u, v):
                raise PlanError(f"edge {u}-{v}: expected its ends in the order of the nodes")
            if capacity <= 0:
                raise PlanError(f"edge {u}-{v}: bandwidth {capacity}: expected above 0")

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Return the number of each node."""
        return {name: i for i, name in enumerate(self.nodes)}

    @cached_property
    def neighbours(self) -> Mapping[str, tuple[str, ...]]:
        """Return the neighbours of each node, in order of the nodes."""
        lists: dict[str, list[str]] = {name: [] for name in self.nodes}
        for u, v in self.capacity:
            lists[u].append(v)
            lists[v].append(u)
        return {
            name: tuple(sorted(found, key=self.index.__getitem__)) for name, found in lists.items()
        }

    @property
    def every_node_works(self) -> bool:
        """Return whether all nodes are workers, as in [000][]."""
        return len(self.workers) == len(self.nodes)

    def edge(self, u: str, v: str) -> Edge:
        """Return the key of the edge between two nodes."""
        return (u, v) if self.index[u] < self.index[v] else (v, u)


def planning_graph(network: Network, workers: Iterable[str] | None = None) -> PlanningGraph:
    """Return the planning graph of a network; `workers` None: all its hosts.

    PlanError names a link without bandwidth, an unknown worker, or workers that are cut off.
    """
    chosen = tuple(network.hosts) if workers is None else tuple(workers)
    for name in chosen:
        if name not in network.hosts:
            raise PlanError(
                f"worker {name!r}: there is no such host in {network.name}; "
                f"hosts: {shorten(network.hosts)}"
            )
    nodes = (*network.hosts, *network.switches)
    index = {name: i for i, name in enumerate(nodes)}
    capacity: dict[Edge, Fraction] = {}
    latency: dict[Edge, float] = {}
    for link in network.links:
        if link.bandwidth is None:
            raise PlanError(
                f"link {link.a}-{link.b} has no bandwidth; planning needs one on every link "
                "(in the file, or --link-rate)"
            )
        u, v = sorted((link.a, link.b), key=index.__getitem__)
        capacity[u, v] = Fraction(str(link.bandwidth))
        latency[u, v] = link.latency
    combining = {name for name, switch in network.switches.items() if switch.aggregates}
    graph = PlanningGraph(
        network.name,
        nodes,
        capacity,
        latency,
        frozenset(chosen),
        frozenset(combining.union(chosen)),
    )
    check_connected(graph)
    return graph


def check_connected(graph: PlanningGraph) -> None:
    """Raise PlanError for no workers, or workers that have no path to the first one."""
    if not graph.workers:
        raise PlanError(f"{graph.name}: no workers: expected at least one")
    start = min(graph.workers, key=graph.index.__getitem__)
    reached, queue = {start}, [start]
    for node in queue:
        fresh = [peer for peer in graph.neighbours[node] if peer not in reached]
        reached.update(fresh)
        queue += fresh
    cut_off = sorted(graph.workers - reached, key=graph.index.__getitem__)
    if cut_off:
        raise PlanError(f"{graph.name}: no path from {start} to {shorten(cut_off)}")


def without_forwarders(graph: PlanningGraph) -> PlanningGraph:
    """Return the graph without nodes that only forward; PlanError if that cuts off workers.

    Trees of hosts use only hosts that add: the edges of others stay unused.
    """
    kept = graph.workers | graph.combines
    if len(kept) == len(graph.nodes):
        return graph
    inside = {edge for edge in graph.capacity if kept.issuperset(edge)}
    left = replace(
        graph,
        name=f"{graph.name} without hosts that only forward",
        nodes=tuple(name for name in graph.nodes if name in kept),
        capacity={edge: rate for edge, rate in graph.capacity.items() if edge in inside},
        latency={edge: delay for edge, delay in graph.latency.items() if edge in inside},
    )
    check_connected(left)
    return left
