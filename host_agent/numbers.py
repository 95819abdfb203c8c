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

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.protocol.errors import InputError
from hopsum.protocol.wire import EXPONENT_BIAS, MAX_WORKERS

_MAGNITUDE = np.int32(0x7FFFFFFF)
_INFINITY = 0x7F800000
_HALF_LEAST_NORMAL = 0x00400000
"""Bits of 2^-127: below it the exponent byte is 0."""
_LEAST_FAST_CODE = 32
"""From this exponent byte on, all scale factors of any job are normal float32 numbers; up to
255 - bits no sum leaves float32's range. Other fragments are converted in float64."""
_BLOCK = 1 << 14
"""Values processed together: 64 KB stay in a core's second-level cache."""


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
    rows = max(1, _BLOCK // lanes)
    full = len(values) // lanes
    whole = values[: full * lanes].view(np.int32).reshape(full, lanes)
    peaks = np.empty(-(-len(values) // lanes), dtype=np.int32)
    for start in range(0, full, rows):
        block = whole[start : start + rows] & _MAGNITUDE
        np.maximum.reduce(block, axis=1, out=peaks[start : start + len(block)])
    if full < len(peaks):
        peaks[full] = np.max(values[full * lanes :].view(np.int32) & _MAGNITUDE)
    if len(peaks) and np.max(peaks) >= _INFINITY:
        row = int(np.argmax(peaks >= _INFINITY))
        fragment = values[row * lanes : (row + 1) * lanes]
        index = row * lanes + int(np.argmax(~np.isfinite(fragment)))
        raise NumbersError(
            f"{name}: element {first + index} is {values[index]}; only finite values can be summed "
            f"(look for a diverged gradient, or clip it before the all-reduce)"
        )
    codes: NDArray[np.uint8] = ((peaks >> 23) + (peaks >= _HALF_LEAST_NORMAL)).astype(np.uint8)
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


def quantise(rows: NDArray[np.float32], codes: NDArray[np.uint8], bits: int) -> NDArray[np.int32]:
    """Scale fragments (n, lanes) by their common exponent bytes (n,) to integers (n, lanes).

    `bits`: `worker_bits` of the job. Every value must lie within its row's exponent.
    """
    step, up, _, most = factors(bits)
    scaled = rows * up[codes][:, None]
    np.rint(scaled, out=scaled)
    if most:
        limit = np.float32(most)
        np.minimum(scaled, limit, out=scaled)
        np.maximum(scaled, -limit, out=scaled)
    quantised = scaled.astype(np.int32)
    special = (codes < _LEAST_FAST_CODE) | (codes >= 255 - bits)
    if np.count_nonzero(special):
        top = 2 ** (31 - bits) - 1
        exact = np.rint(rows[special].astype(np.float64) / step[codes[special]][:, None])
        quantised[special] = np.clip(exact, -top, top).astype(np.int32)
    return quantised


def dequantise(sums: NDArray[np.int32], codes: NDArray[np.uint8], bits: int) -> NDArray[np.float32]:
    """Turn integer sums (n, lanes) back into float32 with the exponent bytes they were made with.

    `sums` may be big-endian. A sum beyond float32's range becomes infinite.
    """
    step, _, down, _ = factors(bits)
    values = sums.astype(np.float32)
    values *= down[codes][:, None]
    special = (codes < _LEAST_FAST_CODE) | (codes >= 255 - bits)
    if np.count_nonzero(special):
        exact = sums[special].astype(np.float64) * step[codes[special]][:, None]
        with np.errstate(over="ignore"):
            values[special] = exact
    return values


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
