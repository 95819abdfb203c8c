"""Calls of processes whose values take fewer than 32 bits in packets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hopsum.host_agent.node.guesses import SURE
from hopsum.host_agent.process_calls import ALL, MODULO, NARROW, PARTS, SHORT
from hopsum.protocol.wire import Width
from tests.support.process_job import EXPECTED, Job

DTYPES = {NARROW: np.float32, MODULO: np.int8}


def values(kind: str, rank: int, turn: int, elements: int) -> Any:
    generator = np.random.default_rng([rank, turn])
    if kind == MODULO:
        return generator.integers(-128, 128, elements).astype(np.int8)
    return (generator.integers(-1000, 1000, elements) / 8).astype(np.float32)


@pytest.mark.parametrize("ranks", [["h1", "h2", "h3", "h4"], ["h1", "h2", "h1", "h3"]])
@pytest.mark.parametrize("sets", [0, 2])
@pytest.mark.parametrize("kind", [NARROW, MODULO])
@pytest.mark.parametrize(("elements", "target"), [(5, ALL), (20_000, ALL), (20_000, PARTS)])
def test_sums_are_those_of_their_type(
    kind: str, elements: int, target: int, ranks: Sequence[str], sets: int
) -> None:
    """At the first call and when calls are predicted, of few elements and of many."""
    job = Job(4, ranks=ranks, sets=sets)
    for turn in range(SURE + 3):
        rows = [values(kind, rank, turn, elements) for rank in range(4)]
        calls = [
            process.sum(row, target=target, kind=kind)
            for process, row in zip(job.processes, rows, strict=True)
        ]
        job.run()
        total = np.sum(rows, axis=0, dtype=DTYPES[kind])
        for rank, (process, call) in enumerate(zip(job.processes, calls, strict=True)):
            assert process.ended[call] == "done"
            got = process.tensors[call]
            assert got.dtype == DTYPES[kind]
            start, stop = 0, elements
            if target == PARTS:
                start, stop = rank * elements // 4, (rank + 1) * elements // 4
            np.testing.assert_array_equal(got[start:stop], total[start:stop])
    assert "sure" not in job.kinds
    width = Width.WIDTH_16 if kind == NARROW else Width.WIDTH_8
    assert job.widths == {None, width}


@pytest.mark.parametrize("ranks", [["h1", "h2", "h3", "h4"], ["h1", "h2", "h1", "h3"]])
@pytest.mark.parametrize("sets", [0, 2])
@pytest.mark.parametrize("reduction", ["max", "min"])
@pytest.mark.parametrize(("elements", "target"), [(5, ALL), (20_001, ALL), (20_000, PARTS)])
def test_extremes_of_16_bits_are_exact(
    reduction: str, elements: int, target: int, ranks: Sequence[str], sets: int
) -> None:
    job = Job(4, ranks=ranks, sets=sets)
    for turn in range(SURE + 3):
        generator = np.random.default_rng(turn)
        rows = generator.integers(-(1 << 15), 1 << 15, (4, elements)).astype(np.int16)
        calls = [
            process.sum(row, reduction, target, kind=SHORT)
            for process, row in zip(job.processes, rows, strict=True)
        ]
        job.run()
        expected = EXPECTED[reduction].reduce(rows)
        for rank, (process, call) in enumerate(zip(job.processes, calls, strict=True)):
            assert process.ended[call] == "done"
            part = slice(None)
            if target == PARTS:
                part = slice(rank * elements // 4, (rank + 1) * elements // 4)
            np.testing.assert_array_equal(process.tensors[call][part], expected[part])
    assert job.widths == {None, Width.WIDTH_16}


def test_other_types_mix_with_neither() -> None:
    job = Job(2)
    for process, kind in zip(job.processes, ("", NARROW), strict=True):
        process.sum(np.ones(10_000, np.float32), kind=kind)
    job.run()
    for process in job.processes:
        assert "sum of float32 in 16 bits, 10000 elements" in process.ended[0]


def test_values_that_are_not_finite_pass_through_narrow_sums() -> None:
    job = Job(2)
    rows = [np.ones(10_000, np.float32) for _ in range(2)]
    rows[0][7] = np.inf
    calls = [
        p.sum(row, passes=True, kind=NARROW) for p, row in zip(job.processes, rows, strict=True)
    ]
    job.run()
    for process, call in zip(job.processes, calls, strict=True):
        assert process.ended[call] == "done"
        assert np.flatnonzero(~np.isfinite(process.tensors[call])).tolist() == [7]
