from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hopsum.collectives import execution
from hopsum.collectives.algorithms.halving_doubling import halving_doubling_all_reduce
from hopsum.collectives.algorithms.level_wise import level_wise_all_reduce
from hopsum.collectives.algorithms.ring import ring_all_reduce
from hopsum.collectives.algorithms.rooted import heap_tree
from hopsum.collectives.algorithms.trees import (
    SharedTree,
    double_tree_all_reduce,
    multi_tree_all_reduce,
    server_all_reduce,
)
from hopsum.collectives.choices import Collective
from hopsum.collectives.execution import Channel, Execution, channels
from hopsum.collectives.schedule import Ranges, Schedule, make_step
from hopsum.collectives.tree import Tree
from tests.support.halves import all_gather_of, reduce_scatter_of
from tests.support.schedules import broadcast_from, reduce_to

Tensor = NDArray[np.int32] | NDArray[np.float32]


def names(count: int) -> list[str]:
    return [f"h{i}" for i in range(count)]


def two_racks(count: int) -> Tree:
    return Tree(
        "s", {"a": "s", "b": "s"} | {h: "a" if i % 3 else "b" for i, h in enumerate(names(count))}
    )


ALL_REDUCES: list[Callable[[int, int], Schedule]] = [
    ring_all_reduce,
    halving_doubling_all_reduce,
    lambda n, e: double_tree_all_reduce(names(n), e),
    lambda n, e: server_all_reduce(names(n), e, ["a", "b"]),
    lambda n, e: level_wise_all_reduce(two_racks(n), names(n), e),
    lambda n, e: multi_tree_all_reduce(
        names(n),
        e,
        [
            SharedTree(heap_tree(names(n))),
            SharedTree(heap_tree(names(n)[::-1], 3), Fraction(1, 2)),
        ],
    ),
]


def execute(schedule: Schedule, tensors: list[Tensor], order: list[int], size: int) -> None:
    """Move bytes between the nodes in a given order until nothing moves.

    Between two nodes lie at most `size` bytes that the receiver does not want yet.
    """
    executions = [Execution(schedule, node, values) for node, values in enumerate(tensors)]
    between: dict[tuple[int, Channel], bytes] = {}
    moved = True
    while moved:
        moved = False
        for node in order:
            for channel in executions[node].targets:
                lying = between.get((node, channel), b"")
                lying += executions[node].outgoing(channel, size - len(lying))
                peer, back = executions[channel.peer], Channel(node, channel.chain)
                wanted = peer.wanted(back)
                if lying[:wanted]:
                    moved = True
                    # In two pieces, so that elements come torn apart.
                    peer.incoming(back, lying[: min(3, wanted)])
                    peer.incoming(back, lying[min(3, wanted) : wanted])
                between[node, channel] = lying[wanted:]
    assert all(execution.done for execution in executions)
    assert not any(between.values())


def random_tensors(schedule: Schedule, rng: Random, dtype: type) -> list[Tensor]:
    generator = np.random.default_rng(rng.randrange(1 << 30))
    tensors: list[Tensor] = [
        generator.integers(-1000, 1000, schedule.elements).astype(dtype)
        for _ in range(schedule.ranks)
    ]
    return tensors + [np.zeros(schedule.elements, dtype) for _ in range(schedule.relays)]


@pytest.mark.slow
@given(
    st.sampled_from(ALL_REDUCES),
    st.integers(1, 7),
    st.integers(0, 40),
    st.integers(4, 50),
    st.integers(4, 60),
    st.integers(4, 60),
    st.randoms(use_true_random=False),
    st.sampled_from([np.int32, np.float32]),
)
def test_sums_are_exact_in_any_order_and_little_memory(
    make: Callable[[int, int], Schedule],
    ranks: int,
    elements: int,
    size: int,
    memory: int,
    lead: int,
    rng: Random,
    dtype: type,
) -> None:
    schedule = make(ranks, elements)
    order = list(range(schedule.nodes))
    rng.shuffle(order)
    tensors = random_tensors(schedule, rng, dtype)
    expected = sum(t.astype(np.int64) for t in tensors)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "WAITING_BYTES", memory)
        patch.setattr(execution, "LEAD_BYTES", lead)
        patch.setattr(execution, "LEAD_PART", 1 << 30)
        execute(schedule, tensors, order, size)
    for tensor in tensors[:ranks]:
        np.testing.assert_array_equal(tensor, expected)


def test_reduce_scatter_and_all_gather_do_their_halves() -> None:
    rng = Random(1)
    ring = ring_all_reduce(5, 33)
    scatter, gather = reduce_scatter_of(ring), all_gather_of(ring)
    tensors = random_tensors(scatter, rng, np.int32)
    expected = sum(t.astype(np.int64) for t in tensors)
    execute(scatter, tensors, list(range(5)), 16)
    for node, start, stop in scatter.wanted.rows():
        np.testing.assert_array_equal(tensors[node][start:stop], expected[start:stop])
    execute(gather, tensors, list(range(5)), 16)
    for tensor in tensors:
        np.testing.assert_array_equal(tensor, expected)


def test_reduce_and_broadcast_have_a_root() -> None:
    rng = Random(2)
    reduce, broadcast = reduce_to(4, names(6), 20), broadcast_from(4, names(6), 20)
    tensors = random_tensors(reduce, rng, np.int32)
    expected = sum(t.astype(np.int64) for t in tensors)
    execute(reduce, tensors, list(range(6)), 16)
    np.testing.assert_array_equal(tensors[4], expected)
    execute(broadcast, tensors, list(range(6)), 16)
    for tensor in tensors:
        np.testing.assert_array_equal(tensor, expected)


def test_no_child_of_a_tree_runs_far_ahead_of_another() -> None:
    elements = 1 << 20
    schedule = server_all_reduce(names(2), elements, ["root"])
    root = Execution(schedule, 2, np.zeros(elements, np.int32))
    fast, slow = root.sources
    most = 4 * elements // execution.LEAD_PART
    assert most > execution.LEAD_BYTES
    assert root.wanted(fast) == root.wanted(slow) == most
    root.incoming(fast, bytes(most - 4))
    assert (root.wanted(fast), root.wanted(slow)) == (4, most)
    root.incoming(fast, bytes(4))
    assert (root.wanted(fast), root.wanted(slow)) == (0, most)
    # What both have brought is passed on, and the fast one may bring more.
    root.incoming(slow, bytes(400))
    assert root.wanted(fast) == 400
    while root.wanted(slow) or root.wanted(fast):
        root.incoming(slow, bytes(root.wanted(slow)))
        root.incoming(fast, bytes(root.wanted(fast)))
    assert root.outgoing(root.targets[0], 4 * elements) == bytes(4 * elements)


def test_a_copy_waits_for_an_addition_from_another_node() -> None:
    add = make_step(1, 0, 0, 2, combine=True)
    copy = make_step(2, 0, 0, 2, combine=False, after=(0,))
    nothing = Ranges.of([])
    schedule = Schedule("test", Collective.REDUCE, 3, 2, (add, copy), nothing, nothing)
    values = np.array([10, 20], np.int32)
    node = Execution(schedule, 0, values)
    node.incoming(Channel(2, 0), np.array([5, 6], "<i4").tobytes())
    assert values.tolist() == [10, 20]
    node.incoming(Channel(1, 0), np.array([1], "<i4").tobytes())
    assert values.tolist() == [5, 20]
    node.incoming(Channel(1, 0), np.array([1], "<i4").tobytes())
    assert values.tolist() == [5, 6]
    assert node.done


def test_an_exchange_sends_what_was_there_before_the_step() -> None:
    swap = make_step([0, 1], [1, 0], 0, 2, combine=True)
    whole = Ranges.whole(range(2), 2)
    schedule = Schedule("test", Collective.ALL_REDUCE, 2, 2, (swap,), whole, whole)
    values = np.array([1, 2], np.int32)
    node = Execution(schedule, 0, values)
    node.incoming(Channel(1, 0), np.array([10, 20], "<i4").tobytes())
    # What came waits until the old values are on their way, and then for nothing more.
    assert values.tolist() == [1, 2]
    assert node.outgoing(Channel(1, 0), 4) == np.array([1], "<i4").tobytes()
    assert values.tolist() == [11, 2]
    assert node.outgoing(Channel(1, 0), 100) == np.array([2], "<i4").tobytes()
    assert values.tolist() == [11, 22]
    assert node.done


def test_crossed_ranges_of_one_step_do_not_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for what the other would send second, were a step's ranges not in order."""
    monkeypatch.setattr(execution, "WAITING_BYTES", 8)
    crossed = make_step([0, 0, 1, 1], [1, 1, 0, 0], [5, 0, 0, 5], [9, 4, 4, 9], combine=True)
    nothing = Ranges.of([])
    schedule = Schedule("test", Collective.REDUCE, 2, 9, (crossed,), nothing, nothing)
    tensors: list[Tensor] = [np.arange(9, dtype=np.int32), np.full(9, 10, np.int32)]
    execute(schedule, tensors, [0, 1], 8)
    expected = [10, 11, 12, 13, None, 15, 16, 17, 18]
    for tensor in tensors:
        assert [v if i != 4 else None for i, v in enumerate(tensor.tolist())] == expected


def test_chains_do_not_queue_behind_each_other() -> None:
    steps = (
        make_step(0, 1, 0, 2, combine=True),
        make_step(1, 0, 0, 2, combine=False, after=(0,)),
        make_step(1, 0, 2, 4, combine=True),
        make_step(0, 1, 2, 4, combine=False, after=(2,)),
    )
    whole = Ranges.whole(range(2), 4)
    schedule = Schedule("test", Collective.ALL_REDUCE, 2, 4, steps, whole, whole)
    assert channels(schedule, 0) == ((Channel(1, 0), Channel(1, 1)),) * 2
    node = Execution(schedule, 0, np.array([1, 2, 3, 4], np.int32))
    node.incoming(Channel(1, 1), np.array([10, 10], "<i4").tobytes())
    assert node.outgoing(Channel(1, 1), 100) == np.array([13, 14], "<i4").tobytes()
    one = replace(steps[2], after=(0,))
    assert set(replace(schedule, steps=(*steps[:2], one, steps[3])).chains) == {0}


def test_no_more_is_requested_than_fits() -> None:
    schedule = ring_all_reduce(2, 1 << 20)
    node = Execution(schedule, 0, np.zeros(1 << 20, np.int32))
    channel = Channel(1, 0)
    assert node.wanted(channel) == execution.WAITING_BYTES
    # Rank 0 adds to its second half at once, but may not overwrite what it has not sent.
    total = 4 * schedule.elements
    taken = 0
    while wanted := node.wanted(channel):
        node.incoming(channel, bytes(wanted))
        taken += wanted
    assert taken == total // 2 + execution.WAITING_BYTES
    assert node.wanted(Channel(1, 7)) == 0


def test_bytes_of_the_next_schedule_are_handed_back() -> None:
    node = Execution(ring_all_reduce(2, 2), 0, np.zeros(2, np.int32))
    assert node.incoming(Channel(1, 0), bytes(11)) == bytes(3)


def test_int32_sums_wrap_around() -> None:
    tensors: list[Tensor] = [
        np.array([2**31 - 1, -(2**31)], np.int32),
        np.array([1, -1], np.int32),
    ]
    execute(ring_all_reduce(2, 2), tensors, [0, 1], 64)
    assert tensors[0].tolist() == [-(2**31), 2**31 - 1]


def test_a_tensor_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(3,\): the schedule is for \(4,\)"):
        Execution(ring_all_reduce(2, 4), 0, np.zeros(3, np.int32))
