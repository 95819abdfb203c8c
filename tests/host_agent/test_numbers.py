"""Floats as integers: no sum wraps, and the error bound holds for every input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hopsum.collectives.plan import MOST_NARROW_WORKERS
from hopsum.collectives.schedule import part
from hopsum.host_agent.digits import Digits, DigitsTraining
from hopsum.host_agent.elements import element_of
from hopsum.host_agent.numbers import (
    NumbersError,
    as_float32,
    dequantise,
    error_bound,
    exponent_codes,
    quantise,
    worker_bits,
)
from hopsum.protocol.wire import EXPONENT_BIAS, Width
from tests.support.search import examples

LANES = 32
LARGEST = float(np.finfo(np.float32).max)
ANY_FLOAT = st.floats(width=32, allow_nan=False, allow_infinity=False)
NEAR_THE_EDGE = st.builds(
    lambda exponent, below, sign: sign * float(np.ldexp(1 - below * 2.0**-24, exponent)),
    st.integers(-120, 127),
    st.integers(1, 3),
    st.sampled_from([-1, 1]),
)
DENORMAL = st.integers(-(1 << 23), 1 << 23).map(lambda n: n * 2.0**-149)


Tensors = NDArray[Any]
FLOATS = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.uint16)]
"""The last is bfloat16."""
LARGEST_OF = {"float32": LARGEST, "float16": 65504.0, "uint16": float(2.0**128 - 2.0**120)}
WIDTHS = [Width.WIDTH_32, Width.WIDTH_16]


def rounded(values: NDArray[Any], dtype: np.dtype[Any]) -> Tensors:
    """Numbers as a type of floats, rounded to nearest even; beyond its range, its greatest."""
    largest = LARGEST_OF[dtype.name]
    values = np.clip(values.astype(np.float64), -largest, largest)
    if dtype != np.uint16:
        return values.astype(dtype)
    unit = np.ldexp(1.0, np.maximum(np.frexp(values)[1] - 8, -133))
    single = (np.rint(values / unit) * unit).astype(np.float32)
    return (single.view(np.uint32) >> 16).astype(np.uint16)


def all_reduce(
    tensors: Tensors, width: Width = Width.WIDTH_32, lanes: int = LANES
) -> tuple[Tensors, NDArray[np.uint8]]:
    """The network's sum of tensors (workers, n), and the common exponent bytes."""
    workers, values = len(tensors), lanes * width.per_lane
    bits = worker_bits(workers)
    codes = np.maximum.reduce([exponent_codes(tensor, values, "t") for tensor in tensors])
    padded = np.zeros((workers, len(codes) * values), dtype=tensors.dtype)
    padded[:, : tensors.shape[1]] = tensors
    total = np.zeros((len(codes), values), dtype=np.int64)
    for tensor in padded:
        fragments = tensor.reshape(len(codes), values)
        for row, each, code in zip(total, fragments, codes.tolist(), strict=True):
            row += quantise(each, code, bits, width)
    assert np.abs(total).max(initial=0) < 1 << (width.bits - 1)
    rows = zip(total.astype(f"int{width.bits}"), codes.tolist(), strict=True)
    sums = [dequantise(row, code, bits, tensors.dtype) for row, code in rows]
    return np.concatenate([*sums, np.zeros(0, tensors.dtype)])[: tensors.shape[1]], codes


def check_bound(tensors: Tensors, width: Width = Width.WIDTH_32) -> None:
    sums, codes = all_reduce(tensors, width)
    element = element_of(tensors.dtype)
    assert element is not None
    exact = as_float32(tensors).astype(np.float64).sum(axis=0)
    values = LANES * width.per_lane
    bound = np.concatenate(
        [
            error_bound(
                int(code), len(tensors), exact[i * values : (i + 1) * values], element, width
            )
            for i, code in enumerate(codes)
        ]
    )
    inside = np.abs(exact) + bound < LARGEST_OF[tensors.dtype.name]
    error = np.abs(as_float32(sums)[inside].astype(np.float64) - exact[inside])
    assert (error <= bound[inside]).all()


@pytest.mark.slow
@settings(max_examples=examples(60, of=300))
@given(
    workers=st.sampled_from([1, 2, 3, 4, 5, 8, 127, 128, 129, 200, 256, 257, 512, 513, 1000]),
    values=st.lists(st.one_of(ANY_FLOAT, NEAR_THE_EDGE, DENORMAL), min_size=1, max_size=80),
    seed=st.integers(0, 1 << 32),
    dtype=st.sampled_from(FLOATS),
    width=st.sampled_from(WIDTHS),
)
@example(1000, [float(np.float32(1 - 2.0**-24))], 0, FLOATS[0], WIDTHS[0])
@example(1, [LARGEST, -LARGEST, 2.0**-149], 0, FLOATS[0], WIDTHS[0])
@example(5, [LARGEST, -LARGEST, 2.0**-149], 0, FLOATS[2], WIDTHS[1])
@example(3, [65504.0, 2.0**-24, 1 - 2.0**-11], 0, FLOATS[1], WIDTHS[1])
def test_the_error_bound_holds(
    workers: int, values: list[float], seed: int, dtype: np.dtype[Any], width: Width
) -> None:
    generator = np.random.default_rng(seed)
    pool = rounded(np.array(values), dtype)
    check_bound(generator.choice(pool, size=(workers, len(pool))), width)


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 128, 129, 256, 257, 1000])
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("exponent", [-126, -100, -96, -95, 0, 30, 100, 117])
@pytest.mark.parametrize("width", WIDTHS)
def test_all_workers_at_the_edge_do_not_wrap(
    workers: int, sign: int, exponent: int, width: Width
) -> None:
    edge = np.float32(sign * np.ldexp(1 - 2.0**-24, exponent))
    check_bound(np.full((workers, LANES), edge, dtype=np.float32), width)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_bound_is_reached_to_within_a_factor_of_two(width: Width) -> None:
    # Halfway between two integers everywhere, with one value that fixes the exponent.
    workers = 8
    step = 2.0 ** (1 + 3 - width.bits + 1)
    tensors = np.full((workers, LANES), step / 2 + step, dtype=np.float32)
    tensors[:, 0] = 1.0
    sums, codes = all_reduce(tensors, width)
    exact = tensors.astype(np.float64).sum(axis=0)
    error = np.abs(sums.astype(np.float64) - exact)[1:].max()
    bound = float(error_bound(int(codes[0]), workers, exact[1:2], width=width)[0])
    assert bound / 2 <= error <= bound


@pytest.mark.parametrize("dtype", FLOATS[1:])
@pytest.mark.parametrize("code", [1, 20, 104, 110, 127, 140, 143, 200, 254])
def test_all_sums_of_16_bits_are_rounded_once_to_the_nearest(
    dtype: np.dtype[Any], code: int
) -> None:
    bits = 3
    sums = np.arange(-(1 << 15), 1 << 15).astype(np.int16)
    exact = sums * np.ldexp(1.0, code - EXPONENT_BIAS + bits - 15)
    largest = LARGEST_OF[dtype.name]
    inside = np.abs(exact) <= largest
    found = as_float32(dequantise(sums, code, bits, dtype))
    nearest = as_float32(rounded(exact, dtype))
    np.testing.assert_array_equal(found[inside], nearest[inside])
    assert np.isinf(found[np.abs(exact) > largest * (1 + 2.0**-8)]).all()


@pytest.mark.parametrize("dtype", FLOATS[1:])
def test_all_values_of_16_bits_are_read_as_they_are(dtype: np.dtype[Any]) -> None:
    values = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    values = values[np.isfinite(as_float32(values))]
    for value in (values[:7], values[1000:40000]):
        [code] = exponent_codes(value, len(value), "t")
        assert code == exponent_codes(as_float32(value), len(value), "t")[0]
        wide = quantise(as_float32(value), int(code), 2)
        np.testing.assert_array_equal(quantise(value, int(code), 2), wide)
        narrow = quantise(as_float32(value), int(code), 2, Width.WIDTH_16)
        np.testing.assert_array_equal(quantise(value, int(code), 2, Width.WIDTH_16), narrow)


def ring_sum(tensors: NDArray[np.float32]) -> NDArray[np.float32]:
    """What a ring in bfloat16 makes of tensors (workers, n) of bfloat16: each sum is rounded."""
    total = tensors[0]
    for tensor in tensors[1:]:
        total = as_float32(rounded(total + tensor, FLOATS[2]))
    return total


def relative_error(sums: NDArray[np.float32], exact: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(sums - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize("workers", [2, 3, 8, 11, MOST_NARROW_WORKERS])
@pytest.mark.parametrize("kind", ["normal", "laplace", "digits"])
def test_sums_of_16_bits_are_at_least_as_exact_as_a_ring_in_bfloat16(
    workers: int, kind: str
) -> None:
    """Of as many workers as use 16 bits; the gradients are of every 8th step of a training."""
    generator = np.random.default_rng(workers)
    batches = [generator.standard_normal((workers, 1 << 13))]
    if kind == "laplace":
        batches = [generator.laplace(size=(workers, 1 << 13))]
    if kind == "digits":
        training, batches = DigitsTraining(seed=1, epochs=4), []
        parts = [part(0, Digits.BATCH, workers, worker) for worker in range(workers)]
        for step in range(40):
            gradients = np.array([training.gradient(*each) for each in parts])
            training.step(gradients.sum(axis=0))
            if step % 8 == 0:
                batches.append(gradients)
    for batch in batches:
        values = rounded(batch, FLOATS[2])
        exact = as_float32(values).astype(np.float64).sum(axis=0)
        sums, _ = all_reduce(values, Width.WIDTH_16, lanes=256)
        ours = relative_error(as_float32(sums), exact)
        # Two workers' sums are rounded once either way.
        assert ours <= relative_error(ring_sum(as_float32(values)), exact) * 1.01


def test_more_workers_would_be_less_exact_than_a_ring_in_bfloat16() -> None:
    """Where the greatest of a fragment's values is 16 times their root mean square."""
    generator = np.random.default_rng(1)
    workers = 4 * MOST_NARROW_WORKERS
    batch = generator.standard_normal((workers, 512))
    batch[0, 0] = 17.0
    values = rounded(batch, FLOATS[2])
    exact = as_float32(values).astype(np.float64).sum(axis=0)
    sums, _ = all_reduce(values, Width.WIDTH_16, lanes=256)
    ours = relative_error(as_float32(sums), exact)
    assert ours > relative_error(ring_sum(as_float32(values)), exact)


@given(st.lists(st.one_of(ANY_FLOAT, DENORMAL), min_size=1, max_size=3 * LANES))
def test_exponents_bound_their_fragments_tightly(values: list[float]) -> None:
    tensor = np.array(values, dtype=np.float32)
    codes = exponent_codes(tensor, LANES, "t")
    assert len(codes) == -(-len(values) // LANES)
    for i, code in enumerate(codes):
        peak = float(np.abs(tensor[i * LANES : (i + 1) * LANES].astype(np.float64)).max())
        exponent = int(np.clip(np.frexp(peak)[1], -127, 128)) if peak else -127
        assert int(code) == exponent + EXPONENT_BIAS


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("index", [0, 31, 32, 69])
@pytest.mark.parametrize("dtype", FLOATS)
def test_nonfinite_values_are_named(value: float, index: int, dtype: np.dtype[Any]) -> None:
    tensor = rounded(np.ones(70), dtype)
    bits = (np.array(value, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    tensor[index] = bits if dtype == np.uint16 else value
    with pytest.raises(NumbersError, match=f"layer1.weight: element {index} is {value}"):
        exponent_codes(tensor, LANES, "layer1.weight")


def test_the_first_of_several_is_named() -> None:
    tensor = np.ones(100, dtype=np.float32)
    tensor[[90, 40, 45]] = np.nan
    with pytest.raises(NumbersError, match="element 40 "):
        exponent_codes(tensor, LANES, "t")


def test_exponents_over_many_blocks() -> None:
    tensor = np.ones(256 * 300 + 5, dtype=np.float32)
    tensor[256 * 299 + 7] = 8.0
    tensor[-1] = 0.25
    codes = exponent_codes(tensor, 256, "t")
    assert codes[:299].tolist() == [128] * 299
    assert codes[299:].tolist() == [131, 128]


def test_empty_tensors_have_no_exponents() -> None:
    assert len(exponent_codes(np.zeros(0, dtype=np.float32), LANES, "t")) == 0


@pytest.mark.parametrize(("workers", "bits"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1000, 10)])
def test_worker_bits(workers: int, bits: int) -> None:
    assert worker_bits(workers) == bits


@pytest.mark.parametrize("workers", [0, 65536])
def test_impossible_worker_counts(workers: int) -> None:
    with pytest.raises(NumbersError, match="expected 1 to 65535"):
        worker_bits(workers)


@pytest.mark.parametrize("bits", [0, 1, 7, 8])
def test_values_beyond_the_exponent_wrap_no_sum(bits: int) -> None:
    """A process may change them after their exponent was read."""
    values = np.array([1e38, -1e38, np.inf, -np.inf, np.nan], np.float32)
    integers = quantise(values, 127, bits).astype(np.int64)
    assert (np.abs(integers) * 2**bits < 2**31 + 2**bits).all()


def test_sums_beyond_float32_become_infinite() -> None:
    tensors = np.full((4, LANES), LARGEST, dtype=np.float32)
    sums, _ = all_reduce(tensors)
    assert np.isposinf(sums).all()


def test_sums_near_the_top_of_float32_stay_finite() -> None:
    tensors = np.full((4, LANES), LARGEST / 8, dtype=np.float32)
    sums, _ = all_reduce(tensors)
    np.testing.assert_allclose(sums, LARGEST / 2, rtol=2.0**-24)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint16])
def test_tensors_may_be_larger_than_a_stack(dtype: type[np.generic]) -> None:
    one = 0x3F80 if dtype is np.uint16 else 1
    values = np.full(4_000_000, one, dtype)
    integers = quantise(values, 128, 1)
    assert (integers == 1 << 29).all()
    assert (dequantise(integers, 128, 1, values.dtype) == one).all()
