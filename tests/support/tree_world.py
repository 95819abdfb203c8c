"""Networks for the tests of tree planners, and slow ways to what these are to find."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from itertools import combinations

import networkx as nx
from hypothesis import strategies as st

from hopsum.network.topologies import TopologyOptions, make_topology
from hopsum.planning.model.forest import ForestOptions
from hopsum.planning.model.graph import PlanningGraph, planning_graph


def network_of(
    edges: Iterable[tuple[str, str, int | Fraction]], latency: dict[str, float] | None = None
) -> PlanningGraph:
    """A network of hosts that all work; `latency` by `u-v`, 1 ms elsewhere."""
    capacity = {(u, v): Fraction(bandwidth) for u, v, bandwidth in edges}
    nodes = tuple(dict.fromkeys(node for edge in sorted(capacity) for node in edge))
    index = {name: i for i, name in enumerate(nodes)}
    ordered = {
        (u, v) if index[u] < index[v] else (v, u): bandwidth
        for (u, v), bandwidth in capacity.items()
    }
    delays = {(u, v): (latency or {}).get(f"{u}-{v}", 1e-3) for u, v in ordered}
    return PlanningGraph("test", nodes, ordered, delays, frozenset(nodes), frozenset(nodes))


def named(spec: str) -> PlanningGraph:
    """The planning graph of a topology's name, every link 1."""
    return planning_graph(make_topology(spec, TopologyOptions(link_rate=1.0)))


@st.composite
def networks(draw: st.DrawFn, most: int = 6) -> PlanningGraph:
    """Connected networks of 2 to `most` nodes with whole capacities up to 4."""
    size = draw(st.integers(2, most))
    names = [f"n{i}" for i in range(size)]
    edges = {(draw(st.integers(0, i - 1)), i) for i in range(1, size)}
    edges |= draw(st.sets(st.sampled_from(list(combinations(range(size), 2)))))
    return network_of((names[u], names[v], draw(st.integers(1, 4))) for u, v in sorted(edges))


def spanning_trees(graph: PlanningGraph) -> list[nx.Graph[str]]:
    """All spanning trees, by trying all sets of edges."""
    found = []
    for edges in combinations(graph.capacity, len(graph.nodes) - 1):
        tree: nx.Graph[str] = nx.Graph()
        tree.add_nodes_from(graph.nodes)
        tree.add_edges_from(edges)
        if nx.is_connected(tree):
            found.append(tree)
    return found


def best_of_two(graph: PlanningGraph, options: ForestOptions) -> Fraction:
    """The throughput of the best one or two trees within the height and the rate asked for."""
    high = options.max_height or len(graph.nodes)
    trees = [
        frozenset(graph.edge(u, v) for u, v in tree.edges)
        for tree in spanning_trees(graph)
        if nx.radius(tree) <= high
    ]
    slowest = {tree: min(graph.capacity[edge] for edge in tree) for tree in trees}
    trees = [tree for tree in trees if slowest[tree] >= options.min_rate]
    best = max((slowest[tree] for tree in trees), default=Fraction(0))
    for one, other in combinations(trees, 2):
        shared = [graph.capacity[edge] for edge in one & other]
        if not shared or min(shared) >= 2 * options.min_rate:
            best = max(best, min([slowest[one] + slowest[other], *shared]))
    return best
