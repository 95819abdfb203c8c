"""Float32 tensors as 32-bit integers that switches can add, and back.

A fragment is scaled by a power of two that all workers share. With e such that every |x| < 2^e in
the fragments of all N workers, and s = ceil(log2 N), the integers are

    q = clip(rint(x * 2^(31 - s - e)), -M, M)        M = 2^(31 - s) - 1

so that N of them add up to at most N * M < 2^31: no sum of a job can wrap. The result is
Q * 2^(e + s - 31), rounded to float32, with Q the integer sum. The scale depends on e and on the
job's worker count alone, not on how much of a sum a packet holds.

Error of a lane against the exact sum S of the float32 inputs, with step = 2^(e + s - 31):

- `rint` moves an input by at most step/2. The clip acts only where rint(x / step) = M + 1. A
  float32 below 2^e is at most 2^e - 2^(e-24), so this happens only from s = 8 on, and moves an
  input by at most (1 - 2^(7-s)) * step in all: step/2 for s = 8 (N <= 256), below one step beyond.
- int32 -> float32 rounds by at most 2^-24 * |Q * step|, or 2^-150 where the result is denormal,
  and |Q * step| <= |S| + N * step.

So |result - S| <= N * c * step * (1 + 2^-24) + 2^-24 * |S| + 2^-150, with c = 1/2 for N <= 256 and
1 for more: DESIGN's N * 2^(e + s - 31) + 2^-24 * |S| or better (`error_bound`). It holds as long as
the sum plus this bound is within float32; a sum beyond its range becomes infinite, as in float32.

On the wire e travels as one byte, clip(e, -127, 128) + 127; 0 also stands for a fragment of zeros.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.host_agent.datapath.library import ScaleFactors, library
from hopsum.protocol.errors import InputError
from hopsum.protocol.wire import EXPONENT_BIAS, MAX_WORKERS

_ALL_FINITE = -1
"""`exponent_codes` of numbers.h: every value is finite."""
_LEAST_FAST_CODE = 32
"""From this exponent byte on, all scale factors of any job are normal float32 numbers; up to
255 - bits no sum leaves float32's range. Other fragments are converted in float64."""


class NumbersError(InputError):
    """A tensor that cannot be summed; the message names it and the element."""


def worker_bits(workers: int) -> int:
    """Return ceil(log2 workers): the bits of headroom for a sum over these workers."""
    if not 1 <= workers <= MAX_WORKERS:
        raise NumbersError(f"{workers} workers: expected 1 to {MAX_WORKERS}")
    return (workers - 1).bit_length()


def exponent_codes(
    values: NDArray[np.float32], lanes: int, name: str, first: int = 0
) -> NDArray[np.uint8]:
    """Return the exponent byte of each fragment of `lanes` values of a flat tensor, (ceil(n /
    lanes),).

    Raises NumbersError, naming `name` and the element, at the first NaN or infinity; elements are
    counted from `first`.
    """
    values = np.ascontiguousarray(values)
    codes = np.empty(-(-len(values) // lanes), dtype=np.uint8)
    row = library().exponent_codes(values.ctypes.data, len(values), lanes, codes.ctypes.data)
    if row != _ALL_FINITE:
        fragment = values[row * lanes : (row + 1) * lanes]
        index = row * lanes + int(np.argmax(~np.isfinite(fragment)))
        raise NumbersError(
            f"{name}: element {first + index} is {values[index]}; only finite values can be summed "
            f"(look for a diverged gradient, or clip it before the all-reduce)"
        )
    return codes


class Factors(NamedTuple):
    """Scale factors of a job, by exponent byte: shapes (256,).

    Special are bytes whose fragments are converted in float64.
    """

    step: NDArray[np.float64]
    """The value of an integer 1."""
    up: NDArray[np.float32]
    """1 / step; 0 for special bytes."""
    down: NDArray[np.float32]
    """step; 0 for special bytes."""
    limit: int
    """M, to which integers must be clipped; 0: rounding cannot exceed it."""


@lru_cache(maxsize=32)
def factors(bits: int) -> Factors:
    """Return the factors of a job with these `worker_bits`."""
    exponents = np.arange(256) - EXPONENT_BIAS + bits - 31
    step = np.ldexp(1.0, exponents)
    fast = (np.arange(256) >= _LEAST_FAST_CODE) & (np.arange(256) < 255 - bits)
    up = np.where(fast, 1.0 / step, 0.0).astype(np.float32)
    down = np.where(fast, step, 0.0).astype(np.float32)
    return Factors(step, up, down, 2 ** (31 - bits) - 1 if bits > 7 else 0)


@lru_cache(maxsize=32)
def c_factors(bits: int) -> ScaleFactors:
    """Return the factors of a job with these `worker_bits` for C (numbers.h)."""
    made = factors(bits)
    state = ScaleFactors(
        up=made.up.ctypes.data,
        down=made.down.ctypes.data,
        step=made.step.ctypes.data,
        limit=made.limit,
        bits=bits,
    )
    state.arrays = made  # as long as their addresses are in use
    return state


def quantise(values: NDArray[np.float32], code: int, bits: int) -> NDArray[np.int32]:
    """Scale values (n,) by an exponent byte to integers (n,).

    `bits`: `worker_bits` of the job. Every value must lie within the exponent.
    """
    values = np.ascontiguousarray(values)
    made = np.empty(len(values), np.int32)
    at = ctypes.addressof(c_factors(bits))
    library().quantise_values(at, values.ctypes.data, len(values), code, made.ctypes.data)
    return made


def dequantise(sums: NDArray[np.int32], code: int, bits: int) -> NDArray[np.float32]:
    """Turn integer sums (n,) back into float32 with the exponent byte they were made with.

    A sum beyond float32's range becomes infinite.
    """
    sums = np.ascontiguousarray(sums, dtype=np.int32)
    made = np.empty(len(sums), np.float32)
    at = ctypes.addressof(c_factors(bits))
    library().dequantise_values(at, sums.ctypes.data, len(sums), code, made.ctypes.data)
    return made


def error_bound(code: int, workers: int, sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the largest possible |result - sum| of lanes with exact sums `sums` (module
    docstring).

    `code`: the exponent byte of the fragment, common to all workers.
    """
    bits = worker_bits(workers)
    step = float(factors(bits).step[code])
    per_worker = step / 2 if workers <= 256 else step
    bound: NDArray[np.float64] = (
        workers * per_worker * (1 + 2.0**-24) + 2.0**-24 * np.abs(sums) + 2.0**-150
    )
    return bound
