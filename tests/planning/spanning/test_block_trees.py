from __future__ import annotations

import math
from fractions import Fraction

import networkx as nx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hopsum.planning.bounds.strength import strength
from hopsum.planning.model.forest import ForestOptions
from hopsum.planning.model.graph import PlanningGraph
from hopsum.planning.spanning.block_trees import BlockTrees
from hopsum.planning.spanning.spanning_trees import NumberedGraph
from hopsum.planning.spanning.tree_choice import Choice
from tests.support.search import examples
from tests.support.tree_world import best_of_two, network_of, networks

FEW = 30
"""Trees of which branch and bound finds the best ones at once."""


def chosen(blocks: BlockTrees, most: int, least: Fraction = Fraction(0)) -> Choice:
    return blocks.choose(max_trees=most, min_rate=least, gap=1e-6, seed=0, deadline=math.inf)


@pytest.mark.slow
@given(networks(5), st.sampled_from([Fraction(0), Fraction(1)]))
@settings(max_examples=examples(13, of=40))
def test_no_two_trees_are_faster_than_those_between_blocks(
    graph: PlanningGraph, least: Fraction
) -> None:
    blocks = BlockTrees(NumberedGraph(graph), strength(graph).parts)
    assume(blocks.count <= FEW)
    best = best_of_two(graph, ForestOptions(min_rate=least))
    assert best <= chosen(blocks, 2, least).bound * (1 + 1e-6)


@pytest.mark.slow
@given(networks(5), st.integers(1, 2))
@settings(max_examples=examples(13, of=40))
def test_trees_between_blocks_become_spanning_trees(graph: PlanningGraph, most: int) -> None:
    numbered = NumberedGraph(graph)
    parts = strength(graph).parts
    blocks = BlockTrees(numbered, parts)
    block = {numbered.graph.index[name]: i for i, part in enumerate(parts) for name in part}
    assume(blocks.count <= FEW)
    choice = chosen(blocks, most)
    trees = blocks.continued(choice.rates)
    assert len(trees) == len(choice.rates) <= most
    for tree in trees:
        assert nx.is_tree(nx.Graph([numbered.ends[edge] for edge in tree]))
        assert len(tree) == numbered.size - 1
        between = [edge for edge in tree if len({block[end] for end in numbered.ends[edge]}) == 2]
        assert len(between) == len(parts) - 1


def test_parallel_links_between_blocks_are_distinguished() -> None:
    # Two pairs, four links between them: one group each, and any one of the links joins them.
    edges = [("a", "b", 9), ("c", "d", 9), ("a", "c", 1), ("a", "d", 2), ("b", "c", 3)]
    blocks = BlockTrees(NumberedGraph(network_of(edges)), [("a", "b"), ("c", "d")])
    assert blocks.count == 3
    for most, rate in ((1, 3), (2, 5), (3, 6)):
        choice = chosen(blocks, most)
        assert choice.throughput == rate
        assert len(choice.rates) == most


def test_inside_blocks_the_widest_way_is_taken() -> None:
    edges = [("a", "b", 9), ("b", "c", 9), ("a", "c", 4), ("c", "d", 3)]
    numbered = NumberedGraph(network_of(edges))
    blocks = BlockTrees(numbered, [("a", "b", "c"), ("d",)])
    (tree,) = blocks.continued(chosen(blocks, 1).rates)
    names = numbered.graph.nodes
    used = {"".join(sorted(names[end] for end in numbered.ends[edge])) for edge in tree}
    assert used == {"ab", "bc", "cd"}


def test_inside_blocks_later_trees_take_what_is_left() -> None:
    edges = [("a", "b", 9), ("b", "c", 9), ("a", "c", 4), ("c", "d", 8), ("b", "d", 2)]
    numbered = NumberedGraph(network_of(edges))
    blocks = BlockTrees(numbered, [("a", "b", "c"), ("d",)])
    names = numbered.graph.nodes
    first, second = (
        {"".join(sorted(names[end] for end in numbered.ends[edge])) for edge in tree}
        for tree in blocks.continued(chosen(blocks, 2).rates)
    )
    assert first == {"ab", "bc", "cd"}
    assert second > {"ac", "bd"}
