from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.execution import Execution
from collectives.ring import chunk, ring_all_reduce
from collectives.schedule import Schedule, ScheduleError, check_all_reduce


@given(st.integers(1, 12), st.integers(0, 100))
def test_ring_is_proved_and_sends_its_share(ranks: int, elements: int) -> None:
    schedule = ring_all_reduce(ranks, elements)
    check_all_reduce(schedule)
    total = sum(t.stop - t.start for t in schedule.transfers)
    assert total == 2 * (ranks - 1) * elements


def test_chunks_cover_the_tensor_without_overlap() -> None:
    parts = [chunk(10, 4, i) for i in range(4)]
    assert parts[0][0] == 0
    assert parts[-1][1] == 10
    assert all(a[1] == b[0] for a, b in pairwise(parts))


def test_a_missing_transfer_is_found() -> None:
    schedule = ring_all_reduce(3, 9)
    broken = Schedule(3, 9, schedule.transfers[:-1])
    with pytest.raises(ScheduleError, match=r"rank \d, element \d+: .* expected once"):
        check_all_reduce(broken)


def test_a_doubled_contribution_is_found() -> None:
    schedule = ring_all_reduce(3, 9)
    last = schedule.transfers[-1]
    broken = Schedule(3, 9, (*schedule.transfers, replace(last, step=9, combine=True)))
    with pytest.raises(ScheduleError, match="there 2 times"):
        check_all_reduce(broken)


def execute(schedule: Schedule, tensors: list[np.ndarray], order: list[int], size: int) -> None:
    """Move bytes between the ranks in a given order until nothing moves."""
    executions = [Execution(schedule, rank, values) for rank, values in enumerate(tensors)]
    moved = True
    while moved:
        moved = False
        for rank in order:
            for peer in executions[rank].targets:
                data = executions[rank].outgoing(peer, size)
                if data:
                    moved = True
                    executions[peer].incoming(rank, data[:3])
                    executions[peer].incoming(rank, data[3:])
    assert all(execution.done for execution in executions)


@given(
    st.integers(1, 6),
    st.integers(0, 40),
    st.integers(4, 50),
    st.randoms(use_true_random=False),
    st.sampled_from([np.int32, np.float32]),
)
def test_execution_sums_exactly_in_any_order(
    ranks: int, elements: int, size: int, rng: object, dtype: type
) -> None:
    order = list(range(ranks))
    rng.shuffle(order)  # type: ignore[attr-defined]
    generator = np.random.default_rng(elements)
    tensors = [generator.integers(-1000, 1000, elements).astype(dtype) for _ in range(ranks)]
    expected = sum(t.astype(np.int64) for t in tensors)
    execute(ring_all_reduce(ranks, elements), tensors, order, size)
    for tensor in tensors:
        np.testing.assert_array_equal(tensor, expected)


def test_int32_sums_wrap_around() -> None:
    tensors = [np.array([2**31 - 1, -(2**31)], np.int32), np.array([1, -1], np.int32)]
    execute(ring_all_reduce(2, 2), tensors, [0, 1], 64)
    assert tensors[0].tolist() == [-(2**31), 2**31 - 1]


def test_a_tensor_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(3,\): the schedule is for \(4,\)"):
        Execution(ring_all_reduce(2, 4), 0, np.zeros(3, np.int32))
