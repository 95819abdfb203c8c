from __future__ import annotations

from functools import reduce
from operator import and_
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.coordination.events import CoordinationOptions, Rejection, Stall, Start
from hopsum.coordination.failure import CoordinationError
from hopsum.coordination.messages import Result, Vector
from hopsum.coordination.operators import NO_MORE, BitVector, OrderTable
from hopsum.coordination.reduction import AndAllReduce, ExternalAnd, RingAnd, TreeAnd
from hopsum.coordination.tree import balanced_tree
from hopsum_torch.agreement import from_tagged_words, tagged_words
from tests.coordination.test_negotiation import (
    all_started,
    begin,
    group_of,
    iterate,
    ready,
    started,
)
from tests.support.coordination_world import OPTIONS, operator, random_tree
from tests.support.virtual_group import Costs, VirtualGroup


@given(st.integers(1, 100), st.integers(0, (1 << 31) - 1), st.data())
def test_pytorch_has_the_same_layout(length: int, iteration: int, data: st.DataObject) -> None:
    bits = data.draw(st.integers(0, (1 << length) - 1))
    words = tagged_words(length, bits, iteration)
    vector = BitVector(length, bits, iteration)
    assert tuple(int(word) & 0xFFFFFFFF for word in words) == vector.tagged_words
    assert from_tagged_words(words) == bits
    assert BitVector.from_tagged_words(length, words.tolist()) == vector


@given(st.integers(0, 100), st.data())
def test_encoding_round_trip(length: int, data: st.DataObject) -> None:
    vector = BitVector(length, data.draw(st.integers(0, (1 << length) - 1)))
    assert len(vector.words) == -(-length // 32)
    assert BitVector.from_words(length, vector.words) == vector
    signed = [word - (1 << 32) if word >> 31 else word for word in vector.words]
    assert BitVector.from_words(length, signed) == vector


numbers = st.integers(0, NO_MORE - 1)


@given(st.lists(st.tuples(st.integers(0, (1 << 40) - 1), numbers), min_size=1, max_size=5))
def test_words_of_different_iterations_start_nothing(given: list[tuple[int, int]]) -> None:
    """Whoever combines the words knows nothing of iterations."""
    vectors = [BitVector(40, bits, iteration) for bits, iteration in given]
    words = [
        reduce(and_, column) for column in zip(*(v.tagged_words for v in vectors), strict=True)
    ]
    combined = BitVector.from_tagged_words(40, words)
    assert combined == reduce(and_, vectors)
    assert combined.bits == 0 or {v.iteration for v in vectors} == {combined.iteration}


def test_words_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="2 words for 32 bits; expected 1"):
        BitVector.from_words(32, (0, 0))
    with pytest.raises(ValueError, match="1 words; expected 2 at least"):
        BitVector.from_tagged_words(0, (0,))
    with pytest.raises(ValueError, match="vectors of 3 and 4 bits"):
        BitVector(3) & BitVector(4)


def test_a_vector_contains_operators_exactly_as_in_the_table() -> None:
    table = OrderTable().amended(1, (), [operator("a"), operator("b"), operator("c")])
    vector = table.vector([operator("c"), operator("a"), operator("x"), operator("b", 9)], 7)
    assert vector == BitVector(3, 0b101, 7)
    assert table.chosen(vector) == [operator("a"), operator("c")]
    amended = table.amended(2, ["a"], [operator("d")])
    assert [o.name for o in amended.operators] == ["b", "c", "d"]
    assert amended.find("a") is None


def reduce_all(ends: list[AndAllReduce], vectors: list[list[BitVector]], random: Random) -> None:
    """Let every process contribute when it may, and messages arrive in any order over the edges."""
    results: list[list[BitVector]] = [[] for _ in ends]
    given = [0] * len(ends)
    edges: dict[tuple[int, int], list[Vector | Result]] = {}
    cycles = len(vectors)
    while any(len(result) < cycles for result in results):
        moves: list[tuple[str, object]] = [("edge", e) for e, queue in edges.items() if queue]
        moves += [
            ("give", rank)
            for rank in range(len(ends))
            if given[rank] == len(results[rank]) and given[rank] < cycles
        ]
        kind, where = random.choice(moves)
        if kind == "edge":
            source, rank = where  # type: ignore[misc]
            outgoing = ends[rank].receive(source, edges[source, rank].pop(0))
        else:
            rank = where  # type: ignore[assignment]
            outgoing = ends[rank].contribute(given[rank], vectors[given[rank]][rank])
            given[rank] += 1
        for peer, message in outgoing:
            assert isinstance(message, Vector | Result)
            edges.setdefault((rank, peer), []).append(message)
        result = ends[rank].take_result()
        if result is not None:
            results[rank].append(result)
    expected = [BitVector(40, -1 & (1 << 40) - 1)] * cycles
    for cycle, row in enumerate(vectors):
        for vector in row:
            expected[cycle] &= vector
    assert all(result == expected for result in results)


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_bitwise_and_on_tree_and_ring_in_any_order(seed: int, on_ring: bool) -> None:
    random = Random(seed)
    tree = random_tree(random)
    ranks = list(range(len(tree.names)))
    vectors = [
        [BitVector(40, random.getrandbits(40) | random.getrandbits(40)) for _ in ranks]
        for _ in range(4)
    ]
    ring = random.sample(ranks, len(ranks))
    ends: list[AndAllReduce] = [
        RingAnd(ring, rank) if on_ring else TreeAnd(tree, rank) for rank in ranks
    ]
    reduce_all(ends, vectors, random)


def test_vectors_of_different_tables_are_noticed() -> None:
    end = TreeAnd(balanced_tree(["w0", "w1"]), 0)
    end.contribute(0, BitVector(3))
    with pytest.raises(CoordinationError, match="cycle 0: the vector of rank 1 has 4 bits"):
        end.receive(1, Vector(0, BitVector(4)))


def test_an_all_reduce_of_the_callers() -> None:
    tree = balanced_tree(["w0", "w1", "w2"])
    calls: list[list[tuple[int, ...]]] = [[], [], []]
    ends = [ExternalAnd(calls[rank].append) for rank in range(3)]
    group = VirtualGroup(tree, options=OPTIONS, costs=Costs(0.0, 0.001), reductions=ends)
    names = [f"g{number}" for number in range(33)]
    iterate(group, 1, *names)
    begin(group, 2)
    ready(group, names[32], 0, 1)
    ready(group, names[32], 2)
    assert calls == [[(0, 1, 2, 2**32 - 3)]] * 3
    assert started(group, 0) == names
    for rank in range(3):
        ends[rank].completed((0, 1, 2, -3))
        group.call(group.now, rank, lambda p: p.advance(group.now))
    group.run(group.now + 0.1)
    assert all_started(group) == [*names, names[32]]


def test_a_reduction_other_than_and_is_noticed() -> None:
    end = ExternalAnd(lambda words: None)
    group = VirtualGroup(balanced_tree(["w0"]), options=OPTIONS, reductions=[end])
    iterate(group, 1, "a", "b")
    begin(group, 2)
    ready(group, "a")
    end.completed((3, 2, -3))
    group.call(group.now, 0, lambda p: p.advance(group.now))
    group.run(group.now + 0.1)
    assert "is not a bitwise and of all vectors" in str(group.participants[0].failure)


def test_vectors_that_bring_nothing_are_paced() -> None:
    group = group_of(2)
    iterate(group, 1, "a", "b")
    begin(group, 2)
    before = group.participants[0].vectors
    ready(group, "a", 0)
    ready(group, "b", 1)
    assert group.participants[0].vectors - before <= 0.2 / OPTIONS.cycle + 2
    assert group.participants[0].vectors - before >= 2
    ready(group, "b", 0)
    ready(group, "a", 1)
    assert all_started(group) == ["a", "b", "b", "a"]


def test_a_process_with_nothing_ready_sends_no_vectors() -> None:
    group = group_of(2)
    iterate(group, 1, "a")
    begin(group, 2)
    before = [p.vectors for p in group.participants]
    ready(group, "a", 0)
    group.run(group.now + 5)
    assert [p.vectors - b for p, b in zip(group.participants, before, strict=True)] == [1, 0]


def test_an_operator_that_appears_later_is_negotiated_once_and_joins_the_table() -> None:
    group = group_of(4)
    iterate(group, 1, "a")
    iterate(group, 2, "b", "a")
    assert all_started(group) == ["a", "b", "a"]
    assert [o.name for o in group.participants[3].table.operators] == ["a", "b"]
    assert {p.table.version for p in group.participants} == {2}
    iterate(group, 3, "b", "a")
    assert all_started(group) == ["a", "b", "a", "b", "a"]
    assert {p.table.version for p in group.participants} == {2}


def test_an_operator_that_disappears_leaves_the_table_and_may_come_back() -> None:
    group = group_of(4)
    iterate(group, 1, "a", "b", "c")
    iterate(group, 2, "a", "c")
    begin(group, 3)
    assert [o.name for o in group.participants[3].table.operators] == ["a", "c"]
    ready(group, "b")
    assert [o.name for o in group.participants[3].table.operators] == ["a", "c", "b"]
    assert all_started(group) == ["a", "b", "c", "a", "c", "b"]


def test_an_operator_may_pause_if_allowed() -> None:
    tree = balanced_tree(["w0", "w1"])
    options = CoordinationOptions(OPTIONS.links, cycle=0.01, forget_after=2)
    group = VirtualGroup(tree, options=options, costs=Costs(0.0, 0.001))
    iterate(group, 1, "a", "b")
    iterate(group, 2, "a")
    iterate(group, 3, "a", "b")
    begin(group, 4)
    assert {p.table.version for p in group.participants} == {1}


def test_a_shape_that_changes_everywhere_changes_the_table() -> None:
    group = group_of(4)
    iterate(group, 1, "a", "b")
    begin(group, 2)
    ready(group, "a", shape=(99,))
    ready(group, "b")
    assert all_started(group) == ["a", "b", "a", "b"]
    assert group.participants[2].table.find("a") == operator("a", 99)
    assert [o.name for o in group.participants[2].table.operators] == ["b", "a"]


@pytest.mark.parametrize("odd", [0, 1, 4])
def test_a_shape_that_changes_at_one_process_is_an_error_everywhere(odd: int) -> None:
    group = group_of(5)
    iterate(group, 1, "a", "b")
    begin(group, 2)
    ready(group, "a", *[rank for rank in range(5) if rank != odd])
    ready(group, "a", odd, shape=(99,))
    ready(group, "b")
    assert all_started(group) == ["a", "b", "b"]
    for events in group.events:
        [failed] = [event for _, event in events if isinstance(event, Rejection)]
        assert f"float32 (99,) at w{odd}" in failed.reason
    begin(group, 3)
    ready(group, "a")
    assert all_started(group) == ["a", "b", "b", "a"]


@pytest.mark.parametrize("in_table", [False, True])
def test_processes_that_do_not_request_are_named(in_table: bool) -> None:
    group = group_of(6)
    if in_table:
        iterate(group, 1, "a")
        begin(group, 2)
    absent = (2, 5)
    ready(group, "a", *[rank for rank in range(6) if rank not in absent])
    began = group.now
    group.run(began + 2 * OPTIONS.stall + 1)
    for rank, events in enumerate(group.events):
        received = [(time, event) for time, event in events if isinstance(event, Stall)]
        if rank in absent:
            assert not received
        else:
            assert received[0][0] <= began + 2 * OPTIONS.stall + 1
            assert received[0][1] == Stall(operator("a"), ("w2", "w5"))
    ready(group, "a", *absent)
    assert all_started(group) == ["a"] * (2 if in_table else 1)
    assert all(p.failure is None for p in group.participants)


def test_events_of_a_start_carry_the_operator() -> None:
    group = group_of(2)
    iterate(group, 1, "a")
    [(_, event)] = group.events[1]
    assert isinstance(event, Start)
    assert event.operator == operator("a")
