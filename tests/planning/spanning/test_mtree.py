from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from time import monotonic

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.collectives.plan import PlanError
from hopsum.planning.bounds.strength import strength
from hopsum.planning.model.forest import Forest, ForestOptions, Verdict
from hopsum.planning.model.forest_checker import check_forest
from hopsum.planning.model.graph import PlanningGraph
from hopsum.planning.spanning.mtree import _Growth, _lowered, mtree_choice, plan_mtree
from hopsum.planning.spanning.spanning_trees import NumberedGraph
from tests.support.search import examples
from tests.support.tree_world import named, network_of, networks


def checked(graph: PlanningGraph, options: ForestOptions) -> Forest:
    forest = plan_mtree(graph, options)
    check_forest(graph, forest, options)
    return forest


def edges_of(forest: Forest) -> list[list[tuple[str, str]]]:
    return [sorted(tree.parents.items()) for tree in forest.trees]


def raw(graph: PlanningGraph, bandwidth: Fraction | None) -> Fraction:
    """The total rate of step 1's trees before step 3, with b or (None) by the paper's rule."""
    numbered = NumberedGraph(graph)
    growth = _Growth(numbered, numbered.hops, ForestOptions(), monotonic() + 60, bandwidth)
    steps = sum(each.rate for each in growth.trees(numbered.size))
    return steps * max(numbered.capacity) / int(growth.bandwidth.max())


@pytest.mark.parametrize(
    ("spec", "best"),
    [
        ("complete:7", Fraction(7, 2)),
        ("torus:4x4", Fraction(32, 15)),
        ("hypercube:3", Fraction(12, 7)),
    ],
)
def test_smaller_bandwidths_share_links_that_are_alike(spec: str, best: Fraction) -> None:
    # By the paper's rule the first tree fills its edges, and the rest often is in pieces.
    graph = named(spec)
    assert raw(graph, None) == 1
    assert raw(graph, Fraction(1, 12)) >= best * Fraction(15, 16)
    forest = checked(graph, ForestOptions())
    assert forest.verdict is Verdict.OPTIMAL
    assert forest.throughput == pytest.approx(best)


def test_trees_take_the_bandwidth_asked_for() -> None:
    graph = named("complete:7")
    whole = plan_mtree(graph, ForestOptions(tree_bandwidth=Fraction(1)))
    assert len(whole.trees) == whole.throughput == 1
    twelfth = checked(graph, ForestOptions(tree_bandwidth=Fraction(1, 12)))
    assert twelfth.throughput == Fraction(7, 2)
    numbered = NumberedGraph(graph)
    growth = _Growth(numbered, numbered.hops, ForestOptions(), monotonic() + 60, Fraction(1, 12))
    assert growth.bandwidth.max() == 12
    grown = growth.trees(6)
    assert len(grown) == 42
    assert {each.rate for each in grown} == {1}


@pytest.mark.parametrize("spec", ["torus:4x4", "hypercube:4", "dgx1"])
def test_few_trees_share_links_too(spec: str) -> None:
    graph = named(spec)
    paper = mtree_choice(NumberedGraph(graph), ForestOptions(max_trees=5), monotonic() + 60, [None])
    forest = checked(graph, ForestOptions(max_trees=5, time_limit=60))
    assert forest.throughput >= paper.throughput
    assert forest.throughput >= Fraction(4, 5) * strength(graph).bound


@pytest.mark.parametrize(
    ("bandwidth", "message"),
    [(Fraction(0), "1/1000 of the fastest"), (Fraction(1, 4), "min_rate")],
)
def test_an_impossible_bandwidth_is_refused(bandwidth: Fraction, message: str) -> None:
    options = ForestOptions(tree_bandwidth=bandwidth, min_rate=Fraction(1, 3))
    if not bandwidth:
        options = replace(options, min_rate=Fraction(0))
    with pytest.raises(PlanError, match=f"tree_bandwidth {float(bandwidth):g}.*{message}"):
        plan_mtree(named("torus:3x3"), options)
    with pytest.raises(PlanError, match="keep 0: expected above 0 to 1"):
        plan_mtree(named("torus:3x3"), ForestOptions(keep=Fraction(0)))


def some_work(graph: PlanningGraph, workers: str) -> PlanningGraph:
    """The same network with these workers; the other nodes may combine."""
    return replace(graph, workers=frozenset(workers.split()))


def test_hosts_that_do_not_work_may_help() -> None:
    # Of a 4x4 torus two hosts that are no neighbours: their trees lead over others.
    graph = some_work(named("torus:4x4"), "h1 h11")
    forest = checked(graph, ForestOptions())
    assert forest.throughput == forest.bound == 4
    assert all(set(tree.nodes) > {"h1", "h11"} for tree in forest.trees)
    leaves = [set(tree.nodes) - {tree.root, *tree.parents.values()} for tree in forest.trees]
    assert all(found <= graph.workers for found in leaves)
    alone = replace(graph, combines=graph.workers)
    with pytest.raises(PlanError, match="without hosts that only forward: no path from h1 to h11"):
        plan_mtree(alone, ForestOptions())
    row = some_work(named("torus:4x4"), "h1 h2 h3 h4")
    without = checked(replace(row, combines=row.workers), ForestOptions())
    assert all(set(tree.nodes) == row.workers for tree in without.trees)
    assert without.throughput == Fraction(4, 3)  # around the ring
    assert checked(row, ForestOptions()).throughput > Fraction(4, 3)


@pytest.mark.slow
@given(networks(7), st.integers(2, 7), st.sampled_from([None, 2]), st.sampled_from([None, 2, 3]))
@settings(max_examples=examples(20, of=60))
def test_plans_for_some_workers_hold(
    graph: PlanningGraph, workers: int, most: int | None, height: int | None
) -> None:
    graph = replace(graph, workers=frozenset(graph.nodes[:workers]))
    options = ForestOptions(max_trees=most, max_height=height, time_limit=60)
    try:
        forest = checked(graph, options)
    except PlanError as error:
        assert height is not None
        assert "do not hold" not in str(error)
        return
    for tree in forest.trees:
        inner = {tree.root, *tree.parents.values()}
        assert set(tree.nodes) - inner <= graph.workers


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
    first = growth.trees(3)[0]
    assert first.rate == 1
    assert {numbered.capacity[edge] for edge in first.tree} == {Fraction(3)}


def test_the_limit_is_on_the_diameter() -> None:
    path = network_of([("a", "b", 1), ("b", "c", 1), ("c", "d", 1)], {"b-c": 3e-3})
    with pytest.raises(PlanError, match="no tree is as low"):
        plan_mtree(path, ForestOptions(max_delay=2.5e-3))
    assert checked(path, ForestOptions(max_delay=4e-3)).throughput == 1
    with pytest.raises(PlanError, match="mtree knows one height"):
        plan_mtree(path, ForestOptions(max_delay=1.0, max_height=3))


@pytest.mark.slow
@given(
    networks(),
    st.integers(0, 3),
    st.sampled_from([None, 1, 2, 4]),
    st.sampled_from([None, 2, 3]),
    st.integers(0, 2),
)
@settings(max_examples=examples(26, of=80))
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
    assert sum(each.rate for each in growth.trees(5)) == 21
    lowered = _lowered(growth, 5, Fraction(95, 100))
    assert sum(each.rate for each in lowered) == 20
    assert sum(each.rate for each in _lowered(growth, 5, Fraction(1))) >= 21
    assert {each.diameter for each in lowered} == {2}
    high, low = (checked(graph, ForestOptions(keep=keep)) for keep in (Fraction(1), Fraction(1, 2)))
    assert max(tree.height for tree in high.trees) > 1
    assert {tree.height for tree in low.trees} == {1}
    assert high.throughput > low.throughput >= high.throughput / 2


@given(networks(7), st.sampled_from([None, Fraction(1, 2), Fraction(2)]), st.integers(0, 3))
@settings(max_examples=examples(13, of=40))
def test_the_lowest_limit_that_trees_keep_to_gives_the_same_trees(
    graph: PlanningGraph, bandwidth: Fraction | None, seed: int
) -> None:
    numbered = NumberedGraph(graph)
    options = ForestOptions(seed=seed)
    growth = _Growth(numbered, numbered.hops, options, monotonic() + 60, bandwidth)
    trees = growth.trees(numbered.size)
    again = growth.trees(max(-(-each.diameter // 2) for each in trees))
    assert again[: len(trees)] == trees


def test_a_slow_edge_does_not_make_the_trees_endless() -> None:
    wide = 10**9
    edges = [("a", "b", wide), ("b", "c", wide), ("a", "c", wide), ("c", "d", wide), ("b", "d", 1)]
    forest = checked(network_of(edges), ForestOptions())
    assert forest.throughput >= wide
    assert forest.verdict is Verdict.OPTIMAL


def test_the_time_limit_says_so() -> None:
    few = ForestOptions(max_trees=2, time_limit=60)
    assert plan_mtree(named("torus:4x4"), few).verdict is Verdict.FEASIBLE
    with pytest.raises(PlanError, match="mtree found no tree in 1e-09 s"):
        plan_mtree(named("torus:4x4"), ForestOptions(time_limit=1e-9))


def test_the_greedy_growth_may_find_nothing() -> None:
    # The ring's wide edges use up the diameter before the hub's chords come.
    ring = [(f"n{i}", f"n{(i + 1) % 8}", 100) for i in range(8)]
    chords = [("n0", f"n{i}", 99) for i in range(2, 7)]
    with pytest.raises(PlanError, match="mtree found no tree within the limits"):
        plan_mtree(network_of(ring + chords), ForestOptions(max_height=2))
