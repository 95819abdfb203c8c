from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.collectives.algorithms.level_wise import (
    LEAST_MESSAGE,
    PIECES_A_LEVEL,
    Siblings,
    level_wise_all_reduce,
    pieces_for,
    ranks_as_leaves,
)
from hopsum.collectives.algorithms.rooted import network_tree
from hopsum.collectives.execution import Channel, Execution
from hopsum.collectives.link_volumes import link_volumes
from hopsum.collectives.schedule import Schedule, ScheduleError, Transfer
from hopsum.collectives.schedule_checker import check_schedule
from hopsum.collectives.tree import Tree
from hopsum.network.loaders import load_network
from hopsum.timing.routes import LinkArrays
from hopsum.timing.scenario import MANY_FLOWS, Scenario
from hopsum.timing.schedules import Transport, add_schedule
from tests.support.framing import BARE
from tests.support.halves import all_gather_of, reduce_scatter_of

SHARES = 6**5
"""Divisible by all products of children in the trees below."""


def tree_of(branches: Any) -> tuple[Tree, list[str]]:
    """A tree from nested lists; every None is a leaf."""
    parents: dict[str, str] = {}
    ranks: list[str] = []
    numbers = count(1)

    def grow(branch: Any, node: str) -> None:
        for child in branch:
            if child is None:
                ranks.append(f"h{len(ranks)}")
                parents[ranks[-1]] = node
            else:
                name = f"s{next(numbers)}"
                parents[name] = node
                grow(child, name)

    grow(branches, "s0")
    return Tree("s0", parents), ranks


def path_in(tree: Tree) -> Any:
    def path(source: str, target: str) -> list[str]:
        up, down = [source], [target]
        while up[-1] != tree.root:
            up.append(tree.parents[up[-1]])
        while down[-1] != tree.root:
            down.append(tree.parents[down[-1]])
        while len(up) > 1 and len(down) > 1 and up[-2] == down[-2]:
            up.pop()
            down.pop()
        return [*up, *down[-2::-1]]

    return path


def target_share(tree: Tree, node: str) -> Fraction:
    """1 / (number of children) over all nodes above."""
    share = Fraction(1)
    while node != tree.root:
        node = tree.parents[node]
        share /= len(tree.children[node])
    return share


branches = st.recursive(
    st.none(), lambda below: st.lists(below, min_size=1, max_size=3), max_leaves=14
).map(lambda tree: [tree] if tree is None else tree)


@pytest.mark.slow
@given(branches, st.integers(0, 300), st.sampled_from(Siblings), st.integers(1, 6))
def test_any_tree_and_size_is_proved(
    shape: Any, elements: int, siblings: Siblings, pieces: int
) -> None:
    tree, ranks = tree_of(shape)
    schedule = level_wise_all_reduce(tree, ranks, elements, siblings, pieces)
    for each in (schedule, reduce_scatter_of(schedule), all_gather_of(schedule)):
        check_schedule(each)


@pytest.mark.slow
@given(branches, st.sampled_from(Siblings), st.integers(1, 3))
def test_leaves_own_their_target_parts(shape: Any, siblings: Siblings, pieces: int) -> None:
    tree, ranks = tree_of(shape)
    elements = SHARES * pieces
    schedule = reduce_scatter_of(level_wise_all_reduce(tree, ranks, elements, siblings, pieces))
    owned = [0] * len(ranks)
    for node, start, stop in schedule.wanted.rows():
        owned[node] += stop - start
    deep = max(tree.depths.values()) <= 5
    if deep:
        assert owned == [target_share(tree, rank) * elements for rank in ranks]
    assert sum(owned) == elements


@pytest.mark.slow
@given(branches, st.integers(1, 3))
def test_links_carry_what_their_branch_does_not_own(shape: Any, pieces: int) -> None:
    tree, ranks = tree_of(shape)
    if max(tree.depths.values()) > 5:
        return
    up = {(node, parent): node for node, parent in tree.parents.items()}
    for siblings in Siblings:
        schedule = level_wise_all_reduce(tree, ranks, SHARES * pieces, siblings, pieces)
        links = link_volumes(schedule, path_in(tree))
        for link, node in up.items():
            expected = 2 * (1 - target_share(tree, node)) * SHARES * pieces
            assert links.get(link, 0) == links.get(link[::-1], 0) == expected


@pytest.mark.slow
@given(branches, st.integers(0, 300), st.sampled_from(Siblings), st.integers(1, 6))
def test_gathering_is_the_exact_reverse(
    shape: Any, elements: int, siblings: Siblings, pieces: int
) -> None:
    tree, ranks = tree_of(shape)
    schedule = level_wise_all_reduce(tree, ranks, elements, siblings, pieces)
    turns: dict[tuple[int, int], set[tuple[int, int, int, int]]] = {}
    for t in schedule.transfers():
        key = (t.source, t.target) if t.combine else (t.target, t.source)
        turns.setdefault(t.turn, set()).add((*key, t.start, t.stop))
    scatter = [rows for (step, _), rows in turns.items() if schedule.steps[step].combine]
    gather = [rows for (step, _), rows in turns.items() if not schedule.steps[step].combine]
    # Steps of one height do not wait for each other, so their order may differ.
    assert sorted(map(sorted, scatter)) == sorted(map(sorted, gather))
    # No element goes down before it is up.
    up = [0] * elements
    down = [len(schedule.steps)] * elements
    for t in schedule.transfers():
        for element in range(t.start, t.stop):
            if t.combine:
                up[element] = max(up[element], t.step)
            else:
                down[element] = min(down[element], t.step)
    assert all(last < first for last, first in zip(up, down, strict=True)) or not schedule.steps


def moves(schedule: Schedule, step: int, turn: int = 0) -> list[tuple[str, int, int]]:
    """Transfers of a turn as (source>target, start, stop)."""
    chosen: Sequence[Transfer] = [t for t in schedule.transfers() if t.turn == (step, turn)]
    return [(f"{t.source}>{t.target}", t.start, t.stop) for t in chosen]


def test_the_documents_example() -> None:
    """[003][]: a root with two branches, two processors under the first; three under the second."""
    tree, ranks = tree_of([[None, None], [None, None, None]])
    schedule = level_wise_all_reduce(tree, ranks, 12)
    check_schedule(schedule)
    # In the first branch the target parts are halves: each sends the other's, and adds its own.
    assert moves(schedule, 0) == [("0>1", 6, 12), ("1>0", 0, 6)]
    # In the second they are thirds; around the ring in two turns, each to the next.
    assert moves(schedule, 1) == [("2>3", 8, 12), ("3>4", 0, 4), ("4>2", 4, 8)]
    assert moves(schedule, 1, 1) == [("2>3", 4, 8), ("3>4", 8, 12), ("4>2", 0, 4)]
    # The branches exchange where halves and thirds overlap: 0 with 2 and 3, 1 with 3 and 4.
    assert schedule.steps[2].after == (0, 1)
    assert sorted(moves(schedule, 2)) == [
        ("0>2", 2, 4),
        ("0>3", 5, 6),
        ("1>3", 7, 8),
        ("1>4", 10, 12),
        ("2>0", 0, 2),
        ("3>0", 4, 5),
        ("3>1", 6, 7),
        ("4>1", 8, 10),
    ]
    # Everyone has a half of what was its own: a quarter under the first parent, else a sixth.
    scatter = reduce_scatter_of(schedule)
    assert sorted(scatter.wanted.rows(), key=lambda row: row[1]) == [
        [0, 0, 2],
        [2, 2, 4],
        [0, 4, 5],
        [3, 5, 6],
        [1, 6, 7],
        [3, 7, 8],
        [1, 8, 10],
        [4, 10, 12],
    ]
    # Then the same backwards.
    assert schedule.steps[3].after == (2,)
    assert [step.combine for step in schedule.steps] == [True] * 3 + [False] * 3
    assert sorted(moves(schedule, 3)) == sorted(
        (f"{ends[2]}>{ends[0]}", start, stop) for ends, start, stop in moves(schedule, 2)
    )


def test_a_symmetric_tree_is_rings_within_rings() -> None:
    tree, ranks = tree_of([[None] * 4] * 3)
    schedule = level_wise_all_reduce(tree, ranks, 12 * 5)
    # Three rings of four, then four rings of three, and back.
    assert [(len(s), s.repeat, s.period) for s in schedule.steps] == [
        (12, 3, 4),
        (12, 2, 3),
        (12, 2, 3),
        (12, 3, 4),
    ]


def test_one_leaf_and_chains_of_single_children_exchange_nothing() -> None:
    for shape in ([None], [[[[None]]]]):
        tree, ranks = tree_of(shape)
        assert level_wise_all_reduce(tree, ranks, 10).steps == ()
    tree, ranks = tree_of([[[[None]]], [[None]]])
    schedule = level_wise_all_reduce(tree, ranks, 10)
    check_schedule(schedule)
    assert len(schedule.steps) == 2


@pytest.mark.slow
def test_a_deep_chain_with_a_leaf_at_every_node() -> None:
    depth = 100
    parents = {f"s{i + 1}": f"s{i}" for i in range(depth)} | {
        f"h{i}": f"s{min(i, depth)}" for i in range(depth + 2)
    }
    ranks = [f"h{i}" for i in range(depth + 2)]
    check_schedule(level_wise_all_reduce(Tree("s0", parents), ranks, 10_000))


def test_many_ranks_on_an_uneven_tree() -> None:
    racks = [2 + (7 * i) % 11 for i in range(18)]
    shape = [[[None] * size for size in racks[pod::3]] for pod in range(3)]
    tree, ranks = tree_of(shape)
    for siblings in Siblings:
        schedule = level_wise_all_reduce(tree, ranks, 1_000_003, siblings)
        check_schedule(schedule)


def test_ranks_above_others_become_leaves_next_to_them() -> None:
    tree = Tree("r", {"a": "r", "b": "a", "c": "a", "d": "r"})
    leaves = ranks_as_leaves(tree, ["a", "b", "r"])
    assert leaves.root == "branch of r"
    assert leaves.children["branch of r"] == ("r", "branch of a")
    assert leaves.children["branch of a"] == ("a", "b")
    assert ranks_as_leaves(tree, ["b", "d"]) == tree.pruned(["b", "d"])
    for siblings in Siblings:
        for ranks in (["a", "b"], ["r", "b", "c"], ["d", "r", "a", "c", "b"]):
            schedule = level_wise_all_reduce(tree, ranks, 100, siblings)
            for each in (schedule, reduce_scatter_of(schedule), all_gather_of(schedule)):
                check_schedule(each)


def test_ranks_outside_the_tree_are_refused() -> None:
    tree = Tree("r", {"a": "r", "b": "a"})
    with pytest.raises(ScheduleError, match=r"ranks c are not connected"):
        level_wise_all_reduce(tree, ["b", "c"], 4)
    with pytest.raises(ScheduleError, match=r"no ranks"):
        level_wise_all_reduce(tree, [], 4)
    with pytest.raises(ScheduleError, match=r"ranks b are listed more than once"):
        level_wise_all_reduce(tree, ["b", "b"], 4)
    with pytest.raises(ScheduleError, match=r"level-wise: 0 pieces: expected at least one"):
        level_wise_all_reduce(tree, ["b"], 4, pieces=0)


# Pieces.


@pytest.mark.slow
@given(branches, st.integers(1, 300), st.sampled_from(Siblings), st.integers(2, 6))
def test_leaves_exchange_data_piece_by_piece(
    shape: Any, elements: int, siblings: Siblings, pieces: int
) -> None:
    tree, ranks = tree_of(shape)
    schedule = level_wise_all_reduce(tree, ranks, elements, siblings, pieces)
    assert set(schedule.chains) <= {0}
    pieces = min(pieces, elements)
    ends = [elements * (i + 1) // pieces for i in range(pieces)]
    streams: dict[tuple[int, int, bool], list[int]] = {}
    for t in schedule.transfers():
        piece = next(i for i, end in enumerate(ends) if t.start < end)
        assert t.stop <= ends[piece]
        streams.setdefault((t.source, t.target, t.combine), []).append(piece)
    for order in streams.values():
        assert order == sorted(order)


def test_a_piece_is_a_level_behind_the_one_before() -> None:
    tree, ranks = tree_of([[[None] * 2] * 2] * 2)
    steps = level_wise_all_reduce(tree, ranks, 8 * 4, pieces=4).steps
    # Up through three levels and down again, a diagonal of pieces and levels at a time.
    diagonals = [(turn - n, n) for turn in range(9) for n in range(4) if 0 <= turn - n < 6]
    assert [int(step.starts.min()) // 8 for step in steps] == [piece for _, piece in diagonals]
    distance = [int(abs(step.sources - step.targets).min()) for step in steps]
    assert distance == [(1, 2, 4, 4, 2, 1)[stage] for stage, _ in diagonals]
    assert [step.combine for step in steps] == [stage < 3 for stage, _ in diagonals]


@pytest.mark.parametrize("uplink", [1e9, 2e9, 4e9])
def test_levels_take_the_time_of_the_slowest(uplink: float) -> None:
    network = load_network("leaf-spine:4x4x1", link_rate=8e9, uplink_rate=uplink)
    ranks, elements = [f"h{i + 1}" for i in range(16)], 16 * 16 * 1000
    tree = network_tree(network, ranks)
    within = 2 * 3 / 4 * 4 * elements / 1e9
    between = 2 * 3 / 4 * 4 * elements / (uplink / 8)
    for pieces in (1, 2, 4, 16):
        scenario = Scenario(LinkArrays(network))
        schedule = level_wise_all_reduce(tree, ranks, elements, pieces=pieces)
        add_schedule(scenario, schedule, ranks, Transport(framing=BARE))
        # The first piece comes up alone, and the last goes down alone.
        expected = between + within / pieces
        assert scenario.run(0.0).seconds == pytest.approx(expected, rel=0.005)


@pytest.mark.slow
def test_many_pieces_at_coarse_events_take_what_the_busiest_link_takes() -> None:
    network = load_network("leaf-spine:8x8x1", link_rate=10e9, uplink_rate=2.5e9)
    ranks = [f"h{i + 1}" for i in range(64)]
    scenario = Scenario(LinkArrays(network))
    tree = network_tree(network, ranks)
    schedule = level_wise_all_reduce(tree, ranks, 25_000_000, pieces=16)
    add_schedule(scenario, schedule, ranks, Transport(framing=BARE))
    assert len(scenario.flows) > MANY_FLOWS
    between = 2 * 7 / 8 * 1e8 / (2.5e9 / 8)
    assert between < scenario.run().seconds < 1.02 * between


def test_a_node_hands_the_first_piece_on_while_others_are_below() -> None:
    tree, ranks = tree_of([[None] * 4] * 2)
    rack = range(4)

    def offered(pieces: int) -> int:
        """Bytes to the other rack when a half of what the rack sends itself has come."""
        schedule = level_wise_all_reduce(tree, ranks, 8 * 8 * 10, pieces=pieces)
        sums = [np.ones(schedule.elements, np.int32) for _ in rack]
        nodes = [Execution(schedule, node, sums[node]) for node in rack]
        left = [4 * schedule.elements * 3 // 4 // 2] * len(rack)
        for _ in range(3 * pieces):
            for node in rack:
                ahead = Channel((node + 1) % 4, 0)
                data = nodes[node].outgoing(ahead, left[node])
                left[node] -= len(data)
                nodes[ahead.peer].incoming(Channel(node, 0), data)
        assert not any(left)
        return len(nodes[0].outgoing(Channel(4, 0), 1 << 20))

    assert offered(1) == 0
    assert offered(8) > 0


def test_pieces_are_chosen_by_levels_and_size() -> None:
    def chosen(shape: Any, elements: int) -> int:
        return pieces_for(*tree_of(shape), elements)

    racks = [[None] * 8] * 4
    # Two levels, three, and one, where only sums and what is still summed overlap.
    assert chosen(racks, 25_000_000) == PIECES_A_LEVEL
    assert chosen([[[None] * 2] * 2] * 2, 25_000_000) == 2 * PIECES_A_LEVEL
    assert chosen([None] * 8, 25_000_000) == chosen([[[None] * 8]], 25_000_000) == 4
    # The size, in full messages; a power of two.
    assert [chosen(racks, 32 * LEAST_MESSAGE * n) for n in (0, 1, 2, 3, 4, 7, 8)] == [
        1, 1, 2, 2, 4, 4, 8,
    ]  # fmt: skip
    # A rank of 32 racks of 32 sends 124 messages a piece.
    assert chosen([[None] * 32] * 32, 250_000_000) == 8
    with pytest.raises(ScheduleError, match=r"no ranks"):
        pieces_for(Tree("r", {}), [], 4)
