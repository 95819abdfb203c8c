from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.collectives.algorithms.halving_doubling import halving_doubling_all_reduce
from hopsum.collectives.algorithms.ring import ring_all_reduce
from hopsum.collectives.algorithms.rooted import heap_tree, network_tree
from hopsum.collectives.algorithms.trees import (
    SharedTree,
    double_binary_trees,
    double_tree_all_reduce,
    multi_tree_all_reduce,
    server_all_reduce,
    tree_all_reduce,
    tree_ranges,
)
from hopsum.collectives.link_volumes import link_volumes
from hopsum.collectives.schedule import ScheduleError
from hopsum.collectives.schedule_checker import check_schedule
from hopsum.collectives.tree import Tree
from hopsum.network.loaders import load_network
from hopsum.network.model import NetworkError
from hopsum.network.paths import PlainRoutes
from hopsum.planning.model.placement import place


def names(count: int) -> list[str]:
    return [f"h{i}" for i in range(count)]


@pytest.mark.slow
@given(st.integers(1, 20), st.integers(0, 200))
def test_halving_doubling_is_proved_for_any_number_of_ranks(ranks: int, elements: int) -> None:
    check_schedule(halving_doubling_all_reduce(ranks, elements))


@pytest.mark.slow
@given(st.integers(1, 20), st.integers(0, 200), st.data())
def test_trees_are_proved(count: int, elements: int, data: st.DataObject) -> None:
    ranks = names(count)
    root = data.draw(st.sampled_from(ranks))
    tree = heap_tree(ranks, data.draw(st.integers(1, 4)))
    check_schedule(tree_all_reduce(ranks, elements, tree))
    check_schedule(double_tree_all_reduce(ranks, elements))
    check_schedule(server_all_reduce(ranks, elements, ["a", "b", root]))


@pytest.mark.slow
@given(st.integers(2, 12), st.integers(0, 200), st.data())
def test_several_random_trees_are_proved(count: int, elements: int, data: st.DataObject) -> None:
    ranks = names(count)
    trees = []
    for _ in range(data.draw(st.integers(1, 4))):
        order = data.draw(st.permutations([*ranks, "s1", "s2"]))
        parents = {node: order[data.draw(st.integers(0, i))] for i, node in enumerate(order[1:])}
        share = Fraction(data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9)))
        trees.append(SharedTree(Tree(order[0], parents), share))
    schedule = multi_tree_all_reduce(ranks, elements, trees)
    check_schedule(schedule)
    assert len(set(schedule.chains)) <= len(trees)


@given(st.integers(1, 70))
def test_inner_nodes_of_one_binary_tree_are_leaves_of_the_other(count: int) -> None:
    ranks = names(count)
    one, two = double_binary_trees(ranks)
    inner = [{node for node in ranks if tree.children[node]} for tree in (one, two)]
    assert len(inner[0] & inner[1]) <= count % 2
    for tree in (one, two):
        assert max(len(children) for children in tree.children.values()) <= 2
        assert max(tree.depths.values()) <= count.bit_length()


def test_shares_divide_the_tensor() -> None:
    assert tree_ranges([Fraction(1), Fraction(1, 2), Fraction(0)], 10) == [
        (0, 6),
        (6, 10),
        (10, 10),
    ]
    with pytest.raises(ScheduleError, match=r"shares \['-1', '2'\]: expected none below 0"):
        tree_ranges([Fraction(-1), Fraction(2)], 10)
    with pytest.raises(ScheduleError, match=r"shares \['0'\]: expected none below 0 and a su"):
        tree_ranges([Fraction(0)], 10)


def test_branches_without_ranks_are_left_out() -> None:
    tree = Tree("s", {"h0": "s", "h1": "s", "x": "s", "y": "x"})
    schedule = tree_all_reduce(["h0", "h1"], 5, tree)
    assert schedule.names == ("h0", "h1", "s")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: heap_tree([]), "no ranks: expected at least one"),
        (lambda: tree_all_reduce(["a", "b", "a"], 4), "ranks a are listed more than once"),
        (
            lambda: Tree("r", {"a": "b", "b": "c", "c": "b"}),
            "a cycle b, c, b; expected every node to lead to the root r",
        ),
        (
            lambda: Tree("r", {"a": "b"}),
            "a is below b, which has no parent and is not the root r; expected one tree",
        ),
        (lambda: Tree("r", {"r": "a", "a": "r"}), "its root r has a parent, a; expected no"),
        (
            lambda: tree_all_reduce(["a", "b", "c"], 4, Tree("a", {"b": "a"})),
            "tree rooted at a: ranks c are not connected to it",
        ),
        (lambda: halving_doubling_all_reduce(0, 4), "0 ranks: expected at least one"),
        (lambda: halving_doubling_all_reduce(2, -4), "-4 elements: expected 0 or more"),
        (lambda: server_all_reduce(["a"], 4, []), "no ranks: expected at least one"),
    ],
)
def test_bad_input_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        make()


def test_the_tree_of_a_network_is_that_of_its_routes() -> None:
    network = load_network("leaf-spine:2x2", workers=4)
    ranks = place(network, 4).workers
    tree = network_tree(network, ranks)
    assert tree.depths[ranks[0]] == max(tree.depths.values()) == 2
    assert set(ranks) < set(tree.nodes)
    assert tree.root in network.switches
    with pytest.raises(ScheduleError, match=r"leaf-spine.*: there are no hosts nobody"):
        network_tree(network, [ranks[0], "nobody"])


def test_ranks_of_a_cut_network_are_not_connected() -> None:
    network = load_network("leaf-spine:2x2x1", workers=4)
    ranks = place(network, 4).workers
    spine = max(network.switches, key=lambda name: network_tree(network, ranks).root == name)
    cut = network.without(nodes=[spine])
    with pytest.raises(ScheduleError, match=r"ranks .* are not connected"):
        network_tree(cut, ranks)
    with pytest.raises(NetworkError, match=r"no path from"):
        link_volumes(ring_all_reduce(4, 8).named(ranks), PlainRoutes(cut).path)


def test_servers_on_all_ranks_carry_what_a_ring_does() -> None:
    network = load_network("star:6")
    ranks = place(network, 6).workers
    links = link_volumes(server_all_reduce(ranks, 60, ranks), PlainRoutes(network).path)
    assert set(links.values()) == {2 * 50}


@pytest.mark.parametrize(
    ("spec", "total"), [("star:8", 4 * 7), ("leaf-spine:2x4", 2 * 7 * 2 + 2 * 2), ("fat-tree:4", 0)]
)
def test_a_tree_of_network_edges_carries_the_tensor_once_each_way(spec: str, total: int) -> None:
    elements = 60
    network = load_network(spec)
    ranks = tuple(network.hosts)[:8]
    tree = network_tree(network, ranks)
    schedule = tree_all_reduce(ranks, elements, tree)
    check_schedule(schedule)
    links = link_volumes(schedule, PlainRoutes(network).path)
    assert set(links.values()) == {elements}
    assert len(links) == 2 * len(tree.parents)
