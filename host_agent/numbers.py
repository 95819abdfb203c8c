"""Floats as integers that switches can add, and back.

A fragment is scaled by a power of two that all workers share. With e such that every |x| < 2^e in
the fragments of all N workers, s = ceil(log2 N), and integers of w bits (32 or 16), these are

    q = clip(rint(x * 2^(w - 1 - s - e)), -M, M)        M = 2^(w - 1 - s) - 1

so that N of them add up to at most N * M < 2^(w - 1): no sum of a job can wrap. The result is
Q * 2^(e + s - w + 1), rounded to the type of the inputs, with Q the integer sum. The scale depends
on e and on the job's worker count alone, not on how much of a sum a packet holds.

Error of an element against the exact sum S of the inputs, with step = 2^(e + s - w + 1) and a type
with p bits of precision (float32: 24, float16: 11, bfloat16: 8):

- `rint` moves an input by at most step/2. The clip acts only where rint(x / step) = M + 1. An input
  below 2^e is at most 2^e - 2^(e - p), which is M + 1 - 2^(w - 1 - s - p) steps, so `rint` and clip
  together move it by at most c = max(1/2, 1 - 2^(w - 1 - s - p)) steps: 1/2 for float32 in 32 bits
  and N <= 256, and for bfloat16 in 16 bits and N <= 256; less than 1 in all other cases.
- The result is rounded by at most 2^-p * |Q * step|, or half of the least denormal, and
  |Q * step| <= |S| + N * c * step. Sums of 16 bits are exact in float32, hence rounded once; those
  of 32 bits are rounded to float32 first.

So |result - S| <= N * c * step * (1 + u) + u * |S| + d (`error_bound`), where u is 2^-p, or
2^-p + 2^-23 for a type of 16 bits in integers of 32, and d half of the least denormal. It holds as
long as the sum plus this bound is within the type; a sum beyond its range becomes infinite.

*How many workers 16 bits are good for.* A ring in bfloat16, as gloo's, rounds each partial sum, by
r = 2^-7 * 0.72 / sqrt(12) of it on average (root mean square over a binade). For inputs of root
mean square a that are independent of each other, sums of k of them have a * sqrt(k), so a ring's
error is r * a * sqrt(2 + ... + N), about r * a * N / sqrt(2). That of 16 bits is
sqrt(N / 12) * 2^(e + s - 15), and r * a * sqrt(N) for the rounding of the result, which the ring's
last step has too. Hence 16 bits are at least as exact where

    sqrt(N) * 2^s / N * 2^e / a  <=  2^15 * sqrt(6) * r  =  130,

with N a power of two where 2^e is at most 130 / sqrt(N) times the root mean square of a fragment's
inputs: 46 for N = 8, 32 for N = 16, 23 for N = 32. Gaussian inputs have up to 10; of gradients,
with few greater ones among many that are nearly 0, 16 workers' were more exact at every step of
the training on digits, and 32 workers' less exact at some. So jobs of more than
MOST_NARROW_WORKERS workers use 32 bits (`hopsum.collectives.plan`). Where the inputs of all workers
agree, both errors grow alike, and 16 bits stay more exact for any N.

On the wire e travels as one byte, clip(e, -127, 128) + 127; 0 also stands for a fragment of zeros.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.host_agent.datapath.library import ScaleFactors, library
from hopsum.host_agent.elements import Element, element_of
from hopsum.protocol.errors import InputError
from hopsum.protocol.wire import EXPONENT_BIAS, MAX_WORKERS, Width

_ALL_FINITE = -1
"""`exponent_codes` of numbers.h: every value is finite."""
_LEAST_FAST_CODE = 32
"""From this exponent byte on, all scale factors of any job are normal float32 numbers; up to
255 - bits no sum leaves float32's range. Other fragments are converted in float64."""

_INTEGERS = {Width.WIDTH_32: np.int32, Width.WIDTH_16: np.int16}
_FLOAT32 = np.dtype(np.float32)
_HALF_DENORMAL = {
    Element.OF_FLOAT32: 2.0**-150,
    Element.OF_FLOAT16: 2.0**-25,
    Element.OF_BFLOAT16: 2.0**-134,
}
"""Half of the least number above 0."""


class NumbersError(InputError):
    """A tensor that cannot be summed; the message names it and the element."""


def worker_bits(workers: int) -> int:
    """Return ceil(log2 workers): the bits of headroom for a sum over these workers."""
    if not 1 <= workers <= MAX_WORKERS:
        raise NumbersError(f"{workers} workers: expected 1 to {MAX_WORKERS}")
    return (workers - 1).bit_length()


def float_element(dtype: np.dtype[Any]) -> Element:
    """Return the elements of tensors of a type. Raises NumbersError if they are no floats."""
    element = element_of(dtype)
    if element is None or not element.scaled:
        raise NumbersError(f"type {dtype}: expected float32, float16, or uint16 for bfloat16")
    return element


def exponent_codes(
    values: NDArray[Any], lanes: int, name: str, first: int = 0
) -> NDArray[np.uint8]:
    """Return the exponent byte of each fragment of `lanes` values of a flat tensor, (ceil(n /
    lanes),).

    `values`: float32, float16, or bfloat16 as uint16. Raises NumbersError, naming `name` and the
    element, at the first NaN or infinity; elements are counted from `first`.
    """
    values = np.ascontiguousarray(values)
    codes = np.empty(-(-len(values) // lanes), dtype=np.uint8)
    element, at = float_element(values.dtype), values.ctypes.data
    row = library().exponent_codes(element, at, len(values), lanes, codes.ctypes.data)
    if row != _ALL_FINITE:
        values = as_float32(values)
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
    """M, to which integers are clipped, or the greatest float32 below 2^31."""


@lru_cache(maxsize=32)
def factors(bits: int) -> Factors:
    """Return the factors of a job with these `worker_bits`."""
    exponents = np.arange(256) - EXPONENT_BIAS + bits - 31
    step = np.ldexp(1.0, exponents)
    fast = (np.arange(256) >= _LEAST_FAST_CODE) & (np.arange(256) < 255 - bits)
    up = np.where(fast, 1.0 / step, 0.0).astype(np.float32)
    down = np.where(fast, step, 0.0).astype(np.float32)
    return Factors(step, up, down, min(2 ** (31 - bits) - 1, 2**31 - 128))


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


def quantise(
    values: NDArray[Any], code: int, bits: int, width: Width = Width.WIDTH_32
) -> NDArray[Any]:
    """Scale values (n,) by an exponent byte to integers of a width (n,): int32, or int16.

    `values`: float32, float16, or bfloat16 as uint16; every one must lie within the exponent.
    `bits`: `worker_bits` of the job.
    """
    values = np.ascontiguousarray(values)
    made: NDArray[Any] = np.empty(len(values), np.dtype(_INTEGERS[width]).newbyteorder(">"))
    function = library().write_narrow
    if width is Width.WIDTH_32:
        made, function = np.empty(len(values), np.int32), library().make_wide
    element = float_element(values.dtype)
    at = ctypes.addressof(c_factors(bits))
    function(at, element, values.ctypes.data, len(values), code, made.ctypes.data)
    return made.astype(_INTEGERS[width], copy=False)


def dequantise(
    sums: NDArray[Any], code: int, bits: int, dtype: np.dtype[Any] = _FLOAT32
) -> NDArray[Any]:
    """Turn integer sums (n,), int32 or int16, back into a type of floats with the exponent byte
    they were made with.

    A sum beyond the type's range becomes infinite.
    """
    narrow = sums.dtype == np.int16
    sums = np.ascontiguousarray(sums, dtype=">i2" if narrow else np.int32)
    made = np.empty(len(sums), dtype)
    function = library().read_narrow if narrow else library().take_wide
    element = float_element(made.dtype)
    at = ctypes.addressof(c_factors(bits))
    function(at, element, sums.ctypes.data, len(sums), code, made.ctypes.data)
    return made


def as_float32(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return the values of a tensor of floats, bfloat16 as uint16, in float32, exactly."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def as_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the bits of finite float32 values rounded to bfloat16, to nearest even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def error_bound(
    code: int,
    workers: int,
    sums: NDArray[np.float64],
    element: Element = Element.OF_FLOAT32,
    width: Width = Width.WIDTH_32,
) -> NDArray[np.float64]:
    """Return the largest possible |result - sum| of elements with exact sums `sums` (module
    docstring).

    `code`: the exponent byte of the fragment, common to all workers.
    """
    bits, precision = worker_bits(workers), element.precision
    step = float(np.ldexp(factors(bits).step[code], 32 - width.bits))
    per_worker = max(0.5, 1 - 2.0 ** (width.bits - 1 - bits - precision)) * step
    rounding = 2.0**-precision
    if precision < 24 and width is Width.WIDTH_32:
        rounding += 2.0**-23
    bound: NDArray[np.float64] = (
        workers * per_worker * (1 + rounding) + rounding * np.abs(sums) + _HALF_DENORMAL[element]
    )
    return bound
