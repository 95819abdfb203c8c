from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.network.loaders import load_network
from hopsum.planning.bounds.few_trees import bound_of_few, fractions_below, largest_determinant
from hopsum.planning.bounds.strength import strength
from hopsum.planning.model.forest import Certificate, ForestOptions
from hopsum.planning.model.graph import PlanningGraph, planning_graph
from hopsum.planning.spanning.spanning_trees import NumberedGraph
from hopsum.planning.spanning.tree_choice import exact_rates
from hopsum.planning.spanning.tree_enumeration import all_trees
from tests.support.paths import EXAMPLES
from tests.support.search import examples
from tests.support.tree_world import best_of_two, named, network_of, networks


def bound(graph: PlanningGraph, count: int) -> Certificate:
    return bound_of_few(graph, count, strength(graph))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_no_matrix_of_0_and_1_has_a_larger_determinant(size: int) -> None:
    bits = np.arange(2 ** (size * size))[:, None] >> np.arange(size * size) & 1
    found = np.linalg.det(bits.reshape(-1, size, size)).max()
    assert round(float(found)) == largest_determinant(size)


@pytest.mark.parametrize("size", [5, 6, 7])
def test_the_largest_determinant_is_attained(size: int) -> None:
    draw = np.random.default_rng(1)
    best = 0.0
    for _ in range(30):
        matrix = draw.integers(0, 2, (size, size)).astype(float)
        found = 0.0
        while True:
            row, column = np.divmod(np.arange(size * size), size)
            flipped = np.repeat(matrix[np.newaxis], size * size, axis=0)
            flipped[np.arange(size * size), row, column] = 1 - matrix[row, column]
            all_found = np.abs(np.linalg.det(flipped))
            if all_found.max() < found + 0.5:
                break
            found = float(all_found.max())
            matrix = flipped[int(all_found.argmax())]
        best = max(best, found)
    assert round(best) == largest_determinant(size)


@pytest.mark.parametrize("size", range(1, 40))
def test_hadamards_bound_on_larger_matrices(size: int) -> None:
    # Exact at 11, where there is a Hadamard matrix of 12.
    assert largest_determinant(11) == 1458
    assert largest_determinant(size - 1) <= largest_determinant(size)
    assert largest_determinant(size) <= (size + 1) ** ((size + 1) / 2) / 2**size * (1 + 1e-9)


@pytest.mark.slow
@given(st.fractions(0, 5, max_denominator=60), st.integers(1, 80))
def test_fractions_below(value: Fraction, denominator: int) -> None:
    best = {
        max(Fraction(top, part) for part in range(1, most + 1) for top in [value * part // 1])
        for most in range(1, denominator + 1)
    }
    assert fractions_below(value, denominator) == sorted(best, reverse=True)


@pytest.mark.slow
@given(networks(5))
@settings(max_examples=examples(20, of=60))
def test_two_trees_are_never_faster(graph: PlanningGraph) -> None:
    found = bound(graph, 2)
    assert best_of_two(graph, ForestOptions()) <= found.bound <= strength(graph).bound


@pytest.mark.slow
@given(networks(5))
def test_one_tree_is_bounded_by_the_fastest(graph: PlanningGraph) -> None:
    numbered = NumberedGraph(graph)
    fastest = max(min(numbered.capacity[edge] for edge in tree) for tree in all_trees(numbered))
    assert bound(graph, 1).bound == fastest


@pytest.mark.slow
@given(networks(5), st.integers(3, 4), st.integers(0, 9))
@settings(max_examples=examples(12, of=60))
def test_no_trees_are_faster(graph: PlanningGraph, count: int, seed: int) -> None:
    numbered = NumberedGraph(graph)
    trees = list(all_trees(numbered))
    Random(seed).shuffle(trees)
    for few in list(combinations(trees, min(count, len(trees))))[:20]:
        rates = exact_rates(numbered, few)
        assert rates is not None
        assert sum(rates.values()) <= bound(graph, count).bound


def test_bounds_on_few_trees() -> None:
    nsfnet = planning_graph(load_network(str(EXAMPLES / "nsfnet.json")))
    link = Fraction(1_544_000)
    for graph, count, kind, reached in (
        (nsfnet, 10, "partition", Fraction(21, 13) * link),
        (nsfnet, 6, "determinant", Fraction(8, 5) * link),
        (nsfnet, 5, "determinant", Fraction(8, 5) * link),
        (nsfnet, 4, "determinant", Fraction(3, 2) * link),
        (nsfnet, 1, "bottleneck", link),
        (named("torus:4x4"), 5, "determinant", 2),
        (named("torus:4x4"), 10, "partition", Fraction(32, 15)),
        (named("complete:8"), 2, "bottleneck", 2),
    ):
        found = bound(graph, count)
        assert (found.kind, found.bound) == (kind, reached)
    text = bound(nsfnet, 5).text
    assert "no plan is faster than 2.4704M" in text
    assert "determinant is at most 5" in text


def test_the_bottleneck_is_named() -> None:
    graph = network_of([("a", "b", 9), ("b", "c", 2), ("a", "c", 3), ("c", "d", 8)])
    assert "no faster than a-c" in bound(graph, 1).text
