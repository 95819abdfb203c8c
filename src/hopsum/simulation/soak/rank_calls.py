"""What each rank of a job of kind `process` calls, and what it must get.

A rank's calls follow from its job's entry alone: a pattern that is repeated, as in a training, so
that calls are guessed and in the end taken by flows, with some others among them. Faults of ranks
change single calls. Results are compared with those of numpy.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.host_agent.node.calls import COPY as COPIED
from hopsum.host_agent.node.calls import CallSpec
from hopsum.host_agent.node.local_sums import GREATEST_CODE
from hopsum.host_agent.numbers import error_bound
from hopsum.host_agent.process_calls import (
    ALL,
    BARRIER,
    COPY,
    FAULTS,
    MODULO,
    NARROW,
    PARTS,
    PASSED,
    REDUCTIONS,
    ROOT,
    SHORT,
    SUM,
    TYPES,
    CallPacket,
)
from hopsum.protocol.wire import Width
from hopsum.simulation.processes import magnitude_of
from hopsum.simulation.soak.schedule import JobEntry, RankFault, RankFaultKind

OTHERWISE = 0.03
"""Probability that a call is not the pattern's."""
NARROW_CALLS = 0.3
"""Fraction of sums, maxima and minima whose values take fewer than 32 bits in packets."""
GREAT_CALLS = 0.1
"""Fraction of sums of floats in which the values of one rank go up to 3/4 of float32's range; those
of the others are negligible."""
_COMBINED_BY: Mapping[str, np.ufunc] = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_REASONS = {
    "different": "the ranks make different calls",
    "lanes": "check lanes",
    "nan": "cannot be compared",
    "not finite": "only finite values",
    "overflow": "beyond int32",
}


class Call(NamedTuple):
    """A rank's call, but for its values; `fault`: one of FAULTS that some of them have."""

    kind: int
    type: str = "int32"
    reduction: str = "sum"
    elements: int = 0
    target: int = ALL
    fault: str = ""

    @property
    def packet(self) -> CallPacket:
        """Its packet, without what depends on its values."""
        return CallPacket(
            self.kind,
            list(TYPES).index(self.type) if self.kind == SUM else 0,
            REDUCTIONS["int32"].index(self.reduction) if self.kind == SUM else 0,
            0,
            self.target,
            *[0] * 5,
        )


@lru_cache(64)
def script(entry: JobEntry) -> Sequence[Call]:
    """Return the calls of a job's ranks, apart from mishaps."""
    rng = random.Random(f"process/{entry.seed}")
    pattern = [_call(rng, entry) for _ in range(rng.choice([1, 1, 2, 3]))]
    strays = [rng.random() < OTHERWISE for _ in range(entry.rounds)]
    return [
        _call(rng, entry) if stray else pattern[number % len(pattern)]
        for number, stray in enumerate(strays)
    ]


def _call(rng: random.Random, entry: JobEntry) -> Call:
    ranks = len(entry.all_ranks)
    target = rng.choice([ALL, ALL, ALL, PARTS, ROOT + rng.randrange(ranks)])
    elements = max(1, rng.choice([entry.elements, entry.elements, entry.elements // 7]))
    if target == PARTS:
        elements = -(-elements // ranks) * ranks
    kind = rng.choices([SUM, COPY, BARRIER], [80, 10, 10])[0]
    if kind == BARRIER:
        return Call(BARRIER)
    if kind == COPY:
        return Call(COPY, elements=elements, target=target if target != ALL else ROOT)
    dtype = rng.choice(["float32", "int32"])
    reduction = rng.choice(["sum", "sum", "sum", rng.choice(REDUCTIONS[dtype])])
    # Of their own, so that all else of a seed stays as it was.
    own = random.Random(f"types/{entry.seed}/{dtype}/{elements}/{target}")
    if reduction == "sum" and own.random() < NARROW_CALLS:
        dtype = NARROW if dtype == "float32" else MODULO
    elif dtype == "int32" and reduction in REDUCTIONS[SHORT] and own.random() < NARROW_CALLS:
        dtype = SHORT
    return Call(SUM, dtype, reduction, elements, target)


def call_of(entry: JobEntry, rank: int, number: int) -> Call | None:
    """Return what a rank calls; None: it has left."""
    call = script(entry)[number]
    for mishap in entry.mishaps:
        if mishap.rank != rank:
            continue
        if mishap.what is RankFaultKind.LEAVES and mishap.call <= number:
            return None
        if mishap.call != number or call.kind == BARRIER:
            continue
        match mishap.what:
            case RankFaultKind.DIFFERS:
                call = call._replace(elements=call.elements + len(entry.all_ranks))
            case RankFaultKind.NAN if _is_sum(call, "float32", "sum", "max", "min"):
                call = call._replace(fault="nan")
            case RankFaultKind.INFINITY if _is_sum(call, "float32", "sum"):
                call = call._replace(fault="inf")
            case RankFaultKind.PASSES if _is_sum(call, "float32", "sum"):
                call = call._replace(fault=PASSED)
    return call


def _is_sum(call: Call, dtype: str, *reductions: str) -> bool:
    return call.kind == SUM and call.type == dtype and call.reduction in reductions


def values_of(entry: JobEntry, rank: int, number: int) -> NDArray[Any]:
    """Return the values of a rank's call."""
    call = call_of(entry, rank, number)
    assert call is not None
    generator = np.random.default_rng([entry.seed, rank, number])
    if call.kind == COPY or call.reduction in ("and", "or", "xor"):
        return generator.integers(-(1 << 31), 1 << 31, call.elements).astype(np.int32)
    if call.type == SHORT:
        return generator.integers(-(1 << 15), 1 << 15, call.elements).astype(np.int16)
    if call.type == MODULO:
        return generator.integers(-(1 << 7), 1 << 7, call.elements).astype(np.int8)
    if call.type == "int32":
        limit = 1 << (31 if call.reduction != "sum" else 20)
        values = generator.integers(-limit, limit, call.elements).astype(np.int32)
        great = RankFault(rank, number, RankFaultKind.OVERFLOWS)
        if call.reduction == "sum" and great in entry.mishaps:
            values[generator.integers(call.elements)] = (1 << 31) - 1
        return values
    floats = generator.standard_normal(call.elements).astype(np.float32)
    if rank == great_rank(entry, call):
        floats = np.clip(floats, -3, 3) * np.float32(2.0**126)
    if call.fault:
        chosen = [np.nan] if call.fault == "nan" else [np.inf]
        if call.fault == PASSED:
            chosen = [np.nan, np.inf, -np.inf]
        floats[generator.integers(call.elements)] = generator.choice(chosen)
    return floats


def great_rank(entry: JobEntry, call: Call) -> int | None:
    """Return the rank whose values of such a call have the greatest exponent byte, if any."""
    own = random.Random(f"great/{entry.seed}/{call.elements}/{call.target}")
    ranks = len(entry.all_ranks)
    return own.randrange(ranks) if call.reduction == "sum" and own.random() < GREAT_CALLS else None


class Refusal(NamedTuple):
    """Why all ranks' calls must fail: a key of `_REASONS`."""

    why: str


@dataclass(frozen=True, slots=True)
class ExpectedResult:
    """What a call gives its ranks: values (float64 of sums of float32), which may be off by some.

    `call`: of all of them.
    """

    call: Call
    values: NDArray[Any]
    bound: NDArray[np.float64] | None = None


@lru_cache(128)
def expected(entry: JobEntry, number: int) -> ExpectedResult | Refusal:
    """Return what a call gives all ranks, in the elements that are theirs."""
    calls = [call_of(entry, rank, number) for rank in range(len(entry.all_ranks))]
    alike = {None if call is None else call._replace(fault="") for call in calls}
    first = calls[0]
    if len(alike) > 1 or first is None:
        return Refusal("different")
    if entry.integrity and (first.kind == COPY or first.reduction != "sum"):
        return Refusal("lanes")
    if {call.fault for call in calls if call is not None} & {*FAULTS[:3]}:
        return Refusal("not finite" if first.reduction == "sum" else "nan")
    first = first._replace(fault="")
    if first.kind == BARRIER:
        return ExpectedResult(first, np.zeros(0))
    given = [values_of(entry, rank, number) for rank in range(len(calls))]
    if first.kind == COPY:
        whole = np.zeros_like(given[0])
        for rank, values in enumerate(given):
            start, stop = _share(first, rank, len(given))
            whole[start:stop] = values[start:stop]
        return ExpectedResult(first, whole)
    if first.reduction != "sum":
        reduced: NDArray[Any] = _COMBINED_BY[first.reduction].reduce(given)
        return ExpectedResult(first, reduced)
    if first.type in ("int32", MODULO):
        total: NDArray[np.int64] = np.array(given, np.int64).sum(axis=0)
        if first.type == MODULO:
            return ExpectedResult(first, total.astype(np.int8))
        if (total != total.astype(np.int32)).any():
            return Refusal("overflow")
        return ExpectedResult(first, total.astype(np.int32))
    return ExpectedResult(first, *_sum_of_floats(entry, given, narrow=first.type == NARROW))


def _sum_of_floats(
    entry: JobEntry, given: Sequence[NDArray[np.float32]], *, narrow: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return an exact sum, and by how much a result may be off: of hosts, and before of a host."""
    with np.errstate(invalid="ignore"):
        total: NDArray[np.float64] = np.sum(np.array(given, np.float64), axis=0)
    finite = np.where(np.isfinite(given), given, 0).astype(np.float64)
    most = max(Counter(entry.all_ranks).values())
    code = max(magnitude_of(values) for values in given) + (most - 1).bit_length()
    width = Width.WIDTH_16 if narrow else Width.WIDTH_32
    exponent = min(code, GREATEST_CODE)
    bound = error_bound(exponent, len(given), finite.sum(axis=0), width=width)
    # A host whose sum might leave the range makes its values smaller, and the total greater again.
    bound *= 2.0 ** (code - exponent)
    return total, bound + (most - 1) * 2.0**-24 * np.abs(finite).sum(axis=0)


def _share(call: Call, rank: int, ranks: int) -> tuple[int, int]:
    return CallSpec(COPIED, call.elements, call.target).share(rank, ranks)


def difference(entry: JobEntry, number: int, rank: int, end: CallOutcome) -> str:
    """Return how the end of a rank's call differs from what it must be; empty: not at all."""
    due = expected(entry, number)
    if isinstance(due, Refusal):
        wrong = end.result is not None or _REASONS[due.why] not in end.why
        return f"{end}, and {due.why} was expected" if wrong else ""
    if end.result is None:
        return f"failed: {end.why}"
    start, stop = 0, due.call.elements
    if due.call.kind == SUM:
        start, stop = _share(due.call, rank, len(entry.all_ranks))
    result, values = end.result[start:stop], due.values[start:stop]
    if due.bound is None:
        wrong = ~((result == values) | (np.isnan(values) & np.isnan(result)))
    else:
        finite = np.isfinite(values)
        with np.errstate(invalid="ignore"):
            near = np.abs(result.astype(np.float64) - values) <= due.bound[start:stop]
        same = (result == values) | (np.isnan(values) & np.isnan(result))
        wrong = ~np.where(finite, near, same)
    return f"{wrong.sum()} of {stop - start} elements are wrong" if wrong.any() else ""


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """How a rank's call ended: with a result in its memory, or why without."""

    result: NDArray[Any] | None = None
    why: str = ""

    def __str__(self) -> str:
        return "it has a result" if self.result is not None else f"failed: {self.why}"
