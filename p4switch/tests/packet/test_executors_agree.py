"""Both executors on the same random packets: same frames, statistics, digests, registers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from p4switch.backends.reference.interpreter import Interpreter
from p4switch.frontend.program import compile_file
from p4switch.stf import prepare
from p4switch.targets.v1model.engine import Engine, EngineOptions, Packet
from tests.support.paths import PROGRAMS

ROUNDS = 40
BATCH = 6
OPTIONS = EngineOptions(packet_budget=2000)
"""Packets that go round end soon: by default they may take the interpreter 131,072 steps."""


@pytest.fixture
def two_engines(
    make_engine: Callable[..., Engine],
) -> Callable[[Path], tuple[Engine, Engine]]:
    """The interpreter and the executor under test, with one program."""

    def make(path: Path) -> tuple[Engine, Engine]:
        program = compile_file(path)
        return Interpreter(program, OPTIONS), make_engine(program, OPTIONS)

    return make


def mutated(rng: random.Random, packets: Sequence[Packet]) -> Packet:
    """A packet of the file, some bytes changed, cut or prolonged; now and then any bytes."""
    port, data = rng.choice(packets)
    frame = bytearray(data)
    kind = rng.randrange(6)
    if kind == 0:
        return rng.randrange(9), rng.randbytes(rng.randrange(len(frame) + 20))
    if kind == 1:
        return port, bytes(frame[: rng.randrange(len(frame) + 1)])
    if kind < 5:
        for _ in range(rng.randrange(1, 6)):
            frame[rng.randrange(len(frame))] = rng.choice((0, 1, 2, 5, 9, 0x80, 0xFF))
    return port, bytes(frame) + rng.randbytes(rng.choice((0, 0, 7)))


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["native"], indirect=True)
@pytest.mark.parametrize("stf", sorted(PROGRAMS.glob("*.stf")), ids=lambda path: path.stem)
def test_random_packets(stf: Path, two_engines: Callable[[Path], tuple[Engine, Engine]]) -> None:
    reference, other = two_engines(stf.with_suffix(".p4"))
    packets = prepare(reference, stf)
    prepare(other, stf)
    rng = random.Random(stf.stem)
    for number in range(ROUNDS):
        batch = [mutated(rng, packets) for _ in range(BATCH)]
        now_us = number * 1000
        assert other.process(batch, now_us) == reference.process(batch, now_us), batch
        assert other.statistics() == reference.statistics(), batch
        assert other.take_digests() == reference.take_digests()
    for instance in reference.program.externs:
        if instance.extern == "register":
            for index in range(int(instance.arguments[0])):
                assert other.read_register(instance.name, index) == reference.read_register(
                    instance.name, index
                )
