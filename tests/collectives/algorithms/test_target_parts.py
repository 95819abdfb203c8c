"""Target parts by the rates of links, against a linear program and all parts of a grid."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from hopsum.collectives.algorithms.level_wise import Siblings, level_wise_all_reduce
from hopsum.collectives.algorithms.target_parts import (
    Parts,
    Rates,
    _least_time,
    _without_stem,
    equal_parts,
    link_loads,
    rated_parts,
    time_of,
)
from hopsum.collectives.link_volumes import link_volumes
from hopsum.collectives.schedule import ScheduleError
from hopsum.collectives.schedule_checker import check_schedule
from hopsum.collectives.tree import Tree
from tests.support.search import examples


@st.composite
def rated_trees(draw: st.DrawFn, most: int = 12) -> tuple[Tree, Rates]:
    count = draw(st.integers(2, most))
    parents = {str(i): str(draw(st.integers(0, i - 1))) for i in range(1, count)}
    rates = st.one_of(st.none(), st.fractions(Fraction(1, 4), 8, max_denominator=4))
    return Tree("0", parents), {node: draw(rates) for node in parents}


def least_by_program(tree: Tree, rates: Rates) -> float:
    """The least time by linear programming: loads are the unknowns, and the time."""
    root = tree.root
    while len(tree.children[root]) == 1:
        root = tree.children[root][0]
    below = [root]
    for node in below:
        below += tree.children[node]
    column = {node: i for i, node in enumerate(below)}
    balance, sums = [], []
    for node in below:
        if children := tree.children[node]:
            row = np.zeros(len(below) + 1)
            row[[column[child] for child in children]] = 1
            row[column[node]] = -1
            balance.append(row)
            sums.append(2 * (len(children) - 1))
    limits = []
    for node in below[1:]:
        if (rate := rates[node]) is not None:
            row = np.zeros(len(below) + 1)
            row[column[node]], row[-1] = 1, -float(rate)
            limits.append(row)
    if not limits or not balance:
        return 0.0
    solved = linprog(
        [*[0.0] * len(below), 1.0],
        A_ub=np.array(limits),
        b_ub=np.zeros(len(limits)),
        A_eq=np.array(balance),
        b_eq=sums,
        bounds=[(0, 0), *[(1, None)] * (len(below) - 1), (0, None)],
    )
    return float(solved.x[-1])


def least_time(tree: Tree, rates: Rates) -> Fraction:
    """Return the least that any parts allow, in tensors over the rates' unit."""
    return _least_time(_without_stem(tree), rates)[0]


def check_parts(tree: Tree, parts: Parts) -> None:
    assert set(parts) == set(tree.parents)
    assert min(parts.values()) >= 0
    for children in tree.children.values():
        assert not children or sum(parts[child] for child in children) == 1


@pytest.mark.slow
@given(rated_trees())
def test_no_parts_are_better_than_the_rated(case: tuple[Tree, Rates]) -> None:
    tree, rates = case
    parts = rated_parts(tree, rates)
    check_parts(tree, parts)
    least = least_time(tree, rates)
    assert time_of(link_loads(tree, parts), rates) == least
    assert float(least) == pytest.approx(least_by_program(tree, rates), rel=1e-6)


@pytest.mark.slow
@given(rated_trees(most=6))
@settings(max_examples=examples(16, of=50))
def test_no_parts_on_a_grid_are_faster(case: tuple[Tree, Rates]) -> None:
    tree, rates = case
    least = least_time(tree, rates)
    choices = [
        [
            {child: Fraction(part, 4) for child, part in zip(children, grid, strict=True)}
            for grid in product(range(5), repeat=len(children))
            if sum(grid) == 4
        ]
        for children in tree.children.values()
        if children
    ]
    for chosen in product(*choices):
        parts = {node: part for each in chosen for node, part in each.items()}
        assert time_of(link_loads(tree, parts), rates) >= least


@pytest.mark.slow
@given(rated_trees(most=9), st.integers(1, 300), st.integers(1, 3))
def test_schedules_of_any_parts_are_proved(
    case: tuple[Tree, Rates], elements: int, pieces: int
) -> None:
    tree, rates = case
    ranks = [node for node in tree.nodes if not tree.children[node]]
    for siblings in Siblings:
        parts = rated_parts(tree, rates)
        check_schedule(level_wise_all_reduce(tree, ranks, elements, siblings, pieces, parts))


@pytest.mark.slow
@given(rated_trees(most=9))
@settings(max_examples=examples(16, of=50))
def test_links_carry_their_loads(case: tuple[Tree, Rates]) -> None:
    tree, rates = case
    ranks = [node for node in tree.nodes if not tree.children[node]]
    elements = 100_000
    parts = rated_parts(tree, rates)
    schedule = level_wise_all_reduce(tree, ranks, elements, Siblings.HIERARCHICAL, parts=parts)

    def path(source: str, target: str) -> list[str]:
        up, down = way_up(source), way_up(target)
        while len(up) > 1 and len(down) > 1 and up[-2] == down[-2]:
            up.pop()
            down.pop()
        return [*up, *down[-2::-1]]

    def way_up(node: str) -> list[str]:
        way = [node]
        while way[-1] != tree.root:
            way.append(tree.parents[way[-1]])
        return way

    volumes = link_volumes(schedule, path)
    for node, load in link_loads(tree, parts).items():
        above = tree.parents[node]
        for link in ((node, above), (above, node)):
            # Every span is rounded to whole elements at every level.
            assert volumes.get(link, 0) == pytest.approx(load * elements, abs=1000)


def tree_of(racks: list[int]) -> tuple[Tree, list[str]]:
    parents = {f"s{i}": "root" for i in range(len(racks))}
    hosts = [(f"h{i}.{j}", f"s{i}") for i, size in enumerate(racks) for j in range(size)]
    return Tree("root", parents | dict(hosts)), [host for host, _ in hosts]


def rates_of(tree: Tree, rack: list[int], host: int) -> dict[str, Fraction | None]:
    return {
        node: Fraction(rack[int(node[1:])] if node in tree.children["root"] else host)
        for node in tree.parents
    }


def test_equal_links_get_the_documents_parts() -> None:
    tree, _ = tree_of([4, 4, 4])
    assert rated_parts(tree, rates_of(tree, [2, 2, 2], 1)) == equal_parts(tree)


def test_a_slow_rack_keeps_nothing() -> None:
    """Three racks of two, one behind a link of a third: 4 tensors, and 1 over the slow one."""
    tree, _ = tree_of([2, 2, 2])
    rates = rates_of(tree, [1, 3, 3], 10)
    assert least_time(tree, rates) == 1
    parts = rated_parts(tree, rates)
    assert [parts[f"s{i}"] for i in range(3)] == [0, Fraction(1, 2), Fraction(1, 2)]
    assert time_of(link_loads(tree, equal_parts(tree)), rates) == Fraction(4, 3)


def test_links_without_limits_take_no_time() -> None:
    tree, _ = tree_of([2, 3])
    rates: dict[str, Any] = dict.fromkeys(tree.parents)
    assert least_time(tree, rates) == 0
    assert rated_parts(tree, rates) == equal_parts(tree)


def test_nothing_is_exchanged_above_the_only_branch() -> None:
    tree = Tree("r", {"a": "r", "b": "a", "c": "a"})
    rates: Rates = {"a": Fraction(1, 100), "b": Fraction(1), "c": Fraction(1)}
    assert least_time(tree, rates) == 1
    assert rated_parts(tree, rates) == {"a": 1, "b": Fraction(1, 2), "c": Fraction(1, 2)}


def test_invalid_parts_are_refused() -> None:
    tree, ranks = tree_of([2, 1])
    parts = dict(equal_parts(tree))
    for wrong in (
        parts | {"s0": Fraction(3, 4)},
        parts | {"s0": Fraction(3, 2), "s1": Fraction(-1, 2)},
        {node: part for node, part in parts.items() if node != "s0"},
    ):
        with pytest.raises(ScheduleError, match=r"level-wise: parts .* under root; expected one"):
            level_wise_all_reduce(tree, ranks, 10, parts=wrong)


def test_leaves_own_equal_parts_where_links_allow() -> None:
    tree, _ = tree_of([8, 4, 2, 1])
    parts = rated_parts(tree, rates_of(tree, [8, 4, 2, 1], 4))
    assert [parts[f"s{i}"] for i in range(4)] == [Fraction(n, 7) for n in (4, 2, 1, 0)]
    # Behind links of one rate the document's rule stays.
    assert rated_parts(tree, rates_of(tree, [4] * 4, 4)) != equal_parts(tree)
    even, _ = tree_of([3, 2])
    assert rated_parts(even, rates_of(even, [1, 1], 1)) == equal_parts(even)
