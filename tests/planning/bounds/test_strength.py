from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.collectives.plan import PlanError
from hopsum.planning.bounds.strength import strength
from hopsum.planning.model.forest import Certificate
from hopsum.planning.model.graph import PlanningGraph
from tests.support.search import examples


def graph_of(edges: Iterable[tuple[int, int, Fraction | int]], count: int = 0) -> PlanningGraph:
    """A network of workers n0, n1, ...; parallel edges add up."""
    capacity: dict[tuple[str, str], Fraction] = {}
    for u, v, c in edges:
        count = max(count, u + 1, v + 1)
        key = (f"n{min(u, v)}", f"n{max(u, v)}")
        capacity[key] = capacity.get(key, Fraction(0)) + c
    nodes = tuple(f"n{i}" for i in range(count))
    everyone = frozenset(nodes)
    return PlanningGraph("test", nodes, capacity, dict.fromkeys(capacity, 0.0), everyone, everyone)


def unit_graph(graph: nx.Graph[int]) -> PlanningGraph:
    numbered = nx.convert_node_labels_to_integers(graph)
    return graph_of((u, v, 1) for u, v in numbered.edges)


def ratio(graph: PlanningGraph, parts: Iterable[Iterable[str]]) -> Fraction:
    block = {node: i for i, part in enumerate(parts) for node in part}
    crossing = sum((c for (u, v), c in graph.capacity.items() if block[u] != block[v]), Fraction(0))
    return crossing / (max(block.values()) - min(block.values()))


def check_proof(graph: PlanningGraph, proof: Certificate) -> None:
    assert sorted(node for part in proof.parts for node in part) == sorted(graph.nodes)
    assert ratio(graph, proof.parts) == proof.bound
    assert proof.kind == "partition"


def partitions(nodes: tuple[str, ...]) -> Iterator[list[list[str]]]:
    if not nodes:
        yield []
        return
    for rest in partitions(nodes[1:]):
        yield [[nodes[0]], *rest]
        for i, part in enumerate(rest):
            yield [*rest[:i], [nodes[0], *part], *rest[i + 1 :]]


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (nx.complete_graph(8), Fraction(4)),
        (nx.complete_graph(2), Fraction(1)),
        (nx.cycle_graph(7), Fraction(7, 6)),
        (nx.path_graph(5), Fraction(1)),
        (nx.hypercube_graph(4), Fraction(32, 15)),
        (nx.hypercube_graph(6), Fraction(192, 63)),
        (nx.grid_2d_graph(4, 4, periodic=True), Fraction(32, 15)),
        (nx.grid_graph((4, 4, 4), periodic=True), Fraction(192, 63)),
        (nx.petersen_graph(), Fraction(15, 9)),
        (nx.barbell_graph(6, 0), Fraction(1)),
        (nx.lollipop_graph(6, 3), Fraction(1)),
        (nx.ring_of_cliques(5, 6), Fraction(5, 4)),
    ],
)
def test_known_strengths(graph: nx.Graph[int], expected: Fraction) -> None:
    planning = unit_graph(graph)
    proof = strength(planning)
    assert proof.bound == expected
    check_proof(planning, proof)


def test_the_partition_names_the_groups() -> None:
    proof = strength(unit_graph(nx.barbell_graph(3, 0)))
    assert proof.parts == (("n0", "n1", "n2"), ("n3", "n4", "n5"))
    assert "2 groups of nodes have 1 of bandwidth between them" in proof.text


@st.composite
def small_networks(draw: st.DrawFn) -> PlanningGraph:
    count = draw(st.integers(2, 7))
    pairs = [(u, v) for v in range(count) for u in range(v)]
    capacity = st.fractions(min_value=0, max_value=9, max_denominator=4)
    chosen = [(u, v, draw(capacity)) for u, v in pairs]
    return graph_of([edge for edge in chosen if edge[2]], count)


@pytest.mark.slow
@settings(max_examples=examples(40, of=150))
@given(small_networks())
def test_no_partition_is_weaker(graph: PlanningGraph) -> None:
    proof = strength(graph)
    check_proof(graph, proof)
    every = (ratio(graph, parts) for parts in partitions(graph.nodes) if len(parts) > 1)
    assert proof.bound == min(every)


def random_capacities(graph: nx.Graph[int], pick: Callable[[], Fraction]) -> PlanningGraph:
    numbered = nx.convert_node_labels_to_integers(graph)
    return graph_of((u, v, pick()) for u, v in numbered.edges)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_packed_trees_reach_it(seed: int) -> None:
    """Trees of equal rate, each the cheapest under loads so far, come near it and never pass it."""
    rng = random.Random(seed)
    graph = random_capacities(
        nx.random_regular_graph(4, 16, seed=seed), lambda: Fraction(rng.randint(3, 9), 3)
    )
    bound = strength(graph).bound
    load = dict.fromkeys(graph.capacity, 0)
    trees = 3000
    for _ in range(trees):
        weighted: nx.Graph[str] = nx.Graph()
        for (u, v), capacity in graph.capacity.items():
            weighted.add_edge(u, v, weight=(load[u, v] + 1) / float(capacity))
        for u, v in nx.minimum_spanning_edges(weighted, data=False):
            load[graph.edge(u, v)] += 1
    rate = 1 / max(count / graph.capacity[edge] for edge, count in load.items())
    assert bound * Fraction(95, 100) <= rate * trees <= bound


def test_communities_part_in_several_steps() -> None:
    """Pairs in fours in eights, joined more and more thinly: the weakest level decides."""
    edges = [(u, v, 10 ** (3 - (u ^ v).bit_length())) for v in range(8) for u in range(v)]
    proof = strength(graph_of([(u, v, Fraction(c)) for u, v, c in edges]))
    assert proof.bound == 16
    assert proof.parts == (("n0", "n1", "n2", "n3"), ("n4", "n5", "n6", "n7"))


def test_units_do_not_matter() -> None:
    edges = [(0, 1, Fraction(10**10)), (1, 2, Fraction(25 * 10**9)), (0, 2, Fraction(1, 3))]
    assert strength(graph_of(edges)).bound == Fraction(10**10) + Fraction(1, 3)


def test_a_disconnected_network_has_strength_0() -> None:
    proof = strength(graph_of([(0, 1, 2), (2, 3, 2)]))
    assert proof.bound == 0
    assert proof.parts == (("n0", "n1"), ("n2", "n3"))


def test_every_node_must_work() -> None:
    graph = graph_of([(0, 1, 1), (1, 2, 1)])
    some = PlanningGraph(
        "star", graph.nodes, graph.capacity, graph.latency, frozenset({"n0", "n2"}), graph.combines
    )
    with pytest.raises(PlanError, match="n1 is not a worker"):
        strength(some)


def test_one_node_is_refused() -> None:
    with pytest.raises(PlanError, match="at least two"):
        strength(graph_of([], 1))
