"""256 register lanes: sums over workers, and nothing of one slot in another."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest

from p4switch.targets.v1model.engine import Engine, Replica

LANES = 256


def frame(slot: int, workers: int, bitmap: int, values: list[int]) -> bytes:
    return struct.pack(f">BBI{LANES}I", slot, workers, bitmap, *values)


@pytest.mark.slow
def test_lanes_add_up_over_workers(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine("lanes")
    engine.set_multicast_group(1, [Replica(port, port) for port in (1, 2, 3)])
    rng = random.Random(7)
    for slot in (0, 15, 0):
        parts = [[rng.getrandbits(32) for _ in range(LANES)] for _ in range(3)]
        sums = [sum(lane) % 2**32 for lane in zip(*parts, strict=True)]
        out = []
        for worker, part in enumerate(parts):
            sent = frame(slot, 3, 1 << worker, part)
            out += engine.process([(worker + 1, sent), (worker + 1, sent)][: 2 - worker // 2])
        assert out == [(port, frame(slot, 3, 4, sums)) for port in (1, 2, 3)]


@pytest.mark.slow
def test_a_slot_beyond_the_registers_changes_nothing(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine("lanes")
    engine.set_multicast_group(1, [Replica(1)])
    values = list(range(LANES))
    sent = frame(200, 1, 1, values)
    assert engine.process([(1, sent), (1, sent)]) == [(1, sent), (1, sent)]
