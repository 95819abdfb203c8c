from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from hopsum.collectives.plan import PlanError
from hopsum.planning.model.forest import Certificate, Forest, ForestOptions, RatedTree, Verdict
from hopsum.planning.model.forest_checker import check_forest, forest_faults
from hopsum.planning.model.graph import PlanningGraph
from tests.support.tree_world import network_of

SQUARE = network_of([("a", "b", 2), ("b", "c", 2), ("c", "d", 2), ("a", "d", 2)])
"""A ring: its strength is 8/3."""
PATH = RatedTree("b", {"a": "b", "c": "b", "d": "c"}, Fraction(2), {})


def forest(*trees: RatedTree, **changes: Any) -> Forest:
    certificate = Certificate("partition", Fraction(8, 3), (), "")
    made = Forest("multi-tree", trees, certificate, Verdict.FEASIBLE, 0.0)
    return replace(made, **changes)


def test_a_good_forest_has_no_faults() -> None:
    check_forest(SQUARE, forest(PATH), ForestOptions(max_trees=1, max_height=2, max_delay=2e-3))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"parents": {"a": "b", "c": "b"}}, "does not reach the workers d"),
        ({"parents": {"a": "b", "c": "b", "d": "x"}}, "no node x in test"),
        ({"parents": {"a": "c", "c": "b", "d": "c"}}, "no edge a-c"),
        ({"parents": {"a": "b", "c": "d", "d": "c"}}, "no path to the root from c, d"),
        ({"parents": {"a": "b", "b": "a", "c": "b", "d": "c"}}, "the root has a parent, a"),
        ({"root": "x"}, "no node x"),
        ({"rate": Fraction(0)}, "rate Fraction(0, 1): expected a fraction above 0"),
        ({"rate": 1.5}, "rate 1.5: expected a fraction"),
        ({"rate": Fraction(1)}, "rate 1: expected 2 or more"),
        ({"rate": Fraction(5, 2)}, "a to b: the trees need 5/2, the edge has 2"),
        ({"flows": {"c": 2}}, "c to b: the trees need 4, the edge has 2"),
        ({"flows": {"d": 2}}, "d: 1 flows to sum, 2 leave"),
        ({"flows": {"b": 1}}, "flows are given for b"),
    ],
)
def test_faults_of_a_tree(change: Mapping[str, Any], fault: str) -> None:
    faults = forest_faults(
        SQUARE, forest(replace(PATH, **change)), ForestOptions(min_rate=Fraction(2))
    )
    assert any(fault in found for found in faults), faults


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (ForestOptions(max_height=1), "height 2: expected at most 1"),
        (ForestOptions(max_delay=1.9e-3), "delay 0.002 s: expected at most 0.0019 s"),
        (ForestOptions(min_rate=Fraction(3)), "rate 2: expected 3 or more"),
    ],
)
def test_limits(options: ForestOptions, fault: str) -> None:
    assert any(fault in found for found in forest_faults(SQUARE, forest(PATH), options))


def test_faults_of_a_forest() -> None:
    half = replace(PATH, rate=Fraction(1))
    over = forest(half, PATH)
    faults = forest_faults(SQUARE, over, ForestOptions(max_trees=1))
    assert "2 trees: expected at most 1" in faults
    assert "a to b: the trees need 3, the edge has 2" in faults
    assert any("more than the bound 8/3" in fault for fault in faults)
    assert forest_faults(SQUARE, forest(), ForestOptions()) == ["no trees: expected at least one"]
    lazy = forest(half, verdict=Verdict.OPTIMAL)
    assert any(
        "called optimal with 1 of 8/3" in f for f in forest_faults(SQUARE, lazy, ForestOptions())
    )
    invalid = r"the trees of planner multi-tree are not valid:\n  2 trees"
    with pytest.raises(PlanError, match=invalid):
        check_forest(SQUARE, over, ForestOptions(max_trees=1))


def test_mtree_is_checked_by_its_diameter() -> None:
    # Between d and a there are 5 ms, and no node of the tree is within 2.5 ms of both.
    delays = dict.fromkeys(SQUARE.latency, 1e-3) | {SQUARE.edge("c", "d"): 3e-3}
    skewed = replace(SQUARE, latency=delays)
    tree = RatedTree("c", {"b": "c", "d": "c", "a": "b"}, Fraction(1), {})
    options = ForestOptions(max_delay=2.5e-3)
    assert forest_faults(skewed, forest(tree, planner="mtree"), options) == []
    assert "delay 0.003 s" in forest_faults(skewed, forest(tree), options)[0]
    tight = replace(options, max_delay=2.4e-3)
    assert "diameter 0.005 s" in forest_faults(skewed, forest(tree, planner="mtree"), tight)[0]


def switches(**combines: bool) -> PlanningGraph:
    """Three workers below a switch, which hangs below another with the server."""
    graph = network_of(
        [("h1", "s1", 6), ("h2", "s1", 6), ("h3", "s1", 6), ("s1", "s2", 6), ("ps", "s2", 6)]
    )
    able = {name for name, can in combines.items() if can}
    return replace(
        graph,
        workers=frozenset({"h1", "h2", "h3"}),
        combines=frozenset({"h1", "h2", "h3", "ps", *able}),
    )


THROUGH = {"h1": "s1", "h2": "s1", "h3": "s1", "s1": "s2", "s2": "ps"}


@pytest.mark.parametrize(
    ("s1", "flows", "rate", "faults"),
    [
        (True, {}, 6, []),
        (False, {}, 6, ["s1 only forwards: 3 flows arrive, 1 leave"]),
        (False, {"s1": 3, "s2": 3}, 2, []),
        (False, {"s1": 3}, 2, ["s2 only forwards: 3 flows arrive, 1 leave"]),
        (False, {"s1": 3, "s2": 3}, 3, ["the trees need 9", "the trees need 9"]),
        (True, {"s1": 2, "s2": 2}, 3, []),
        (True, {"s1": 4, "s2": 4}, 1, ["s1: 3 flows to sum, 4 leave"]),
    ],
)
def test_trees_through_switches(
    s1: bool, flows: dict[str, int], rate: int, faults: list[str]
) -> None:
    tree = RatedTree("ps", THROUGH, Fraction(rate), flows)
    made = forest(tree, certificate=Certificate("cut", Fraction(6), (), ""))
    found = forest_faults(switches(s1=s1), made, ForestOptions())
    assert len(found) == len(faults)
    assert all(fault in one for fault, one in zip(faults, found, strict=True))


def test_results_of_one_tree_meet_the_sums_of_another() -> None:
    # Up 3 flows of rate 1 from s1 to s2, and down again the rate itself: 3 + 1 of 3.
    graph = replace(
        switches(),
        combines=frozenset({"h1", "h2", "h3", "ps", "s2"}),
        workers=frozenset({"h1", "h2", "h3"}),
    )
    graph = replace(graph, capacity={**graph.capacity, ("s1", "s2"): Fraction(3)})
    one = RatedTree("ps", THROUGH, Fraction(1), {"s1": 3})
    back = RatedTree("h1", {"h2": "s1", "h3": "s1", "s1": "h1"}, Fraction(1), {"s1": 2})
    bound = Certificate("cut", Fraction(6), (), "")
    assert forest_faults(graph, forest(one, back, certificate=bound), ForestOptions()) == []
    down = RatedTree(
        "h1", {"h2": "s1", "h3": "s1", "ps": "s2", "s2": "s1", "s1": "h1"}, Fraction(1), {"s1": 2}
    )
    faults = forest_faults(graph, forest(one, down, certificate=bound), ForestOptions())
    assert faults == ["s1 to s2: the trees need 4, the edge has 3"]


def test_slots() -> None:
    tree = RatedTree("ps", THROUGH, Fraction(1), {})
    two = forest(tree, tree, certificate=Certificate("cut", Fraction(6), (), ""))
    assert forest_faults(switches(s1=True), two, ForestOptions(), {"s1": 2, "s2": 0}) == []
    faults = forest_faults(switches(s1=True), two, ForestOptions(), {"s1": 1})
    assert faults == ["s1 sums for 2 trees: it has slots for 1"]
