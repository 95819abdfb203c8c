"""Tensors whose values take 16 or 8 bits in packets: sums, tails, wrapping, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hopsum.collectives.plan import (
    EXPONENT_FRAGMENTS,
    MOST_NARROW_WORKERS,
    JobPlan,
    Results,
    tensor_ranges,
)
from hopsum.host_agent.codec import REDUCTION_AT
from hopsum.host_agent.elements import element_of, widths_of
from hopsum.host_agent.failure import CallError, JobFailed
from hopsum.host_agent.numbers import as_float32
from hopsum.host_agent.stream import WorkerOptions
from hopsum.host_agent.worker import Worker
from hopsum.host_agent.workload import SwitchBounds
from hopsum.protocol.wire import Flag, Reduction, Width
from tests.host_agent.test_numbers import FLOATS, rounded
from tests.support.protocol_world import (
    LANES,
    Faults,
    World,
    result,
    seen,
    star_plan,
)
from tests.support.search import examples

W16, W8 = Width.WIDTH_16, Width.WIDTH_8
SMALL = [np.dtype(np.int8), np.dtype(np.uint8)]
OPTIONS = WorkerOptions(initial_timeout=0.02, min_timeout=0.005, max_timeout=0.1, deadline=1e6)


def world_of(workers: int, seed: int = 0, **changes: Any) -> World:
    """Workers at a switch that sums nothing, whose links lose and reorder some frames."""
    plan, network = star_plan(workers, **changes)
    members = [Worker(plan, w, network, OPTIONS) for w in range(workers)]
    faults = Faults(loss=0.05, duplication=0.05, spread=0.002) if seed else Faults()
    return World(network, plan, members, seed, faults)


def sums_of(world: World, tensors: list[NDArray[Any]], **options: Any) -> list[NDArray[Any]]:
    """Each worker's result."""
    pairs = zip(world.workers, tensors, strict=True)
    calls = [worker.submit(tensor, world.now, **options) for worker, tensor in pairs]
    world.run()
    results = [w.result(call) for w, call in zip(world.workers, calls, strict=True)]
    found = [each for each in results if each is not None]
    assert len(found) == len(world.workers)
    return found


LENGTHS = st.one_of(st.integers(0, 9), st.integers(0, 40 * LANES))


@pytest.mark.slow
@settings(max_examples=examples(20, of=400), derandomize=True)
@given(
    dtype=st.sampled_from(SMALL),
    workers=st.integers(1, 4),
    length=LENGTHS,
    results=st.sampled_from(Results),
    seed=st.integers(0, 1 << 32),
)
def test_sums_of_8_bits_are_those_of_numpy_modulo_256(
    dtype: np.dtype[Any], workers: int, length: int, results: Results, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    info = np.iinfo(dtype)
    tensors = [generator.integers(info.min, info.max + 1, length, dtype) for _ in range(workers)]
    world = world_of(workers, seed, results=results)
    for total in sums_of(world, tensors):
        np.testing.assert_array_equal(total, np.sum(tensors, axis=0, dtype=dtype))
        assert total.dtype == dtype


@pytest.mark.slow
@settings(max_examples=examples(20, of=400), derandomize=True)
@given(
    reduction=st.sampled_from([Reduction.SUM, Reduction.MAX, Reduction.AND, Reduction.XOR]),
    dtype=st.sampled_from([np.dtype(np.int16), np.dtype(np.int8)]),
    workers=st.integers(1, 4),
    length=LENGTHS,
    seed=st.integers(0, 1 << 32),
)
def test_integers_are_combined_exactly(
    reduction: Reduction, dtype: np.dtype[Any], workers: int, length: int, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    most = 1 << (8 * dtype.itemsize - 1)
    if reduction is Reduction.SUM:
        most //= 4
    tensors = [generator.integers(-most, most, length).astype(dtype) for _ in range(workers)]
    combine = {
        Reduction.SUM: np.add,
        Reduction.MAX: np.maximum,
        Reduction.AND: np.bitwise_and,
        Reduction.XOR: np.bitwise_xor,
    }[reduction]
    for total in sums_of(world_of(workers, seed), tensors, reduction=reduction):
        np.testing.assert_array_equal(total, combine.reduce(tensors))


@pytest.mark.slow
@settings(max_examples=examples(20, of=400), derandomize=True)
@given(
    dtype=st.sampled_from(FLOATS),
    workers=st.integers(1, 4),
    length=LENGTHS,
    scale=st.sampled_from([2.0**-30, 2.0**-10, 1.0, 2.0**10]),
    width=st.sampled_from([Width.WIDTH_32, W16]),
    window=st.sampled_from([2, 64]),
    seed=st.integers(0, 1 << 32),
)
def test_floats_keep_their_bound_and_agree_to_the_bit(
    dtype: np.dtype[Any],
    workers: int,
    length: int,
    scale: float,
    width: Width,
    window: int,
    seed: int,
) -> None:
    """Contributions may arrive in any order."""
    generator = np.random.default_rng(seed)
    shape = (workers, length)
    spread = np.exp(generator.normal(0, 3, shape))
    tensors = rounded(generator.standard_normal(shape) * spread * scale, dtype)
    world = world_of(workers, seed, window=window)
    sums = sums_of(world, list(tensors), width=width)
    exact = as_float32(tensors).astype(np.float64).sum(axis=0)
    element = element_of(dtype)
    assert element is not None
    bounds = SwitchBounds(
        world.plan, tensor_ranges(world.plan, length, width), element=element, width=width
    )
    for tensor in tensors:
        bounds.take(tensor)
    bound = bounds.bounds(exact)
    calm = sums_of(world_of(workers, window=window), list(tensors), width=width)
    for total in sums:
        assert total.dtype == dtype
        np.testing.assert_array_equal(total, calm[0])
        error = np.abs(as_float32(total).astype(np.float64) - exact)
        overflown = np.isinf(as_float32(total)) & (np.abs(exact) + bound > 65504)
        assert ((error <= bound) | overflown).all()


@pytest.mark.parametrize("dtype", FLOATS[1:])
def test_narrow_sums_of_float32_rounded_are_those_of_narrow_types(dtype: np.dtype[Any]) -> None:
    """So a process may share float32, and round the result itself."""
    generator = np.random.default_rng(1)
    tensors = rounded(generator.standard_normal((3, 1000)), dtype)
    [native, *_] = sums_of(world_of(3), list(tensors))
    singles = [as_float32(tensor) for tensor in tensors]
    [single, *_] = sums_of(world_of(3), singles, width=W16)
    np.testing.assert_array_equal(rounded(single, dtype), native)


def alone(**changes: Any) -> tuple[Worker, JobPlan, Any]:
    plan, network = star_plan(1, **changes)
    return Worker(plan, 0, network, OPTIONS), plan, network


@pytest.mark.parametrize(
    ("tensor", "width", "byte", "lanes"),
    [
        (np.array([1, -2, 3], np.int16), None, 0x01, (0x0001FFFE, 0x00030000, 0)),
        (np.array([1, -2, 3, 4, 5], np.int8), None, 0x02, (0x01FE0304, 0x05000000, 0)),
        (np.array([1, 254, 3], np.uint8), W8, 0x02, (0x01FE0300, 0, 0)),
    ],
)
def test_values_are_packed_in_order_and_tails_are_zero(
    tensor: NDArray[Any], width: Width | None, byte: int, lanes: tuple[int, ...]
) -> None:
    worker, _, _ = alone()
    worker.submit(tensor, 0.0, width=width)
    [batch] = worker.take_output()
    assert batch[0, REDUCTION_AT] == byte
    assert seen([batch])[0].lanes[:3] == lanes


@pytest.mark.parametrize("reduction", [Reduction.AND, Reduction.XOR])
def test_words_have_no_width(reduction: Reduction) -> None:
    worker, _, _ = alone()
    worker.submit(np.array([1, -2, 3], np.int16), 0.0, reduction=reduction)
    [batch] = worker.take_output()
    assert batch[0, REDUCTION_AT] == reduction << 4
    assert seen([batch])[0].lanes[:2] == (0x0001FFFE, 0x00030000)


def test_fragments_of_the_first_window_share_exponents_in_groups() -> None:
    """Of 16 bits; those of 32 share one."""
    window, groups = 64, 64 // EXPONENT_FRAGMENTS
    for width, count in ((W16, groups), (Width.WIDTH_32, 1)):
        values = LANES * width.per_lane
        tensor = np.repeat(2.0 ** -np.arange(window), values).astype(np.float32)
        worker, plan, network = alone(window=window)
        worker.submit(tensor, 0.0, width=width)
        sent = seen(worker.take_output())
        assert [(p.fragment, p.lanes) for p in sent] == [(n, ()) for n in range(count)]
        expected = [128 - EXPONENT_FRAGMENTS * n for n in range(count)]
        assert [p.exponent for p in sent] == expected
        for p in reversed(sent[1:]):
            fields = {"exponent": p.exponent, "reduction": Reduction.NONE}
            worker.receive(result(plan, network, p.fragment, 0, **fields), 0.0)
        # Data waits for all of them.
        assert worker.take_output() == []
        fields = {"exponent": sent[0].exponent, "reduction": Reduction.NONE}
        worker.receive(result(plan, network, 0, 0, **fields), 0.0)
        data = seen(worker.take_output())
        assert [p.fragment for p in data] == list(range(count, count + window))
        if width is W16:
            # The greatest value of a group takes half of the range, each next one half of that.
            first = [p.value >> 16 for p in data]
            assert first == [(1 << 14) >> n % EXPONENT_FRAGMENTS for n in range(window)]


def test_wrapped_sums_of_16_bits_fail_the_job_and_of_8_do_not() -> None:
    for dtype, fails in ((np.int16, True), (np.int8, False)):
        world = world_of(2)
        tensors = [np.full(5, np.iinfo(dtype).max, dtype)] * 2
        if fails:
            with pytest.raises(JobFailed, match="wrapped around"):
                sums_of(world, tensors)
        else:
            assert sums_of(world, tensors)[0].tolist() == [-2] * 5


def test_wrapped_sums_of_8_bits_are_taken_into_account_on_their_link() -> None:
    """Losses among them are found by their numbers, as among others."""
    worker, plan, network = alone(window=8)
    worker.submit(np.full(8 * 4 * LANES, 1, np.int8), 0.0)
    worker.take_output()
    numbers = {"flags": int(Flag.OVERFLOW | Flag.SEQUENCED), "width": W8}
    for number in (0, 1, 3):
        worker.receive(result(plan, network, number, 0, sequence=number, **numbers), 0.1)
    assert worker.statistics.accepted == 3
    assert worker.statistics.requests == 1


@pytest.mark.parametrize(
    ("workers", "width"), [(MOST_NARROW_WORKERS, W16), (MOST_NARROW_WORKERS + 1, Width.WIDTH_32)]
)
@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_of_too_many_workers_take_32_bits(
    dtype: np.dtype[Any], workers: int, width: Width
) -> None:
    worker, plan, network = alone()
    worker = Worker(plan, 0, network, WorkerOptions(scale_workers=workers))
    values = LANES * width.per_lane
    worker.submit(np.ones(values + 1, dtype), 0.0, width=W16)
    [prologue] = seen(worker.take_output())
    fields = {"exponent": prologue.exponent, "reduction": Reduction.NONE}
    worker.receive(result(plan, network, 0, 0, **fields), 0.0)
    [batch] = worker.take_output()
    assert batch[:, REDUCTION_AT].tolist() == [width, width]


@pytest.mark.parametrize(
    ("tensor", "options", "message"),
    [
        (np.zeros(3, np.int32), {"width": W16}, "int32 in 16 bits; expected 32"),
        (np.zeros(3, np.float32), {"width": W8}, "float32 in 8 bits; expected 32 or 16"),
        (np.zeros(3, np.uint8), {"reduction": Reduction.MAX}, "expected int8 in the same order"),
        (np.zeros(3, np.uint16), {"reduction": Reduction.MAX}, "floats by MAX"),
        (np.zeros(3, np.int64), {}, "type int64"),
    ],
)
def test_what_has_no_such_width_or_reduction_is_refused(
    tensor: NDArray[Any], options: dict[str, Any], message: str
) -> None:
    worker, _, _ = alone()
    with pytest.raises(CallError, match=message):
        worker.submit(tensor, 0.0, **options)


def test_all_types_have_a_usual_width() -> None:
    for dtype in (*FLOATS, *SMALL, np.dtype(np.int16), np.dtype(np.int32)):
        element = element_of(dtype)
        assert element is not None
        usual = 32 if dtype.itemsize == 4 else 8 * dtype.itemsize
        assert widths_of(element)[0].bits == usual
