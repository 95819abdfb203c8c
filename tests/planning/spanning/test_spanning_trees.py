from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from time import monotonic
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.collectives.plan import PlanError
from hopsum.planning.bounds.strength import strength
from hopsum.planning.model.forest import ForestOptions
from hopsum.planning.model.graph import PlanningGraph
from hopsum.planning.spanning.equal_rates import (
    copies,
    halved_rates,
    largest_rate,
    trees_of_rate,
    unit_rates,
)
from hopsum.planning.spanning.low_trees import LowTrees
from hopsum.planning.spanning.spanning_trees import Limits, NumberedGraph, Tree, check_possible
from hopsum.planning.spanning.tree_choice import (
    _exact,
    choose_trees,
    exact_rates,
    fractional_bound,
    residual,
)
from hopsum.planning.spanning.tree_enumeration import all_trees, count_trees
from hopsum.planning.spanning.tree_packing import TreePacking, equal_trees
from tests.support.search import examples
from tests.support.tree_world import named, network_of, networks, spanning_trees

NEVER = math.inf


def as_networkx(numbered: NumberedGraph, tree: Tree) -> nx.Graph[int]:
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(numbered.size))
    for edge in tree:
        graph.add_edge(*numbered.ends[edge], delay=numbered.delay[edge])
    return graph


@pytest.mark.slow
@given(networks())
@settings(max_examples=examples(20, of=60))
def test_all_trees(graph: PlanningGraph) -> None:
    numbered = NumberedGraph(graph)
    found = list(all_trees(numbered))
    assert (
        len(set(found)) == len(found) == len(spanning_trees(graph)) == round(count_trees(numbered))
    )
    assert all(nx.is_tree(as_networkx(numbered, tree)) for tree in found)


@pytest.mark.slow
@given(networks(7))
@settings(max_examples=examples(20, of=60))
def test_minimum_trees_and_heights(graph: PlanningGraph) -> None:
    numbered = NumberedGraph(graph)
    lengths = np.array([float(capacity) for capacity in numbered.capacity]) - 1.0
    tree = numbered.minimum_tree(lengths).tolist()
    shortest = min(sum(lengths[list(other)]) for other in all_trees(numbered))
    assert sum(lengths[tree]) == shortest
    by_hops = nx.eccentricity(as_networkx(numbered, tree))
    assert numbered.eccentricities(tree, numbered.hops) == [
        by_hops[i] for i in range(numbered.size)
    ]
    root = numbered.best_root(tree, Limits())
    assert root is not None
    assert by_hops[root] == min(by_hops.values())
    assert numbered.best_root(tree, Limits(height=by_hops[root] - 1)) is None
    rated = numbered.rated(tree, root, Fraction(1))
    assert rated.height == by_hops[root]


@pytest.mark.slow
@given(networks(), st.integers(1, 6))
@settings(max_examples=examples(26, of=80))
def test_equal_trees_exist_as_nash_williams_says(graph: PlanningGraph, count: int) -> None:
    numbered = NumberedGraph(graph)
    number = [int(capacity) for capacity in numbered.capacity]
    found = equal_trees(numbered, number, count, seed=0, deadline=NEVER)
    assert (found is not None) == (strength(graph).bound >= count)
    if found is not None:
        assert sum(found.values()) == count
        assert all(nx.is_tree(as_networkx(numbered, tree)) for tree in found)
        for edge, most in enumerate(number):
            assert sum(times for tree, times in found.items() if edge in tree) <= most


@given(networks(), st.integers(1, 5))
@settings(max_examples=examples(13, of=40))
def test_no_larger_equal_rate(graph: PlanningGraph, count: int) -> None:
    numbered = NumberedGraph(graph)
    rate = largest_rate(numbered, count, strength(graph).bound)
    assert trees_of_rate(numbered, rate, count, seed=1, deadline=NEVER) is not None
    larger = [c / j for c in numbered.capacity for j in range(1, count + 1) if c / j > rate]
    if larger:
        wanted = copies(numbered, min(larger))
        assert equal_trees(numbered, wanted, count, seed=1, deadline=NEVER) is None


def test_packing_stops_at_its_deadline() -> None:
    numbered = NumberedGraph(named("torus:8x8"))
    assert equal_trees(numbered, [63] * 128, 128, seed=0, deadline=monotonic() - 1) is None


@given(networks())
@settings(max_examples=examples(13, of=40))
def test_rates_of_all_trees_reach_the_strength(graph: PlanningGraph) -> None:
    numbered = NumberedGraph(graph)
    trees = list(all_trees(numbered))[:200]
    bound = strength(graph).bound
    if len(trees) < 200:
        assert bound <= fractional_bound(numbered, trees) <= bound * Fraction(1_000_001, 1_000_000)
        rates = exact_rates(numbered, trees)
        assert rates is not None
        assert bound * Fraction(999_999, 1_000_000) <= sum(rates.values()) <= bound


@pytest.mark.slow
@given(networks(), st.sampled_from([Fraction(1, 10), Fraction(1, 1000)]))
@settings(max_examples=examples(13, of=40))
def test_trees_within_a_gap_of_the_strength(graph: PlanningGraph, gap: Fraction) -> None:
    numbered = NumberedGraph(graph)
    bound = strength(graph).bound
    halved = halved_rates(numbered, bound, gap, seed=0, deadline=NEVER)
    for rates in (halved, unit_rates(numbered, bound, gap, seed=0, deadline=NEVER)):
        if rates is None:
            continue
        assert bound * (1 - gap) <= sum(rates.values()) <= bound
        assert min(residual(numbered, rates)) >= 0
        assert all(nx.is_tree(as_networkx(numbered, tree)) for tree in rates)


def test_trees_of_a_unit() -> None:
    # The strength is 8 / 3 of a unit of 7: 2.5 with trees of half a unit.
    graph = network_of(
        [("a", "b", 7), ("b", "c", 14), ("c", "d", 14), ("a", "d", 7), ("b", "d", 14)]
    )
    numbered = NumberedGraph(graph)
    bound = strength(graph).bound
    assert bound == 14
    rates = unit_rates(numbered, bound, Fraction(1, 1000), seed=0, deadline=NEVER)
    assert rates is not None
    assert sum(rates.values()) == 14
    odd = network_of([("a", "b", 10007), ("b", "c", 10009), ("a", "c", 10037)])
    bound = strength(odd).bound
    assert unit_rates(NumberedGraph(odd), bound, Fraction(1, 1000), seed=0, deadline=NEVER) is None


def test_halving_keeps_what_was_found() -> None:
    numbered = NumberedGraph(named("complete:5"))
    packing = TreePacking(numbered, 0)
    assert packing.fill([1] * 10, 2, NEVER)
    assert packing.count == 2
    one = set(packing.numbers)
    packing.double()
    assert packing.fill([2] * 10, 5, NEVER)
    assert packing.count == 5
    assert sum(packing.numbers.values()) == 5
    assert len(one & set(packing.numbers)) >= 1
    assert not packing.fill([2] * 10, 6, NEVER)


def test_halving_stops_at_its_deadline() -> None:
    numbered = NumberedGraph(named("torus:4x4"))
    assert halved_rates(numbered, Fraction(2), Fraction(0), seed=0, deadline=monotonic() - 1) == {}


def test_rates_are_small_fractions_where_these_fit() -> None:
    numbered = NumberedGraph(network_of([("a", "b", 3), ("b", "c", 3), ("a", "c", 3)]))
    rates = exact_rates(numbered, list(all_trees(numbered)))
    assert rates is not None
    assert set(rates.values()) == {Fraction(3, 2)}


def test_rates_with_a_floor() -> None:
    numbered = NumberedGraph(network_of([("a", "b", 3), ("b", "c", 3), ("a", "c", 3)]))
    one, other = list(all_trees(numbered))[:2]
    assert exact_rates(numbered, [one, other], Fraction(2)) is None
    rates = exact_rates(numbered, [one, other], Fraction(1))
    assert rates is not None
    assert min(rates.values()) >= 1
    assert sum(rates.values()) == 3


def test_capacities_without_a_common_unit() -> None:
    graph = network_of(
        [("a", "b", Fraction(1000003, 7)), ("b", "c", Fraction(999983, 11)), ("a", "c", 90001)]
    )
    numbered = NumberedGraph(graph)
    bound = strength(graph).bound
    rates = halved_rates(numbered, bound, Fraction(1, 10**6), seed=0, deadline=NEVER)
    assert bound * Fraction(999_999, 1_000_000) <= sum(rates.values()) <= bound
    assert min(residual(numbered, rates)) >= 0
    rates = exact_rates(numbered, list(all_trees(numbered)))
    assert rates is not None
    assert bound * Fraction(10**9 - 1, 10**9) <= sum(rates.values()) <= bound
    assert min(residual(numbered, rates)) >= 0


def test_rates_with_large_denominators_lose_nothing() -> None:
    edges = [("a", "b", 1000003), ("b", "c", 999983), ("a", "c", 900007), ("c", "d", 1299709)]
    graph = network_of([*edges, ("b", "d", 700001), ("a", "d", 611953)])
    numbered = NumberedGraph(graph)
    rates = exact_rates(numbered, list(all_trees(numbered)))
    assert rates is not None
    assert min(residual(numbered, rates)) >= 0
    assert sum(rates.values()) == strength(graph).bound


def test_rates_above_capacity_are_reduced() -> None:
    numbered = NumberedGraph(network_of([("a", "b", 1000003), ("b", "c", 7), ("a", "c", 900007)]))
    trees = list(all_trees(numbered))
    rates = _exact(numbered, [0.5, 0.7, 0.123456789], trees, numbered.capacity)
    assert min(residual(numbered, dict(zip(trees, rates, strict=True)))) >= 0


def test_choice_of_trees() -> None:
    numbered = NumberedGraph(named("complete:4"))
    pool = list(all_trees(numbered))
    for most, throughput in ((1, 1), (2, 2), (3, 2)):
        choice = choose_trees(
            numbered,
            pool,
            max_trees=most,
            min_rate=Fraction(0),
            gap=1e-6,
            seed=0,
            deadline=monotonic() + 60,
            nodes=10**6,
        )
        assert (choice.throughput, choice.in_time) == (throughput, True)
        assert len(choice.rates) <= most


@pytest.mark.parametrize(
    ("spec", "limits"),
    [
        ("torus:4x4", Limits(height=4)),
        ("torus:4x4", Limits(height=6)),
        ("hypercube:4", Limits(height=4)),
        ("random-regular:40x3", Limits(height=7)),
        ("complete:9", Limits(height=1)),
    ],
)
def test_low_trees(spec: str, limits: Limits) -> None:
    numbered = NumberedGraph(named(spec))
    roots = list(range(numbered.size))
    low = LowTrees(numbered, limits, roots, [True] * len(numbered.ends))
    assert low.roots
    random = np.random.default_rng(3)
    for root in low.roots[:5]:
        tree = low.short_tree(random.random(len(numbered.ends)), root)
        shape = as_networkx(numbered, tree)
        assert nx.is_tree(shape)
        assert limits.height is not None
        assert nx.eccentricity(shape, root) <= limits.height


@pytest.mark.slow
@given(networks(), st.integers(1, 4), st.lists(st.integers(1, 9), min_size=20, max_size=20))
@settings(max_examples=examples(26, of=80))
def test_low_trees_exist_at_the_roots_near_to_all(
    graph: PlanningGraph, height: int, lengths: list[int]
) -> None:
    numbered = NumberedGraph(graph)
    reach = nx.eccentricity(as_networkx(numbered, tuple(range(len(numbered.ends)))))
    roots = list(range(numbered.size))
    low = LowTrees(numbered, Limits(height=height), roots, [True] * len(numbered.ends))
    assert low.roots == [root for root in roots if reach[root] <= height]
    for root in low.roots:
        tree = low.short_tree(np.array(lengths[: len(numbered.ends)], dtype=float), root)
        assert nx.eccentricity(as_networkx(numbered, tree), root) <= height


@pytest.mark.slow
@given(
    networks(7),
    st.lists(st.integers(0, 5), min_size=21, max_size=21),
    st.lists(st.integers(0, 9), min_size=21, max_size=21),
    st.integers(1, 12),
)
@settings(max_examples=examples(26, of=80))
def test_low_trees_in_seconds(
    graph: PlanningGraph, delays: list[int], lengths: list[int], delay: int
) -> None:
    latency = dict(zip(graph.latency, (1e-12 * delay for delay in delays), strict=False))
    numbered = NumberedGraph(replace(graph, latency=latency))
    whole = as_networkx(numbered, tuple(range(len(numbered.ends))))
    reach = nx.eccentricity(whole, weight="delay")
    roots = list(range(numbered.size))
    low = LowTrees(numbered, Limits(delay=delay), roots, [True] * len(numbered.ends))
    assert low.roots == [root for root in roots if reach[root] <= delay]
    for root in low.roots:
        tree = low.short_tree(np.array(lengths[: len(numbered.ends)], dtype=float), root)
        shape = as_networkx(numbered, tree)
        assert nx.is_tree(shape)
        assert nx.eccentricity(shape, root, weight="delay") <= delay


def test_low_trees_in_seconds_and_edges_at_once() -> None:
    # The straight way round is short in time, the star from a in edges.
    fast, slow = 1e-3, 4e-3
    edges = [("a", "b"), ("b", "c"), ("c", "d"), ("a", "c"), ("a", "d")]
    delays = {"a-b": fast, "b-c": fast, "c-d": fast, "a-c": slow, "a-d": slow}
    numbered = NumberedGraph(network_of([(u, v, 1) for u, v in edges], delays))
    for limits, some in (
        (Limits(height=1), True),
        (Limits(height=1, delay=4 * 10**9), True),
        (Limits(height=1, delay=3 * 10**9), False),
        (Limits(delay=3 * 10**9), True),
        (Limits(height=2, delay=2 * 10**9), True),
        (Limits(height=3, delay=10**9), False),
    ):
        low = LowTrees(numbered, limits, range(4), [True] * 5)
        assert bool(low.roots) is some
        for root in low.roots:
            tree = low.short_tree(np.ones(5), root)
            assert numbered.best_root(tree, limits) is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"max_height": 1},
            "no tree is as low as 1 edges: the lowest is rooted at b",
        ),
        (
            {"max_delay": 1e-3},
            r"as low as 0\.001 s: the lowest .* has 0\.002 s",
        ),
        (
            {"min_rate": Fraction(3)},
            r"no tree has the rate 3 asked for: the fastest edge out of \{d\} has 2",
        ),
        (
            {"min_rate": Fraction(2), "max_height": 1},
            "the lowest of that rate is rooted at b and has 2 edges",
        ),
        ({"max_trees": 0}, "max_trees 0: expected 1 or more"),
        ({"max_height": 0}, "max_height 0: expected 1 or more"),
        ({"max_delay": float("nan")}, "max_delay nan: expected 0 or more"),
        ({"min_rate": Fraction(-1)}, "min_rate -1: expected 0 or more"),
        ({"gap": float("nan")}, "gap nan: expected 0"),
        ({"time_limit": 0}, "time_limit 0: expected above 0 s"),
    ],
)
def test_why_there_is_no_tree(options: dict[str, Any], message: str) -> None:
    path = network_of([("a", "b", 4), ("b", "c", 4), ("c", "d", 2)])
    with pytest.raises(PlanError, match=message):
        check_possible(NumberedGraph(path), ForestOptions(**options))


def test_no_node_meets_both_limits() -> None:
    # In edges a is next to all, in seconds x and y are.
    edges = [("a", "w"), ("a", "x"), ("a", "y"), ("a", "z"), ("w", "x"), ("x", "y"), ("y", "z")]
    slow = {"a-w": 9e-3, "a-y": 9e-3, "a-z": 9e-3}
    numbered = NumberedGraph(network_of([(u, v, 1) for u, v in edges], slow))
    names = numbered.graph.nodes
    for options, roots in (
        (ForestOptions(max_height=1), ["a"]),
        (ForestOptions(max_delay=2e-3), ["x", "y"]),
        (ForestOptions(max_height=2, max_delay=2e-3), ["x", "y"]),
    ):
        assert sorted(names[root] for root in check_possible(numbered, options)) == roots
    with pytest.raises(PlanError, match=r"no node is within both 1 edges and 0\.002 s"):
        check_possible(numbered, ForestOptions(max_height=1, max_delay=2e-3))


def test_networks_that_trees_of_hosts_do_not_fit() -> None:
    graph = named("torus:3x3")
    some = PlanningGraph(
        "some", graph.nodes, graph.capacity, graph.latency, frozenset({"h1", "h2"}), graph.combines
    )
    with pytest.raises(PlanError, match="every node to be a worker; these are none: h3, h4"):
        NumberedGraph(some)
    alone = PlanningGraph("one", ("h1",), {}, {}, frozenset({"h1"}), frozenset({"h1"}))
    with pytest.raises(PlanError, match="one: h1 is alone"):
        NumberedGraph(alone)
