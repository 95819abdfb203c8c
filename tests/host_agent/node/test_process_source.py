"""The calls of processes: agreed on by all, summed, or refused at all, with names."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.host_agent.io.attendance import ProcessGone
from hopsum.host_agent.node import guesses
from hopsum.host_agent.node.calls import COPY, SUM_FLOAT, CallSpec
from hopsum.host_agent.node.guesses import CONFIRMED, CONFIRMED_BYTES, GUESSED_BYTES, SURE
from hopsum.host_agent.node.process_source import PACKED_ELEMENTS, ProcessSource
from hopsum.host_agent.node.rank_values import MOST
from hopsum.host_agent.numbers import error_bound, exponent_codes
from hopsum.host_agent.process_calls import ALL, PARTS, ROOT
from hopsum.protocol.wire import LANES_DEFAULT
from tests.support.process_job import EXPECTED, Job

CHECK = LANES_DEFAULT
"""Elements of a check of few workers."""


def test_sums_and_barriers_of_all() -> None:
    job = Job(3)
    for number, process in enumerate(job.processes):
        process.sum(np.full(5, 1.5 + number, np.float32))
        process.barrier()
        process.sum(np.arange(7, dtype=np.int32))
        process.sum(np.zeros(0, np.float32))
        process.leave()
    job.run()
    for process in job.processes:
        assert process.ended == dict.fromkeys(range(4), "done")
        assert process.tensors[0].tolist() == [7.5] * 5
        assert process.tensors[2].tolist() == [3 * each for each in range(7)]
    assert job.over == [True] * 3


def test_repeated_calls_are_submitted_with_their_check() -> None:
    """Three maxima again and again: from the second time on no first values wait for a check."""
    job = Job(2)
    for turn in range(3):
        for process in job.processes:
            for elements in (3, 4, 5):
                process.sum(np.full(elements, turn + 1, np.int32), "max")
        before = len(job.summed)
        job.run()
        assert sorted(job.summed[before:]) == [3, 4, 5, CHECK]
        for process in job.processes:
            assert [process.tensors[3 * turn + each].max() for each in range(3)] == [turn + 1] * 3
    # A guess that is wrong costs its length, and the values follow.
    for process in job.processes:
        process.sum(np.full(9, 2, np.int32), "max")
    before = len(job.summed)
    job.run()
    assert sorted(job.summed[before:]) == [3, 9, CHECK]
    assert [process.tensors[9].tolist() for process in job.processes] == [[2] * 9] * 2


@pytest.mark.parametrize("sizes", [(3, 3, 4), (3, 4, 3, 5), (3,) * 9 + (4,), (3, 4) * 12 + (5,)])
def test_a_guess_uses_as_many_past_calls_as_needed(sizes: Sequence[int]) -> None:
    """Layers of a model, some of them equal: one call before does not tell what comes next."""
    job = Job(2)

    def step(turn: int, *more: int) -> None:
        for elements in (*sizes, *more):
            calls = [
                process.sum(np.full(elements, turn, np.int32), "max") for process in job.processes
            ]
            job.run()
            for process, call in zip(job.processes, calls, strict=True):
                assert (process.tensors[call] == turn).all()

    for turn in range(3):
        step(turn)
    job.kinds.clear()
    job.summed.clear()
    with mock.patch.object(guesses, "SURE", 100):
        step(3)
    assert job.kinds == {"check", "guess"}
    assert sorted(job.summed) == sorted([*sizes, *[CHECK] * len(sizes)])


def test_an_exception_is_not_expected_again() -> None:
    """The loss that is averaged every ten steps does not follow the next step's gradients."""
    found = guesses.Guesses()
    step = [CallSpec(SUM_FLOAT, 300), CallSpec(SUM_FLOAT, 200)]
    loss = CallSpec(SUM_FLOAT, 1)
    for _ in range(3):
        for call in step:
            found.remember(call, 0)
    for call in (loss, *step):
        found.remember(call, 0)
    expected = found.next()
    assert expected is not None
    assert (expected.wanted, expected.times) == (step[0], 0)
    # Twice in a row it is the rule.
    for call in (loss, *step):
        found.remember(call, 0)
    expected = found.next()
    assert expected is not None
    assert expected.wanted == loss


@pytest.mark.parametrize(
    ("elements", "from_turn"), [(1 << 14, 1), (1 << 16, CONFIRMED), (1 << 18, 99)]
)
def test_longer_tensors_are_guessed_once_it_was_right_again(elements: int, from_turn: int) -> None:
    assert PACKED_ELEMENTS < 1 << 14 <= GUESSED_BYTES // 4 < 1 << 16 <= CONFIRMED_BYTES // 4
    job = Job(2)
    for turn in range(CONFIRMED + 2):
        for process in job.processes:
            process.barrier()
        job.run()
        job.kinds.clear()
        for process in job.processes:
            process.sum(np.full(elements, turn + 1, np.float32))
        job.run()
        assert job.kinds == {"check", "guess" if turn >= from_turn else "values"}
        for process in job.processes:
            assert (process.tensors[2 * turn + 1] == 2 * (turn + 1)).all()


def repeated(size: int, values: Any, reduction: str = "sum", **options: Any) -> Job:
    """A job whose next call is expected to be as the last ones, without a check."""
    job = Job(size, **options)
    for _ in range(SURE + 1):
        for process in job.processes:
            process.sum(values, reduction)
        job.run()
        assert "sure" not in job.kinds
    job.kinds.clear()
    job.summed.clear()
    return job


@pytest.mark.parametrize("reduction", ["sum", *EXPECTED])
@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_what_was_right_again_and_again_needs_no_check(dtype: Any, reduction: str) -> None:
    if dtype is np.float32 and reduction not in ("sum", "max", "min"):
        return
    ranks = ["h1", "h2", "h1", "h3"]
    job = repeated(4, np.full(5, 7, dtype), reduction, ranks=ranks)
    combine = EXPECTED.get(reduction, np.add)
    for turn in range(3):
        rows = [np.full(5, 6 - rank, dtype) for rank in range(4)]
        rows[turn][0] = 7
        calls = [p.sum(row, reduction) for p, row in zip(job.processes, rows, strict=True)]
        job.run()
        for process, call in zip(job.processes, calls, strict=True):
            assert process.ended[call] == "done"
            np.testing.assert_array_equal(process.tensors[call], combine.reduce(rows))
    assert job.kinds == {"sure"}
    assert job.summed == [5] * 3


@pytest.mark.parametrize("sets", [None, 2])
def test_barriers_that_were_expected_again_and_again_need_no_check(sets: int | None) -> None:
    options = {} if sets is None else {"sets": sets}
    job = Job(3, **options)
    for _ in range(SURE + 1):
        for process in job.processes:
            process.barrier()
        job.run()
    assert job.kinds == {"check"}
    job.kinds.clear()
    job.summed.clear()
    calls = [process.barrier() for process in job.processes[:2]]
    job.run()
    assert not any(call in p.ended for p, call in zip(job.processes, calls, strict=False))
    job.processes[2].barrier()
    job.run()
    assert [p.ended[calls[0]] for p in job.processes] == ["done"] * 3
    assert (job.kinds, job.summed) == ({"sure"}, [1])
    # One that makes another call instead is named.
    job.processes[0].sum(np.ones(4, np.float32))
    for process in job.processes[1:]:
        process.barrier()
    job.run()
    why = "the ranks make different calls; most call: barrier; 0: sum of float32, 4 elements"
    assert [process.ended[calls[0] + 1] for process in job.processes] == [why] * 3


@pytest.mark.parametrize("scale", [0.0, 0.25, 3.0, 1e30])
def test_integers_of_another_scale_than_expected_are_submitted_again(scale: float) -> None:
    """As a check and its values would give them, to the last bit."""
    generator = np.random.default_rng(3)
    job = repeated(2, np.ones(5, np.float32))
    rows = [(generator.normal(size=5) * scale).astype(np.float32) for _ in range(2)]
    alone = Job(2)
    for each in (job, alone):
        for process, row in zip(each.processes, rows, strict=True):
            process.sum(row)
        each.run()
    assert job.kinds == {"sure", "pack"}
    for process in job.processes:
        np.testing.assert_array_equal(process.tensors[SURE + 1], alone.processes[0].tensors[0])
    # The scale is expected from now on.
    job.kinds.clear()
    for process, row in zip(job.processes, rows, strict=True):
        process.sum(row)
    job.run()
    assert job.kinds == {"sure"}


def test_a_call_of_one_rank_is_named_where_another_was_sure_too() -> None:
    job = repeated(3, np.ones(4, np.float32))
    job.processes[0].sum(np.ones(4, np.float32))
    job.processes[1].barrier()
    job.processes[2].sum(np.ones(4000, np.float32))
    job.run()
    for process in job.processes:
        assert process.ended[SURE + 1] == (
            "the ranks make different calls; most call: sum of float32, 4 elements; "
            "1: barrier; 2: sum of float32, 4000 elements"
        )
    assert job.processes[0].tensors[SURE + 1].tolist() == [1] * 4
    for _ in range(2):
        job.kinds.clear()
        for process in job.processes:
            process.sum(np.ones(4, np.float32))
        job.run()
        assert job.kinds == {"check", "pack"}


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_several_calls_at_once_share_a_check_rather(dtype: Any) -> None:
    """Also where only one rank has made them all when it begins."""
    job = repeated(2, np.ones(4, dtype))
    for number, process in enumerate(job.processes):
        for _ in range(2 if number else 1):
            process.sum(np.ones(4, dtype))
    job.run()
    assert "check" in job.kinds
    job.processes[0].sum(np.ones(4, dtype))
    job.run()
    for process in job.processes:
        assert [process.tensors[SURE + each].tolist() for each in (1, 2)] == [[2] * 4] * 2


def test_nothing_is_sure_in_a_job_with_check_lanes() -> None:
    job = repeated(2, np.ones(4, np.int32), sums_only=True)
    for process in job.processes:
        process.sum(np.ones(4, np.int32))
    job.run()
    assert job.kinds == {"check", "guess"}


def test_small_tensors_share_fragments_and_keep_their_own_scales() -> None:
    generator = np.random.default_rng(1)
    job = Job(3)
    rows = [
        [(generator.normal(size=50) * scale).astype(np.float32) for scale in (1e-30, 1.0, 1e30, 0)]
        for _ in job.processes
    ]
    for process, mine in zip(job.processes, rows, strict=True):
        for values in mine:
            process.sum(values)
        process.sum(np.full(7, MOST // 4, np.int32))
        process.sum(np.full(7, MOST // 2, np.int32))
    job.run()
    # The check, the pack, and the halves of what may overflow.
    assert sorted(job.summed) == [7, 7, 207, CHECK // 12 * 12]
    for number, of_all in enumerate(zip(*rows, strict=True)):
        exact = np.sum(np.array(of_all, np.float64), axis=0)
        code = max(int(exponent_codes(each, 50, "")[0]) for each in of_all)
        bound = error_bound(code, 3, exact)
        for process in job.processes:
            assert (np.abs(process.tensors[number] - exact) <= bound).all()
            assert process.tensors[4].tolist() == [MOST // 4 * 3] * 7
            assert "beyond int32" in process.ended[5]


def test_a_tensor_of_more_than_a_window_has_its_scales_by_fragments() -> None:
    job = Job(2, lanes=32, window=2)
    for process in job.processes:
        process.sum(np.ones(64, np.float32))
        process.sum(np.ones(65, np.float32))
    job.run()
    assert sorted(job.types) == [("float32", 65), ("int32", 32), ("int32", 64)]


def test_calls_that_not_all_have_made_are_for_the_next_check() -> None:
    job = Job(2)
    for number, process in enumerate(job.processes):
        for _ in range(1 + number):
            process.sum(np.ones(3, np.float32))
    job.run()
    assert [process.ended for process in job.processes] == [{0: "done"}] * 2
    job.processes[0].sum(np.ones(3, np.float32))
    job.run()
    assert [process.ended for process in job.processes] == [{0: "done", 1: "done"}] * 2
    assert job.processes[0].tensors[1].tolist() == [2.0] * 3


def test_more_calls_than_a_check_has_room_for() -> None:
    job = Job(4, lanes=32)
    for process in job.processes:
        for number in range(5):
            process.sum(np.full(3, number, np.float32))
        process.leave()
    job.run()
    # Two of four workers with four words each.
    assert sorted(job.summed) == [3, 6, 6, 32, 32, 32]
    assert job.over == [True] * 4
    for process in job.processes:
        assert [tensor[0] for tensor in process.tensors.values()] == [0, 4, 8, 12, 16]


@pytest.mark.parametrize("turns", [1, 3, SURE + 3])
def test_a_value_that_is_not_finite_is_named_at_all(turns: int) -> None:
    job = Job(3)
    for turn in range(turns):
        for number, process in enumerate(job.processes):
            values = np.ones(4, np.float32)
            if number == 1 and turn == turns - 1:
                values[2] = np.nan
            process.sum(values)
        job.run()
    assert ("sure" in job.kinds) == (turns > SURE)
    for process in job.processes:
        assert process.ended.pop(turns - 1).endswith("1: element 2 is nan")
        assert set(process.ended.values()) <= {"done"}


def test_a_mismatched_call_is_named_and_the_next_one_works() -> None:
    job = Job(4)
    for number, process in enumerate(job.processes):
        if number == 2:
            process.barrier()
        else:
            process.sum(np.ones(5 if number == 3 else 4, np.float32))
        process.sum(np.ones(2, np.int32))
    job.run()
    for process in job.processes:
        assert process.ended[0] == (
            "the ranks make different calls; most call: sum of float32, 4 elements; "
            "2: barrier; 3: sum of float32, 5 elements"
        )
        assert process.ended[1] == "done"
        assert process.tensors[1].tolist() == [4, 4]
    assert job.processes[0].tensors[0].tolist() == [1.0] * 4


@pytest.mark.parametrize("sure", [1, SURE])
def test_int32_sums_overflow_only_where_they_do(sure: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guesses, "SURE", sure)
    job = Job(2)
    high, low = MOST, -MOST - 1
    for values in ([high, low, 5], [high, 1, 1], [low, low, 1]):
        job.processes[0].sum(np.array(values, np.int32))
        job.processes[1].sum(np.array([low, -low - 1, high][: len(values)], np.int32))
        job.run()
    for process in job.processes:
        assert process.ended[0].startswith("element 2: the sum is 2147483652, beyond int32")
        assert process.ended[2].startswith("element 0: the sum is -4294967296, beyond int32")
        assert process.ended[1].startswith("element 1: the sum is 2147483648, beyond int32")
    job.processes[0].sum(np.array([high, low, 1 << 16], np.int32))
    job.processes[1].sum(np.array([low, high, -1], np.int32))
    job.run()
    assert all(process.ended[3] == "done" for process in job.processes)
    assert job.processes[0].tensors[3].tolist() == [-1, -1, (1 << 16) - 1]
    assert ("sure" in job.kinds) == (sure == 1)


@pytest.mark.parametrize("reduction", EXPECTED)
def test_integers_are_reduced_in_any_way(reduction: str) -> None:
    edges = [0, -1, 1, MOST, -MOST - 1, 0x55555555, -2, 12345]
    rows = [np.roll(np.array(edges, np.int32), turn * 3) for turn in range(3)]
    job = Job(3)
    # From the second time on the values are submitted along with their check.
    for turn in range(3):
        for process, row in zip(job.processes, rows, strict=True):
            process.sum(row, reduction)
        job.run()
        for process in job.processes:
            assert process.ended[turn] == "done"
            expected = EXPECTED[reduction].reduce(rows)
            assert process.tensors[turn].tolist() == expected.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["max", "min"])
@given(st.lists(st.lists(st.floats(width=32, allow_nan=False), min_size=3, max_size=3), min_size=1))
def test_floats_have_their_order(reduction: str, columns: list[list[float]]) -> None:
    """Infinities, denormals and zeros of both signs too."""
    rows = np.array(columns, np.float32).T
    job = Job(3)
    for process, row in zip(job.processes, rows, strict=True):
        process.sum(np.ascontiguousarray(row), reduction)
    job.run()
    expected = EXPECTED[reduction].reduce(list(rows))
    for process in job.processes:
        assert process.ended[0] == "done"
        np.testing.assert_array_equal(process.tensors[0], expected)


def test_a_job_with_check_lanes_refuses_what_is_no_sum_again_and_again() -> None:
    job = Job(2, sums_only=True)
    for turn in range(3):
        for process in job.processes:
            process.sum(np.ones(2, np.int32), "max")
            process.sum(np.ones(2, np.int32))
        job.run()
        for process in job.processes:
            assert "max of int32, 2 elements: the job has check lanes" in process.ended[2 * turn]
            assert process.ended[2 * turn + 1] == "done"
            assert process.tensors[2 * turn + 1].tolist() == [2, 2]


def test_zeros_are_ordered_by_their_signs() -> None:
    job = Job(2)
    for process, zero in zip(job.processes, (-0.0, 0.0), strict=True):
        process.sum(np.full(2, zero, np.float32), "max")
        process.sum(np.full(2, zero, np.float32), "min")
    job.run()
    for process in job.processes:
        assert np.signbit(process.tensors[0]).tolist() == [False, False]
        assert np.signbit(process.tensors[1]).tolist() == [True, True]


def test_a_nan_has_no_place_in_an_order_and_other_reductions_do_not_mix() -> None:
    job = Job(2)
    job.processes[0].sum(np.full(2, np.nan, np.float32), "max")
    job.processes[1].sum(np.ones(2, np.float32), "max")
    for number, process in enumerate(job.processes):
        process.sum(np.ones(2, np.int32), ("and", "or")[number])
        process.sum(np.ones(2, np.float32) if number else np.ones(2, np.int32), "max")
    job.run()
    for process in job.processes:
        assert process.ended[0].startswith("a NaN cannot be compared")
        assert process.ended[0].endswith("0: element 0 is nan")
        assert process.ended[1].endswith(
            "most call: and of int32, 2 elements; 1: or of int32, 2 elements"
        )
        assert process.ended[2].endswith(
            "most call: max of int32, 2 elements; 1: max of float32, 2 elements"
        )


def test_calls_after_another_has_left_are_refused_until_all_have() -> None:
    job = Job(2)
    job.processes[1].leave()
    for _ in range(2):
        job.processes[0].sum(np.ones(3, np.float32))
    job.run()
    assert (
        list(job.processes[0].ended.values())
        == ["the ranks make different calls; most call: sum of float32, 3 elements; 1: has left"]
        * 2
    )
    assert job.over == [False, False]
    job.processes[0].leave()
    job.run()
    assert job.over == [True, True]


CALLS = st.one_of(
    st.just("barrier"),
    st.tuples(
        st.sampled_from(["f", "i", "max", "xor"]),
        st.integers(0, 4).map((60).__mul__) | st.just(2400),
        st.sampled_from([1, 3, MOST // 2]),
        st.sampled_from([ALL, PARTS, ROOT, ROOT + 1]),
    ),
    st.tuples(
        st.just("copy"),
        st.integers(0, 4).map((60).__mul__),
        st.integers(1, 3),
        st.sampled_from([PARTS, ROOT, ROOT + 1]),
    ),
)


@pytest.mark.slow
@given(
    st.lists(CALLS, max_size=12),
    st.lists(st.sampled_from(["h1", "h2", "h3"]), min_size=2, max_size=5),
    st.sampled_from([0, 1, 2]),
    st.integers(0, 1 << 32),
    st.sampled_from([1, 2, SURE]),
    st.data(),
)
def test_any_calls_in_any_order(
    calls: list[Any], ranks: list[str], sets: int, seed: int, sure: int, data: st.DataObject
) -> None:
    """All sources submit the same in spite of any one process; equal calls are summed."""
    with mock.patch.object(guesses, "SURE", sure):
        _call_in_any_order(calls, Job(len(ranks), Random(seed), ranks, sets), data)


def _call_in_any_order(calls: list[Any], job: Job, data: st.DataObject) -> None:
    size = len(job.processes)
    odd = data.draw(st.dictionaries(st.integers(0, 11), CALLS, max_size=3))
    repeated_calls = calls * 3
    for number, process in enumerate(job.processes):
        for place, call in enumerate(repeated_calls):
            mine = odd.get(place, call) if number == 0 else call
            if mine == "barrier":
                process.barrier()
            elif mine[0] == "copy":
                process.copy(np.full(mine[1], mine[2] + number, np.int32), mine[3])
            else:
                kind, elements, value, target = mine
                dtype = np.float32 if kind == "f" else np.int32
                reduction = "sum" if len(kind) == 1 else kind
                process.sum(np.full(elements, value, dtype), reduction, target)
            if job.random.random() < 0.3:
                job.run()
        process.leave()
    job.run()
    assert all(job.over)
    for place, call in enumerate(repeated_calls):
        ends = {process.ended[place] for process in job.processes}
        assert len(ends) == 1, ends
        if odd.get(place, call) == call and (call == "barrier" or call[0] in ("f", "copy")):
            assert ends == {"done"}
        if call == "barrier" or ends != {"done"}:
            continue
        first = odd.get(place, call)
        kind, elements, value, target = call
        share = CallSpec(COPY, elements, target).share
        total = np.full(elements, first[2] + (size - 1) * float(value))
        if kind == "copy":
            for rank in range(size):
                start, stop = share(rank, size)
                total[start:stop] = first[2] if rank == 0 else value + rank
        elif len(kind) > 1:
            total[:] = EXPECTED[kind].reduce([first[2], *[value] * (size - 1)])
        for rank, process in enumerate(job.processes):
            start, stop = (0, elements) if kind == "copy" else share(rank, size)
            found = process.tensors[place][start:stop]
            np.testing.assert_allclose(found, total[start:stop], rtol=1e-6)


@pytest.mark.parametrize("absent", [(), (2,)])
def test_a_job_that_processes_do_not_attend_ends(absent: Sequence[int]) -> None:
    """It would hold slots of the switches for ever."""
    attendance = mock.Mock(absent=lambda: absent, take=lambda: [])
    source = ProcessSource(attendance, "h1", ["h1", "h2", "h1"], attend_seconds=60.0)
    assert source.deadline is None
    source.start(5.0)
    assert source.deadline == 65.0
    source.tick(64.0)
    if absent:
        with pytest.raises(ProcessGone, match=r"h1 attended the job as rank 2 within 60 s"):
            source.tick(65.0)
    else:
        source.tick(65.0)
    assert source.deadline is None
