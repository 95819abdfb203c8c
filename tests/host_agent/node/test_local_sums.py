"""Several ranks a host: one tensor leaves it, every rank gets the total, errors name a rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.host_agent.node.rank_values import MOST
from tests.support.process_job import EXPECTED, Job

PLACEMENTS = {
    "one a host": ["h1", "h2", "h3", "h4"],
    "two a host": ["h1", "h1", "h2", "h2"],
    "in turns": ["h1", "h2", "h1", "h2"],
    "three and one": ["h1", "h1", "h2", "h1"],
}
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def added(ranks: Sequence[str], rows: Sequence[Any], **options: Any) -> tuple[Job, Any]:
    """The sum of a row a rank, and the job."""
    job = Job(len(ranks), ranks=ranks, **options)
    for process, row in zip(job.processes, rows, strict=True):
        process.sum(row)
    job.run()
    assert {process.ended[0] for process in job.processes} == {"done"}
    first, *others = (process.tensors[0] for process in job.processes)
    for other in others:
        np.testing.assert_array_equal(first, other)
    return job, first


@pytest.mark.parametrize("ranks", PLACEMENTS.values(), ids=list(PLACEMENTS))
def test_a_host_submits_one_tensor_for_any_number_of_ranks(ranks: list[str]) -> None:
    """Guesses, packs, halves, and every reduction."""
    generator = np.random.default_rng(2)
    job = Job(4, ranks=ranks, window=4)
    for _ in range(3):
        floats = generator.normal(size=(4, 3000)).astype(np.float32)
        small = generator.normal(size=(4, 20)).astype(np.float32)
        wide = generator.integers(-(1 << 30), 1 << 30, (4, 9)).astype(np.int32)
        wide[0] -= wide.sum(0).clip(-(1 << 30), 1 << 30)
        bits = generator.integers(0, 1 << 31, (4, 30)).astype(np.int32)
        for rank, process in enumerate(job.processes):
            process.sum(floats[rank])
            process.sum(small[rank])
            process.sum(wide[rank])
            process.sum(bits[rank] % 1000)
            for reduction in EXPECTED:
                process.sum(bits[rank], reduction)
                process.barrier()
        job.run()
        for process in job.processes:
            results = [*process.tensors.values()][-9:]
            np.testing.assert_allclose(results[0], floats.sum(0), atol=1e-6)
            np.testing.assert_allclose(results[1], small.sum(0), atol=1e-6)
            np.testing.assert_array_equal(results[2], wide.sum(0))
            np.testing.assert_array_equal(results[3], (bits % 1000).sum(0))
            for result, combine in zip(results[4:], EXPECTED.values(), strict=True):
                np.testing.assert_array_equal(result, combine.reduce(bits))
    assert "guess" in job.kinds
    assert {"pack", "upper", "lower"} <= job.kinds


@pytest.mark.slow
@given(st.lists(st.lists(FLOATS, min_size=4, max_size=4), min_size=1, max_size=8))
def test_small_sums_do_not_depend_on_placement(
    columns: list[list[float]],
) -> None:
    rows = np.array(columns, np.float32).T.copy()
    alone, *others = (added(ranks, rows)[1] for ranks in PLACEMENTS.values())
    for other in others:
        np.testing.assert_array_equal(other, alone)


@pytest.mark.slow
@given(st.lists(st.lists(FLOATS, min_size=4, max_size=4), min_size=5, max_size=8))
def test_floats_of_one_host_are_added_as_floats(columns: list[list[float]]) -> None:
    """Within the bound that the module of local sums says, and infinite beyond float32 alone.

    The test's switches add exactly, so what is left is the error of the hosts.
    """
    rows = np.array(columns, np.float32).T.copy()
    ranks = PLACEMENTS["three and one"]
    # Of more than a window of fragments: no pack.
    job, total = added(ranks, rows, lanes=2, window=2)
    assert ("float32", len(columns)) in job.types
    exact = rows.astype(np.float64)
    partial = np.abs(exact[0]) + np.abs(exact[1]) + np.abs(exact[3])
    bound = 2 * 2.0**-24 * partial + 2.0**-24 * np.abs(exact.sum(0)) + 2.0**-140
    inside = np.abs(exact.sum(0)) + bound < np.finfo(np.float32).max
    assert (np.abs(total[inside] - exact.sum(0)[inside]) <= bound[inside]).all()
    beyond = np.abs(exact.sum(0)) - bound > 2.0**128
    assert np.isinf(total[beyond]).all()


def test_a_sum_of_a_host_beyond_float32_that_others_take_back() -> None:
    great = np.full(5, 3e38, np.float32)
    rows = [great, great, -great, -great]
    _, total = added(PLACEMENTS["two a host"], rows, lanes=2, window=2)
    assert total.tolist() == [0.0] * 5
    _, total = added(PLACEMENTS["two a host"], [great, great, -great, 0 * great], lanes=2, window=2)
    np.testing.assert_allclose(total, great, rtol=1e-6)
    _, total = added(PLACEMENTS["two a host"], [great] * 4, lanes=2, window=2)
    assert np.isposinf(total).all()


def test_errors_of_one_of_several_ranks_name_it_at_all() -> None:
    ranks = PLACEMENTS["two a host"]
    job = Job(4, ranks=ranks)
    for rank, process in enumerate(job.processes):
        process.sum(np.full(3, np.nan if rank == 1 else 1, np.float32))
        process.sum(np.ones(4 + (rank == 2), np.float32))
        process.sum(np.full(2, 1 << 30, np.int32))
        process.sum(np.full(2, rank, np.int32))
        if rank == 3:
            process.leave()
        else:
            process.barrier()
    job.run()
    for rank, process in enumerate(job.processes):
        assert process.ended[0].endswith("; 1: element 0 is nan")
        assert process.ended[1].endswith("; 2: sum of float32, 5 elements")
        assert "element 0: the sum is 4294967296, beyond int32" in process.ended[2]
        assert (process.ended[3], process.tensors[3].tolist()) == ("done", [6, 6])
        assert rank == 3 or process.ended[4].endswith("; 3: has left")


def test_a_host_waits_for_the_last_of_its_ranks() -> None:
    job = Job(3, ranks=["h1", "h2", "h2"])
    for process in job.processes[:2]:
        process.sum(np.ones(3, np.int32))
    job.run()
    assert job.summed == []
    job.processes[2].sum(np.ones(3, np.int32))
    job.run()
    assert [process.tensors[0].tolist() for process in job.processes] == [[3, 3, 3]] * 3


def test_integers_that_overflow_over_the_ranks_are_found_by_every_way() -> None:
    """Though those of two hosts would not; also where a host submits them with their check."""
    job = Job(4, ranks=PLACEMENTS["two a host"])
    for turn in range(3):
        for process in job.processes:
            process.sum(np.full(3, MOST // 3, np.int32))
        job.run()
        for process in job.processes:
            assert f"the sum is {MOST // 3 * 4}, beyond int32" in process.ended[turn]
