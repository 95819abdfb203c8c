from __future__ import annotations

import math
from fractions import Fraction
from time import monotonic

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.planning.bounds.strength import strength
from hopsum.planning.model.graph import PlanningGraph
from hopsum.planning.spanning.spanning_trees import Lengths, NumberedGraph, Tree
from hopsum.planning.spanning.tree_choice import residual
from hopsum.planning.spanning.tree_enumeration import all_trees
from hopsum.planning.spanning.tree_peeling import Peeling, ResidualNetwork, largest_share
from tests.support.search import examples
from tests.support.tree_world import named, network_of, networks

NEVER = math.inf


def peeling(
    numbered: NumberedGraph, most: int | None, least: Fraction = Fraction(0), seed: int = 0
) -> Peeling:
    def grow(lengths: Lengths) -> Tree:
        return tuple(numbered.minimum_tree(lengths).tolist())

    return Peeling(numbered, most=most, least=least, grow=grow, seed=seed)


def strength_without(numbered: NumberedGraph, tree: Tree, rate: Fraction) -> Fraction:
    """The strength of what a tree leaves."""
    names = numbered.graph.nodes
    left = {
        (names[u], names[v]): capacity - (rate if edge in tree else 0)
        for edge, ((u, v), capacity) in enumerate(
            zip(numbered.ends, numbered.capacity, strict=True)
        )
    }
    rest = {edge: capacity for edge, capacity in left.items() if capacity > 0}
    everyone = frozenset(names)
    graph = PlanningGraph("rest", names, rest, dict.fromkeys(rest, 0.0), everyone, everyone)
    return strength(graph).bound if rest else Fraction(0)


@pytest.mark.slow
@given(networks(5), st.integers(0, 99), st.sampled_from([Fraction(1), Fraction(7, 8)]))
@settings(max_examples=examples(26, of=80))
def test_the_rest_carries_what_is_left_and_no_more(
    graph: PlanningGraph, number: int, part: Fraction
) -> None:
    numbered = NumberedGraph(graph)
    trees = list(all_trees(numbered))
    tree = trees[number % len(trees)]
    whole = part * strength(graph).bound
    rest = ResidualNetwork.of(numbered, whole)
    rate = largest_share(numbered, rest, tree)[0] * rest.unit
    room = min(numbered.capacity[edge] for edge in tree)
    assert 0 <= rate <= room
    assert strength_without(numbered, tree, rate) >= whole - rate
    more = rate + Fraction(1, 10**6)
    if more <= min(room, whole):
        assert strength_without(numbered, tree, more) < whole - more


def test_shares_below_the_requested_one_are_not_computed() -> None:
    numbered = NumberedGraph(named("torus:3x3"))
    rest = ResidualNetwork.of(numbered, strength(numbered.graph).bound)
    tree = next(all_trees(numbered))
    share, limiting = largest_share(numbered, rest, tree)
    assert largest_share(numbered, rest, tree, share - Fraction(1, 9)) == (share, limiting)
    assert largest_share(numbered, rest, tree, share + Fraction(1, 9))[0] <= share + Fraction(1, 9)


def test_limiting_edges_of_a_tree() -> None:
    # A triangle on a string: the string is slow, or the tree crosses the triangle too often.
    edges = [("a", "b", 4), ("b", "c", 4), ("a", "c", 4), ("c", "d", 3)]
    numbered = NumberedGraph(network_of(edges))
    names = numbered.graph.nodes
    tree = next(all_trees(numbered))
    share, limiting = largest_share(numbered, ResidualNetwork.of(numbered, Fraction(3)), tree)
    assert share == 3
    assert [{names[end] for end in numbered.ends[edge]} for edge in limiting] == [{"c", "d"}]
    numbered = NumberedGraph(network_of([("a", "b", 2), ("a", "c", 4), ("b", "c", 9)]))
    share, limiting = largest_share(numbered, ResidualNetwork.of(numbered, Fraction(6)), (0, 1))
    assert share == 0
    assert limiting == [0, 1]


@pytest.mark.slow
def test_trees_learn_what_to_cross_once() -> None:
    numbered = NumberedGraph(named("torus:6x6"))
    whole = strength(numbered.graph).bound
    for seed in range(3):
        assert sum(peeling(numbered, None, seed=seed).trees(whole, NEVER).values()) == whole


def test_residuals_are_integer_multiples_of_the_unit() -> None:
    numbered = NumberedGraph(network_of([("a", "b", 3), ("b", "c", 3), ("a", "c", 3)]))
    rest = ResidualNetwork.of(numbered, Fraction(9, 2))
    rest.take((0, 1), Fraction(4, 3))
    assert [value * rest.unit for value in rest.capacity] == [
        Fraction(7, 3),
        Fraction(7, 3),
        3,
    ]
    assert rest.rate * rest.unit == Fraction(9, 2) - Fraction(2, 3)


@pytest.mark.slow
@given(networks(6), st.integers(0, 3))
@settings(max_examples=examples(20, of=60))
def test_the_whole_strength_is_taken(graph: PlanningGraph, seed: int) -> None:
    numbered = NumberedGraph(graph)
    whole = strength(graph).bound
    rates = peeling(numbered, None, seed=seed).trees(whole, NEVER)
    assert sum(rates.values()) == whole
    assert min(residual(numbered, rates)) >= 0
    assert all(tree in set(all_trees(numbered)) for tree in rates)


@pytest.mark.slow
@given(networks(6), st.integers(1, 3), st.sampled_from([Fraction(0), Fraction(1), Fraction(2)]))
@settings(max_examples=examples(13, of=40))
def test_no_more_and_no_slower_trees_than_asked_for(
    graph: PlanningGraph, most: int, least: Fraction
) -> None:
    numbered = NumberedGraph(graph)
    rates = peeling(numbered, most, least).trees(strength(graph).bound, NEVER)
    assert len(rates) <= most
    assert all(rate >= least for rate in rates.values())
    assert min(residual(numbered, rates)) >= 0


def test_links_all_equal_come_out_as_in_euclids_algorithm() -> None:
    # K4 with one edge missing has the strength 5/3 = [1; 1, 2].
    edges = [("a", "b"), ("b", "c"), ("c", "d"), ("a", "d"), ("a", "c")]
    numbered = NumberedGraph(network_of([(u, v, 1) for u, v in edges]))
    rates = peeling(numbered, 10).trees(Fraction(5, 3), NEVER)
    assert sorted(rates.values(), reverse=True) == [
        Fraction(2, 3),
        Fraction(1, 3),
        Fraction(1, 3),
        Fraction(1, 3),
    ]


def test_nothing_is_taken_after_the_deadline() -> None:
    numbered = NumberedGraph(named("torus:4x4"))
    assert peeling(numbered, 10).trees(Fraction(32, 15), monotonic() - 1) == {}


def test_the_same_seed_gives_the_same_trees() -> None:
    numbered = NumberedGraph(named("torus:4x4"))
    one, again, other = (
        peeling(numbered, 6, seed=seed).trees(Fraction(32, 15), NEVER) for seed in (1, 1, 2)
    )
    assert one == again != other
