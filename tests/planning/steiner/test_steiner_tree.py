from __future__ import annotations

from itertools import combinations, product

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.planning.steiner.dual_ascent import dual_ascent_bound
from hopsum.planning.steiner.steiner_tree import Arcs, SteinerTables, Terminal
from tests.support.search import examples


def arcs_of(nodes: int, edges: list[tuple[int, int]], merges: list[bool]) -> Arcs:
    """Both directions of every edge."""
    both = edges + [(v, u) for u, v in edges]
    tails, heads = (np.array(leaves, dtype=np.intp) for leaves in zip(*both, strict=True))
    return Arcs(nodes, tails, heads, np.array(merges))


@st.composite
def networks(draw: st.DrawFn) -> tuple[int, dict[tuple[int, int], int]]:
    nodes = draw(st.integers(2, 6))
    pairs = list(combinations(range(nodes), 2))
    edges = draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=9, unique=True))
    return nodes, {edge: draw(st.integers(1, 9)) for edge in edges}


def shortest_by_enumeration(
    nodes: int, edges: dict[tuple[int, int], int], terminals: set[int], root: int, height: int
) -> int | None:
    """Minimum over all subsets of edges that are trees over terminals and root."""
    best = None
    for size in range(nodes):
        for chosen in combinations(edges, size):
            tree = nx.Graph(list(chosen))
            tree.add_nodes_from(terminals | {root})
            if not nx.is_tree(tree):
                continue
            depth = nx.single_source_shortest_path_length(tree, root)
            if max(depth.values()) > height:
                continue
            weight = sum(edges[edge] for edge in chosen)
            best = weight if best is None else min(best, weight)
    return best


@pytest.mark.slow
@settings(max_examples=examples(20, of=60))
@given(networks(), st.data())
def test_lengths_are_those_of_the_best_of_all_trees(
    network: tuple[int, dict[tuple[int, int], int]], data: st.DataObject
) -> None:
    nodes, edges = network
    terminals = data.draw(st.sets(st.integers(0, nodes - 1), min_size=1, max_size=4))
    height = data.draw(st.integers(1, nodes))
    arcs = arcs_of(nodes, list(edges), [True] * nodes)
    lengths = np.array(list(edges.values()) * 2)
    tables = SteinerTables(arcs, lengths, [Terminal(t) for t in sorted(terminals)], height)
    for root in range(nodes):
        expected = shortest_by_enumeration(nodes, edges, terminals, root, height)
        assert tables.length(root) == expected
        if expected is None:
            with pytest.raises(LookupError):
                tables.arcs(root)
            continue
        found = tables.arcs(root)
        assert sum(edges[min(u, v), max(u, v)] for u, v in found) == expected
        reached = nx.DiGraph([(v, u) for u, v in found])
        reached.add_node(root)
        assert terminals <= set(nx.descendants(reached, root)) | {root}


@pytest.mark.slow
@settings(max_examples=examples(40, of=300))
@given(networks(), st.data())
def test_cuts_never_pay_more_than_the_shortest_tree(
    network: tuple[int, dict[tuple[int, int], int]], data: st.DataObject
) -> None:
    nodes, edges = network
    terminals = sorted(data.draw(st.sets(st.integers(0, nodes - 1), min_size=1, max_size=4)))
    root = data.draw(st.integers(0, nodes - 1))
    arcs = arcs_of(nodes, list(edges), [True] * nodes)
    lengths = np.array(list(edges.values()) * 2)
    shortest = SteinerTables(arcs, lengths, [Terminal(t) for t in terminals]).length(root)
    if shortest is None:
        return
    paid = dual_ascent_bound(arcs, lengths, terminals, {root})
    assert shortest / 2 <= paid <= shortest
    if len(terminals) == 1:
        assert paid == shortest


def test_where_nodes_do_not_add_every_flow_pays() -> None:
    # Terminals 0 to 2 at node 3, which leads on to the root 4 over one arc of length 5.
    edges = [(0, 3), (1, 3), (2, 3), (3, 4)]
    lengths = np.array([1, 1, 1, 5] * 2)
    terminals = [Terminal(0), Terminal(1), Terminal(2)]
    for adds, expected in ((True, 8), (False, 18)):
        arcs = arcs_of(5, edges, [False, False, False, adds, True])
        assert SteinerTables(arcs, lengths, terminals).length(4) == expected


def test_levels_under_a_terminal_count() -> None:
    arcs = arcs_of(3, [(0, 1), (1, 2)], [True] * 3)
    lengths = np.array([1, 1, 1, 1])
    for height, expected in ((3, 2), (2, None)):
        tables = SteinerTables(arcs, lengths, [Terminal(0, height=1)], height)
        assert tables.length(2) == expected


def test_too_many_terminals_are_refused() -> None:
    arcs = arcs_of(12, list(product(range(11), [11])), [True] * 12)
    with pytest.raises(ValueError, match="11 terminals: expected 1 to 10"):
        SteinerTables(arcs, np.ones(22, dtype=np.int64), [Terminal(i) for i in range(11)])
