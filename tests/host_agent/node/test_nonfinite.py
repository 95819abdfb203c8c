"""Sums that take values which are not finite: every rank sees in its result what addition gives."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hopsum.host_agent.node import guesses
from hopsum.host_agent.node.calls import SUM_FLOAT, CallSpec
from hopsum.host_agent.node.guesses import SURE
from hopsum.host_agent.node.nonfinite import put_back, take_out
from hopsum.host_agent.node.process_source import PACKED_ELEMENTS
from hopsum.host_agent.process_calls import ALL, PARTS, ROOT
from hopsum.protocol.wire import Reduction
from tests.support.process_job import Job
from tests.support.search import examples

INF, NAN = np.inf, np.nan
SPECIAL = (INF, -INF, NAN)
Floats = NDArray[np.float32]


def added(rows: Sequence[Floats]) -> Floats:
    """What addition gives, one row after the other; of small whole numbers it is exact."""
    with np.errstate(invalid="ignore"):
        return np.add.reduce(list(rows))


@given(
    st.lists(
        st.lists(st.sampled_from([0, 1, -2, 7, *SPECIAL]), min_size=5, max_size=5),
        min_size=1,
        max_size=6,
    )
)
def test_taken_out_and_put_back_is_added(rows: list[list[float]]) -> None:
    """Also where the ranks are of two hosts."""
    tensors = [np.array(row, np.float32) for row in rows]
    expected = added([np.array(row, np.float32) for row in rows])
    first, others = tensors[: len(rows) // 2], tensors[len(rows) // 2 :]
    counts = take_out(others)
    if first:
        counts = counts + take_out(first)
    assert counts.dtype == np.int32
    assert all(np.isfinite(tensor).all() for tensor in tensors)
    total = added(tensors)
    put_back(total, counts)
    np.testing.assert_array_equal(total, expected)


@pytest.mark.parametrize("ranks", [0x7FFF, 0x8000, 0xFFFF])
def test_as_many_ranks_as_a_job_can_have_are_counted(ranks: int) -> None:
    """Integers wrap around, in switches as here."""
    for values in ((NAN, 0, 0), (0, INF, -INF)):
        counts = take_out([np.array(values, np.float32)])
        with np.errstate(over="ignore"):
            counts = counts * np.int32(ranks)
        total = np.ones(3, np.float32)
        put_back(total, counts)
        np.testing.assert_array_equal(total, [each or 1 for each in values])


def rows_of(random: Random, ranks: int, elements: int, special: float) -> list[Floats]:
    """Small whole numbers, a share of them not finite."""
    return [
        np.array(
            [
                random.choice(SPECIAL) if random.random() < special else random.randint(-9, 9)
                for _ in range(elements)
            ],
            np.float32,
        )
        for _ in range(ranks)
    ]


def check(job: Job, call: int, rows: Sequence[Floats], target: int = ALL) -> None:
    """Check that a call has given all ranks what addition gives."""
    expected = added(rows)
    for rank, process in enumerate(job.processes):
        assert process.ended[call] == "done"
        start, stop = CallSpec(SUM_FLOAT, len(rows[0]), target).share(rank, len(rows))
        np.testing.assert_array_equal(process.tensors[call][start:stop], expected[start:stop])


@pytest.mark.parametrize("elements", [1, 300, PACKED_ELEMENTS + 60])
@pytest.mark.parametrize("target", [ALL, PARTS, ROOT + 1])
@pytest.mark.parametrize("sets", [0, 1, 2])
@pytest.mark.parametrize("ranks", [["h1", "h2", "h3"], ["h1", "h1", "h2", "h2", "h2"]])
def test_all_ranks_see_what_is_not_finite(
    elements: int, target: int, sets: int, ranks: list[str]
) -> None:
    """Of small and long tensors, for all, one or in parts, wherever the trees have their roots."""
    size = elements * len(ranks) if target == PARTS else elements
    random = Random(size)
    job = Job(len(ranks), random, ranks, sets)
    # Once alone, and then with others between which it stands.
    for call in (0, 2, 5):
        rows = rows_of(random, len(ranks), size, 0.3)
        for process, row in zip(job.processes, rows, strict=True):
            if call:
                process.sum(np.ones(40, np.float32))
            process.sum(row, target=target, passes=True)
            if call:
                process.sum(np.full(7, 2, np.int32))
        job.run()
        check(job, call, rows, target)
        for process in job.processes:
            if call:
                assert process.tensors[call - 1].tolist() == [len(ranks)] * 40
                assert process.tensors[call + 1].tolist() == [2 * len(ranks)] * 7


@pytest.mark.parametrize("elements", [5, PACKED_ELEMENTS + 1])
def test_finite_calls_cost_nothing_more(elements: int) -> None:
    """And one that is not finite as many elements again."""
    plain, passing = Job(2), Job(2)
    for turn in range(SURE + 3):
        for job in (plain, passing):
            for process in job.processes:
                process.sum(np.full(elements, turn, np.float32), passes=job is passing)
            job.run()
    assert plain.types == passing.types
    passing.types.clear()
    for rank, process in enumerate(passing.processes):
        process.sum(np.full(elements, INF if rank else 1, np.float32), passes=True)
    passing.run()
    # What was guessed, or sure, the check, the counts, and the values.
    values = ("int32" if elements < PACKED_ELEMENTS else "float32", elements)
    assert sorted(passing.types) == sorted([values, ("int32", 256), ("int32", elements), values])
    assert passing.processes[0].tensors[SURE + 3].tolist() == [INF] * elements


def test_counts_go_where_their_values_go() -> None:
    job = Job(3, sets=1)
    rows = rows_of(Random(2), 3, 3 * PACKED_ELEMENTS, 0.1)
    for process, row in zip(job.processes, rows, strict=True):
        process.sum(row, target=PARTS, passes=True)
    job.run()
    check(job, 0, rows, PARTS)
    # The check alone is for all.
    assert job.kinds == {"check", "counts", "values"}
    assert job.reductions == {None, Reduction.REDUCE_SUM}
    assert job.for_all == 1


@pytest.mark.parametrize("turns", [1, 3, SURE + 3])
def test_a_rank_that_refuses_is_heard(turns: int) -> None:
    """Ranks agree on it before they make a group; even if they did not, no sum would be wrong."""
    job = Job(3)
    for _ in range(turns):
        for process in job.processes:
            process.sum(np.ones(4, np.float32))
        job.run()
    for rank, process in enumerate(job.processes):
        values = np.ones(4, np.float32)
        values[rank] = NAN
        process.sum(values, passes=rank != 1)
    job.run()
    for process in job.processes:
        assert process.ended[turns].startswith("only finite values can be summed")
        assert process.ended[turns].endswith("clip it); 1: element 1 is nan")


def test_the_finite_values_keep_the_scale_of_finite_values() -> None:
    job = Job(2)
    values = np.array([1.5, -2.25, INF], np.float32)
    for process in job.processes:
        process.sum(values, passes=True)
        process.sum(np.array([1e-30, NAN], np.float32), passes=True)
        process.sum(np.full(3, -INF, np.float32), passes=True)
    job.run()
    for process in job.processes:
        assert process.tensors[0].tolist() == [3.0, -4.5, INF]
        np.testing.assert_array_equal(process.tensors[1], np.float32([2e-30, NAN]))
        assert process.tensors[2].tolist() == [-INF] * 3


def test_hosts_whose_sums_leave_the_range_have_infinities_and_nans() -> None:
    """Ranks of a host make such values smaller first."""
    job = Job(4, ranks=["h1", "h1", "h2", "h2"])
    rows = [np.full(PACKED_ELEMENTS + 1, 3e38, np.float32) for _ in job.processes]
    rows[1][:2] = (-INF, NAN)
    rows[2][4:] = -3e38
    rows[3][4:] = -3e38
    for process, row in zip(job.processes, rows, strict=True):
        process.sum(row, passes=True)
    job.run()
    for process in job.processes:
        np.testing.assert_array_equal(process.tensors[0][:4], np.float32([-INF, NAN, INF, INF]))
        assert (process.tensors[0][4:] == 0).all()


def test_jobs_with_check_lanes_take_them_too() -> None:
    """They protect sums alone, and counts are sums."""
    random = Random(5)
    job = Job(3, sums_only=True)
    for call in range(SURE + 2):
        rows = rows_of(random, 3, 50, 0.2)
        for process, row in zip(job.processes, rows, strict=True):
            process.sum(row, passes=True)
        job.run()
        check(job, call, rows)


STEP = st.tuples(
    st.sampled_from([0, 60, 2400]),
    st.sampled_from([0.0, 0.0, 0.02, 0.5]),
    st.sampled_from([ALL, PARTS, ROOT, ROOT + 1]),
    st.sampled_from(["", "", "", "barrier", "max"]),
)


@pytest.mark.slow
@settings(max_examples=examples(30, of=300))
@given(
    st.lists(STEP, min_size=1, max_size=6),
    st.lists(st.sampled_from(["h1", "h2", "h3"]), min_size=2, max_size=5),
    st.sampled_from([0, 1, 2]),
    st.integers(0, 1 << 32),
    st.sampled_from([1, 2, SURE]),
)
def test_any_calls_in_any_order(
    steps: list[Any], ranks: list[str], sets: int, seed: int, sure: int
) -> None:
    """Calls that repeat and are guessed; of each rank some are not finite."""
    random = Random(seed)
    job, given_ = Job(len(ranks), random, ranks, sets), []
    with mock.patch.object(guesses, "SURE", sure):
        for elements, special, target, other in steps * 3:
            rows = rows_of(random, len(ranks), elements, random.choice([0, 0, special]))
            given_.append((rows, target, other))
            for process, row in zip(job.processes, rows, strict=True):
                if other == "barrier":
                    process.barrier()
                elif other:
                    process.sum(np.ones(elements, np.int32), other, target)
                else:
                    process.sum(row, target=target, passes=True)
            if random.random() < 0.5:
                job.run()
        for process in job.processes:
            process.leave()
        job.run()
    assert all(job.over)
    for call, (rows, target, other) in enumerate(given_):
        if not other:
            check(job, call, rows, target)
        assert {process.ended[call] for process in job.processes} == {"done"}
