"""Float32 as integers: no sum wraps, and the error bound holds for every input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hopsum.host_agent.numbers import (
    NumbersError,
    dequantise,
    error_bound,
    exponent_codes,
    quantise,
    worker_bits,
)
from hopsum.protocol.wire import EXPONENT_BIAS
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


def all_reduce(tensors: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """The network's sum of tensors (workers, n), and the common exponent bytes."""
    workers = len(tensors)
    bits = worker_bits(workers)
    codes = np.maximum.reduce([exponent_codes(tensor, LANES, "t") for tensor in tensors])
    padded = np.zeros((workers, len(codes) * LANES), dtype=np.float32)
    padded[:, : tensors.shape[1]] = tensors
    total = np.zeros((len(codes), LANES), dtype=np.int64)
    for tensor in padded:
        fragments = tensor.reshape(len(codes), LANES)
        for row, values, code in zip(total, fragments, codes.tolist(), strict=True):
            row += quantise(values, code, bits)
    assert np.abs(total).max(initial=0) < 1 << 31
    rows = zip(total.astype(np.int32), codes.tolist(), strict=True)
    sums = [dequantise(row, code, bits) for row, code in rows]
    return np.concatenate([*sums, np.zeros(0, np.float32)])[: tensors.shape[1]], codes


def check_bound(tensors: NDArray[np.float32]) -> None:
    sums, codes = all_reduce(tensors)
    exact = tensors.astype(np.float64).sum(axis=0)
    bound = np.concatenate(
        [
            error_bound(int(code), len(tensors), exact[i * LANES : (i + 1) * LANES])
            for i, code in enumerate(codes)
        ]
    )
    inside = np.abs(exact) + bound < LARGEST
    error = np.abs(sums[inside].astype(np.float64) - exact[inside])
    assert (error <= bound[inside]).all()


@pytest.mark.slow
@settings(max_examples=examples(60, of=300))
@given(
    workers=st.sampled_from([1, 2, 3, 4, 5, 8, 127, 128, 129, 200, 256, 257, 512, 513, 1000]),
    values=st.lists(st.one_of(ANY_FLOAT, NEAR_THE_EDGE, DENORMAL), min_size=1, max_size=40),
    seed=st.integers(0, 1 << 32),
)
@example(workers=1000, values=[float(np.float32(1 - 2.0**-24))], seed=0)
@example(workers=1, values=[LARGEST, -LARGEST, 2.0**-149], seed=0)
def test_the_error_bound_holds(workers: int, values: list[float], seed: int) -> None:
    generator = np.random.default_rng(seed)
    pool = np.array(values, dtype=np.float32)
    check_bound(generator.choice(pool, size=(workers, len(pool))))


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 128, 129, 256, 257, 1000])
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("exponent", [-126, -100, -96, -95, 0, 30, 100, 117])
def test_all_workers_at_the_edge_do_not_wrap(workers: int, sign: int, exponent: int) -> None:
    edge = np.float32(sign * np.ldexp(1 - 2.0**-24, exponent))
    check_bound(np.full((workers, LANES), edge, dtype=np.float32))


def test_the_bound_is_reached_to_within_a_factor_of_two() -> None:
    # Halfway between two integers everywhere, with one value that fixes the exponent.
    workers = 8
    step = 2.0 ** (1 + 3 - 31)
    tensors = np.full((workers, LANES), step / 2 + step, dtype=np.float32)
    tensors[:, 0] = 1.0
    sums, codes = all_reduce(tensors)
    exact = tensors.astype(np.float64).sum(axis=0)
    error = np.abs(sums.astype(np.float64) - exact).max()
    bound = float(error_bound(int(codes[0]), workers, exact[1:2])[0])
    assert bound / 2 <= error <= bound


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
def test_nonfinite_values_are_named(value: float, index: int) -> None:
    tensor = np.ones(70, dtype=np.float32)
    tensor[index] = value
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


def test_sums_beyond_float32_become_infinite() -> None:
    tensors = np.full((4, LANES), LARGEST, dtype=np.float32)
    sums, _ = all_reduce(tensors)
    assert np.isposinf(sums).all()


def test_sums_near_the_top_of_float32_stay_finite() -> None:
    tensors = np.full((4, LANES), LARGEST / 8, dtype=np.float32)
    sums, _ = all_reduce(tensors)
    np.testing.assert_allclose(sums, LARGEST / 2, rtol=2.0**-24)
