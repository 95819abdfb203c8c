from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.collectives.plan import PlanError
from hopsum.network.loaders import load_network
from hopsum.planning.bounds.strength import strength
from hopsum.planning.model.forest import Forest, ForestOptions, Verdict
from hopsum.planning.model.forest_checker import check_forest
from hopsum.planning.model.graph import PlanningGraph, planning_graph
from hopsum.planning.spanning import multi_tree
from hopsum.planning.spanning.mtree import plan_mtree
from hopsum.planning.spanning.multi_tree import _MultiTreePlanner, plan_multi_tree
from tests.support.paths import EXAMPLES
from tests.support.search import examples
from tests.support.tree_world import best_of_two, named, network_of, networks, spanning_trees

LONG = 600.0
"""Seconds: nothing here needs them, and a busy machine must not decide a test."""


@pytest.fixture(autouse=True)
def short_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few moves are enough for what is claimed here; benchmarks measure the rest."""
    monkeypatch.setattr(multi_tree, "moves_for", lambda _: 60)
    monkeypatch.setattr(multi_tree, "peelings_for", lambda _: 10)


def checked(graph: PlanningGraph, options: ForestOptions) -> Forest:
    options = replace(options, time_limit=LONG)
    forest = plan_multi_tree(graph, options)
    check_forest(graph, forest, options)
    return forest


def part_of_strength(graph: PlanningGraph, options: ForestOptions) -> Fraction:
    return checked(graph, options).throughput / strength(graph).bound


def wide_area(name: str) -> PlanningGraph:
    return planning_graph(load_network(str(EXAMPLES / f"{name}.json")))


@pytest.mark.slow
@pytest.mark.parametrize(
    "graph",
    [
        *map(named, ("complete:8", "complete:16", "torus:4x4", "torus:5x3", "torus:8x8")),
        *map(named, ("hypercube:4", "random-regular:40x3", "random-regular:16x5", "dgx1")),
        *map(wide_area, ("abilene", "attmpls", "b4", "nsfnet")),
    ],
    ids=lambda graph: graph.name,
)
def test_the_strength_is_reached(graph: PlanningGraph) -> None:
    assert part_of_strength(graph, ForestOptions()) >= Fraction(999, 1000)


@pytest.mark.slow
def test_the_strength_is_reached_where_many_bandwidths_differ() -> None:
    graph = named("complete:40")
    draw = Random(5)
    capacity = {edge: Fraction(int(1000 * draw.paretovariate(1.2))) for edge in graph.capacity}
    assert part_of_strength(replace(graph, capacity=capacity), ForestOptions()) >= Fraction(
        999, 1000
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("graph", "most", "part"),
    [
        (named("dgx1"), 10, 1),
        (named("dgx1"), 5, Fraction(97, 100)),
        (wide_area("nsfnet"), 10, 1),
        (wide_area("nsfnet"), 5, Fraction(104, 105)),
        (wide_area("abilene"), 5, 1),
        (wide_area("attmpls"), 5, 1),
        (wide_area("b4"), 5, 1),
        (named("torus:4x4"), 10, 1),
        (named("torus:4x4"), 2, Fraction(93, 100)),
    ],
    ids=lambda value: value.name if isinstance(value, PlanningGraph) else str(value),
)
def test_few_trees_are_enough(graph: PlanningGraph, most: int, part: Fraction) -> None:
    options = ForestOptions(max_trees=most, gap=1e-4)
    assert part_of_strength(graph, options) >= part * Fraction(9999, 10000)


@pytest.mark.parametrize(
    ("graph", "most", "trees"),
    [(named("complete:8"), 10, 4), (wide_area("attmpls"), 10, 2), (named("torus:4x4"), 5, 2)],
    ids=lambda value: value.name if isinstance(value, PlanningGraph) else str(value),
)
def test_no_more_trees_than_it_takes(graph: PlanningGraph, most: int, trees: int) -> None:
    forest = checked(graph, ForestOptions(max_trees=most))
    assert forest.verdict is Verdict.OPTIMAL
    assert len(forest.trees) == trees


@pytest.mark.parametrize("height", [4, 5])
def test_low_trees_reach_the_strength_too(height: int) -> None:
    options = ForestOptions(max_height=height)
    assert part_of_strength(named("torus:4x4"), options) >= Fraction(999, 1000)


@pytest.mark.slow
@given(
    networks(5),
    st.sampled_from([None, 1, 2, 3]),
    st.sampled_from([Fraction(0), Fraction(1), Fraction(2)]),
    st.integers(0, 3),
)
@settings(max_examples=examples(15, of=60))
def test_two_trees_are_the_best_there_are(
    graph: PlanningGraph, height: int | None, least: Fraction, seed: int
) -> None:
    options = ForestOptions(max_trees=2, max_height=height, min_rate=least, gap=1e-5, seed=seed)
    best = best_of_two(graph, options)
    if not best:
        with pytest.raises(PlanError, match="no tree"):
            checked(graph, options)
        return
    forest = checked(graph, options)
    assert forest.verdict is Verdict.OPTIMAL
    assert forest.throughput == best


@pytest.mark.slow
@given(networks(5), st.sampled_from([1, 2, 3]))
@settings(max_examples=examples(12, of=40))
def test_low_trees_without_a_number_are_the_best_there_are(
    graph: PlanningGraph, height: int
) -> None:
    import networkx as nx
    import numpy as np
    from scipy.optimize import linprog

    low = [tree for tree in spanning_trees(graph) if nx.radius(tree) <= height]
    options = ForestOptions(max_height=height, gap=1e-6)
    if not low:
        with pytest.raises(PlanError, match="no tree is as low"):
            checked(graph, options)
        return
    uses = np.array(
        [[edge in {graph.edge(*e) for e in t.edges} for t in low] for edge in graph.capacity]
    )
    best = -linprog([-1.0] * len(low), uses, [float(c) for c in graph.capacity.values()]).fun
    forest = checked(graph, options)
    assert forest.verdict is Verdict.OPTIMAL
    assert float(forest.throughput) == pytest.approx(best, rel=1e-6)
    assert float(forest.bound) == pytest.approx(best, rel=1e-6)


@pytest.mark.slow
@given(networks(7), st.sampled_from([None, 1, 2, 5]), st.sampled_from([None, 2, 3, 5]))
@settings(max_examples=examples(5, of=15))
def test_never_slower_than_mtree(
    graph: PlanningGraph, most: int | None, height: int | None
) -> None:
    options = ForestOptions(max_trees=most, max_height=height, time_limit=LONG)
    try:
        other = plan_mtree(graph, options)
    except PlanError:
        return
    assert checked(graph, options).throughput >= other.throughput


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ForestOptions(seed=3),
        ForestOptions(max_trees=4, seed=3),
        ForestOptions(max_trees=3, max_height=4, seed=5),
        ForestOptions(min_rate=Fraction(1, 4), seed=2),
        ForestOptions(max_height=4),
    ],
    ids=["free", "few", "few and low", "fast", "low"],
)
def test_the_same_seed_gives_the_same_plan(options: ForestOptions) -> None:
    graph = named("random-regular:16x4")
    one, other = checked(graph, options), checked(graph, options)
    assert one.trees == other.trees
    assert one.verdict is not Verdict.TIME_LIMIT


@pytest.mark.slow
def test_rates_above_a_floor() -> None:
    forest = checked(named("torus:4x4"), ForestOptions(min_rate=Fraction(1, 3)))
    assert forest.throughput == 2
    assert min(tree.rate for tree in forest.trees) >= Fraction(1, 3)


def test_both_limits_at_once() -> None:
    graph = wide_area("attmpls")
    options = ForestOptions(max_height=6, max_delay=0.02)
    forest = checked(graph, options)
    assert forest.throughput > 0
    assert max(tree.delay(graph) for tree in forest.trees) <= 0.02


def test_certificates() -> None:
    assert checked(named("complete:6"), ForestOptions()).certificate.kind == "partition"
    few = checked(named("complete:8"), ForestOptions(max_trees=2))
    assert (few.certificate.kind, few.bound, few.verdict) == ("bottleneck", 2, Verdict.OPTIMAL)
    assert "a tree carries at most 1 " in few.certificate.text
    path = network_of([("a", "b", 2), ("b", "c", 2), ("a", "c", 2), ("c", "d", 4)])
    low = checked(path, ForestOptions(max_height=1))
    assert (low.certificate.kind, low.throughput) == ("enumeration", 2)
    assert low.bound < strength(path).bound == 3


def test_groups_of_nodes_bound_few_trees() -> None:
    # Too many trees to list; but only five links between the three groups.
    inside = [(f"{g}{i}", f"{g}{j}", 97) for g in "abc" for j in range(1, 6) for i in range(j)]
    between = [("a0", "b0", 7), ("a1", "b1", 5), ("b2", "c2", 11), ("b3", "c3", 3), ("a4", "c4", 2)]
    graph = network_of([*inside, *between])
    forest = checked(graph, ForestOptions(max_trees=2))
    # a0-b0 with 7 of b2-c2, and a1-b1 with the 4 that this has left; all links together: 14.
    assert strength(graph).bound == 14
    assert (forest.certificate.kind, forest.throughput) == ("blocks", 11)
    assert forest.verdict is Verdict.OPTIMAL
    assert "8 trees between 3 groups" in forest.certificate.text


def test_the_time_limit_is_no_error() -> None:
    graph, rng = named("torus:16x16"), Random(1)
    # Links too different to find and prove the best ten trees by chance.
    graph = replace(
        graph, capacity={edge: Fraction(rng.randint(1, 1000)) for edge in graph.capacity}
    )
    options = ForestOptions(max_trees=10, time_limit=0.01)
    forest = plan_multi_tree(graph, options)
    check_forest(graph, forest, options)
    assert forest.verdict is Verdict.TIME_LIMIT


def test_no_plan_is_a_plain_verdict() -> None:
    graph = named("torus:4x4")
    for options, message in (
        (ForestOptions(max_height=3), "lowest is rooted at h1 and has 4 edges"),
        (ForestOptions(min_rate=Fraction(3, 2)), "no tree has the rate 1.5 asked for"),
    ):
        with pytest.raises(PlanError, match=message):
            plan_multi_tree(graph, options)


def test_a_search_without_time_proves_nothing() -> None:
    planning = _MultiTreePlanner(named("torus:3x3"), ForestOptions(max_trees=2), 0.0)
    proved = planning.certificate
    planning._tighten("blocks", float("inf"), "")  # noqa: SLF001
    assert planning.certificate is proved
