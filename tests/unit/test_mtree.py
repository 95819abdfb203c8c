from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from time import monotonic

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.plan import PlanError
from controller.planners.forest import Forest, ForestOptions, Verdict
from controller.planners.forest_checker import check_forest
from controller.planners.graph import PlanningGraph
from controller.planners.mtree import _Growth, _lowered, plan_mtree
from controller.planners.spanning_trees import NumberedGraph
from tests.unit.tree_world import named, network_of, networks


def checked(graph: PlanningGraph, options: ForestOptions) -> Forest:
    forest = plan_mtree(graph, options)
    check_forest(graph, forest, options)
    return forest


def edges_of(forest: Forest) -> list[list[tuple[str, str]]]:
    return [sorted(tree.parents.items()) for tree in forest.trees]


@pytest.mark.parametrize(
    ("spec", "throughput"),
    [("complete:8", 1), ("torus:4x4", 1), ("hypercube:4", 1), ("complete:2", 1)],
)
def test_equal_capacities_leave_one_tree(spec: str, throughput: int) -> None:
    # The first tree fills its edges: with most of them gone the rest often is in pieces.
    assert checked(named(spec), ForestOptions()).throughput == throughput


def test_the_widest_edges_come_first_then_the_lowest_tree() -> None:
    # All edges of the wheel are equally wide: from any start, the hub's star is lowest.
    wheel = network_of(
        [("hub", x, 2) for x in "abcd"] + [("a", "b", 2), ("b", "c", 2), ("c", "d", 2)]
    )
    for seed in range(6):
        forest = plan_mtree(wheel, ForestOptions(seed=seed, max_height=2))
        assert forest.trees[0].height <= 2
    wide = network_of([("a", "b", 5), ("b", "c", 5), ("c", "d", 5), ("a", "c", 4), ("a", "d", 4)])
    first = plan_mtree(wide, ForestOptions(max_trees=1)).trees[0]
    assert sorted(map(sorted, first.parents.items())) == [["a", "b"], ["b", "c"], ["c", "d"]]
    assert first.rate == 5


def test_every_tree_takes_the_smallest_bandwidth_left_anywhere() -> None:
    # 000 step 1 as in the paper's line 22: 1 of c-d is the least, although no tree needs it yet.
    graph = network_of([("a", "b", 3), ("b", "c", 3), ("a", "c", 2), ("b", "d", 3), ("c", "d", 1)])
    numbered = NumberedGraph(graph)
    growth = _Growth(numbered, numbered.hops, ForestOptions(), monotonic() + 60)
    rates = [rate for _, rate in growth.trees(3)]
    assert rates[0] == 1
    for tree, _ in growth.trees(3)[:1]:
        assert {numbered.capacity[edge] for edge in tree} == {Fraction(3)}


def test_the_limit_is_on_the_diameter() -> None:
    path = network_of([("a", "b", 1), ("b", "c", 1), ("c", "d", 1)], {"b-c": 3e-3})
    with pytest.raises(PlanError, match="no tree is as low"):
        plan_mtree(path, ForestOptions(max_delay=2.5e-3))
    assert checked(path, ForestOptions(max_delay=4e-3)).throughput == 1
    with pytest.raises(PlanError, match="mtree knows one height"):
        plan_mtree(path, ForestOptions(max_delay=1.0, max_height=3))


@given(
    networks(),
    st.integers(0, 3),
    st.sampled_from([None, 1, 2, 4]),
    st.sampled_from([None, 2, 3]),
    st.integers(0, 2),
)
@settings(max_examples=80)
def test_plans_hold(
    graph: PlanningGraph, seed: int, most: int | None, height: int | None, least: int
) -> None:
    options = ForestOptions(
        max_trees=most, max_height=height, min_rate=Fraction(least), seed=seed, time_limit=60
    )
    try:
        forest = checked(graph, options)
    except PlanError as error:
        assert height is not None or least
        assert "do not hold" not in str(error)
        return
    again = plan_mtree(graph, options)
    assert (edges_of(again), again.throughput) == (edges_of(forest), forest.throughput)


def test_delays_limit_diameters() -> None:
    graph = named("torus:3x3")
    graph = replace(graph, latency=dict.fromkeys(graph.latency, 0.1))
    forest = checked(graph, ForestOptions(max_delay=0.2))
    assert forest.trees[0].height <= 2


def test_heights_shrink_as_long_as_the_throughput_stays() -> None:
    # 000 step 2: the widest tree is a path; stars carry 20 of 21, and 95 % will do.
    graph = network_of((f"n{i}", f"n{j}", 10 - (j - i)) for i, j in combinations(range(6), 2))
    numbered = NumberedGraph(graph)
    growth = _Growth(numbered, numbered.hops, ForestOptions(), monotonic() + 60)
    assert sum(rate for _, rate in growth.trees(5)) == 21
    lowered = _lowered(growth, 5)
    assert sum(rate for _, rate in lowered) == 20
    forest = checked(graph, ForestOptions())
    assert {tree.height for tree in forest.trees} == {1}


def test_a_slow_edge_does_not_make_the_trees_endless() -> None:
    wide = 10**9
    edges = [("a", "b", wide), ("b", "c", wide), ("a", "c", wide), ("c", "d", wide), ("b", "d", 1)]
    forest = checked(network_of(edges), ForestOptions())
    assert forest.throughput >= wide
    assert forest.verdict is Verdict.OPTIMAL


def test_the_time_limit_says_so() -> None:
    assert plan_mtree(named("torus:4x4"), ForestOptions()).verdict is Verdict.FEASIBLE
    with pytest.raises(PlanError, match="mtree found no tree in 1e-09 s"):
        plan_mtree(named("torus:4x4"), ForestOptions(time_limit=1e-9))


def test_the_greedy_growth_may_find_nothing() -> None:
    # The ring's wide edges use up the diameter before the hub's chords come.
    ring = [(f"n{i}", f"n{(i + 1) % 8}", 100) for i in range(8)]
    chords = [("n0", f"n{i}", 99) for i in range(2, 7)]
    with pytest.raises(PlanError, match="mtree found no tree within the limits"):
        plan_mtree(network_of(ring + chords), ForestOptions(max_height=2))
