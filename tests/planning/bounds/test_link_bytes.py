from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.collectives.plan import PlanError
from hopsum.network.topologies import TopologyOptions, make_topology
from hopsum.planning.model.graph import PlanningGraph, planning_graph
from tests.oracles.link_bytes import link_bytes
from tests.support.search import examples


def with_server(spec: str, *, plain: bool = False) -> PlanningGraph:
    """The last host is the server, and no worker."""
    options = TopologyOptions(link_rate=1e9, servers=0, plain=("all",) if plain else ())
    network = make_topology(spec, options)
    return planning_graph(network, list(network.hosts)[:-1])


# Bytes on all links of the way up, in units of one worker's data.
@pytest.mark.parametrize(
    ("spec", "root", "up"),
    [("star:5", "h5", 5), ("star:9", "h9", 9), ("fat-tree:4", "h16", 28), ("torus:4x4", "h16", 15)],
)
def test_switches_that_sum_reach_it(spec: str, root: str, up: int) -> None:
    bound = link_bytes(with_server(spec), 1000, root)
    assert bound.total == 2 * up * 1000
    assert bound.hottest >= Fraction(1000, 4)
    if not spec.startswith("torus"):
        assert bound.hottest == 1000


def test_plain_switches_carry_every_flow_up() -> None:
    """On a star, each of four workers' sums crosses two links; results are copied at the switch."""
    bound = link_bytes(with_server("star:5", plain=True), 1, "h5")
    assert bound.up.total(with_server("star:5", plain=True)) == 8
    assert bound.total == 8 + 5


def test_trees_in_turn_halve_the_hottest_link() -> None:
    """On a ring of n, n trees, each without another link, load all links 2 (n - 1) / n / 2."""
    graph = planning_graph(make_topology("torus:1x6", TopologyOptions(link_rate=1.0)))
    bound = link_bytes(graph, 12)
    assert bound.total == 2 * 5 * 12
    assert bound.hottest == 10


def test_two_roots_of_one_network_agree_on_the_total() -> None:
    graph = with_server("leaf-spine:2x3x2")
    assert link_bytes(graph, 1, "h1").total == link_bytes(graph, 1, "h2").total
    assert link_bytes(graph, 1, "h6").total == link_bytes(graph, 1, "h1").total + 2


def trees(graph: PlanningGraph, joined: frozenset[str]) -> Iterator[int]:
    """The sizes, in edges, of trees that join some nodes: by trying all sets of other nodes."""
    network = nx.Graph(graph.capacity.keys())
    others = [node for node in graph.nodes if node not in joined]
    for size in range(len(others) + 1):
        for extra in combinations(others, size):
            chosen = network.subgraph(joined.union(extra))
            if len(chosen) == len(joined) + size and nx.is_connected(chosen):
                yield len(chosen) - 1


@st.composite
def small_networks(draw: st.DrawFn) -> PlanningGraph:
    count = draw(st.integers(2, 7))
    names = tuple(f"n{i}" for i in range(count))
    edges = {(names[draw(st.integers(0, i - 1))], names[i]) for i in range(1, count)}
    pairs = [(u, v) for u, v in combinations(names, 2) if (u, v) not in edges]
    if pairs:
        edges |= draw(st.sets(st.sampled_from(pairs), max_size=5))
    workers = draw(st.sets(st.sampled_from(names), min_size=2))
    capacity = {edge: Fraction(draw(st.integers(1, 5))) for edge in sorted(edges)}
    latency = dict.fromkeys(capacity, 0.0)
    return PlanningGraph("test", names, capacity, latency, frozenset(workers), frozenset(names))


@pytest.mark.slow
@settings(max_examples=examples(20, of=60))
@given(small_networks())
def test_no_tree_carries_less(graph: PlanningGraph) -> None:
    bound = link_bytes(graph, 1)
    least = min(trees(graph, graph.workers))
    assert least <= bound.total <= 2 * least
    assert bound.hottest <= 1
    if graph.every_node_works:
        assert bound.total == 2 * least


def test_an_unknown_root_is_named() -> None:
    with pytest.raises(PlanError, match="root 'ps'"):
        link_bytes(with_server("star:3"), 1, "ps")
