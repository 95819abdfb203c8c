"""The fuzzer: its programs are legal and differ, and it finds a fault that is put in."""

from __future__ import annotations

import operator
import re
import subprocess
import sys
from pathlib import Path

import pytest

from p4switch.backends.reference import operators
from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from tests.fuzz import wires
from tests.fuzz.differential import Options, compare, program_outputs
from tests.fuzz.programs import CELLS, frames_of, program_of
from tests.fuzz.run_fuzz import INTERRUPTED
from tests.support.bmv2 import missing
from tests.support.veth import skip_without_veths

SEEDS = range(100, 140)


@pytest.mark.slow
def test_programs_are_legal_and_the_same_for_a_seed() -> None:
    texts = [program_of(seed) for seed in SEEDS]
    assert len(set(texts)) == len(texts)
    assert texts == [program_of(seed) for seed in SEEDS]
    for seed, text in zip(SEEDS, texts, strict=True):
        compile_program(parse_text(text, f"seed{seed}.p4"))


def test_bmv2_gets_no_index_beyond_its_registers() -> None:
    """One that is built with -DNDEBUG does not check them."""
    outside = f"memory.write({CELLS}, "
    assert any(outside in program_of(seed) for seed in SEEDS)
    assert not any(outside in program_of(seed, beyond=False) for seed in SEEDS)


@pytest.mark.slow
def test_bmv2_agrees() -> None:
    if missing() is not None:
        pytest.skip(f"{missing()}")
    # The first of them has such an index otherwise.
    for seed in (1795457839012, SEEDS[0]):
        assert compare(seed, Options(frames=60, bmv2=True)) is None


def test_packets_leave_and_are_changed() -> None:
    from p4switch.backends.reference.interpreter import Interpreter

    changed = 0
    for seed in SEEDS[:10]:
        frames = frames_of(seed, 40)
        engine = Interpreter(compile_program(parse_text(program_of(seed))))
        sent = [frame for out in program_outputs(engine, frames).values() for frame in out]
        changed += sum(frame not in frames for frame in sent)
    assert changed > 100


@pytest.mark.slow
def test_executors_agree() -> None:
    for seed in SEEDS[:3]:
        assert compare(seed, Options(frames=60)) is None


@pytest.mark.slow
@pytest.mark.network
def test_the_packet_loop_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bursts come out of the packet loop as single frames do; a fault is found."""
    skip_without_veths()
    with wires.wires() as links:
        for seed in SEEDS[:2]:
            assert compare(seed, Options(frames=200), links) is None
        program = compile_program(parse_text(program_of(SEEDS[0])))
        frames = frames_of(SEEDS[0], 60)
        for sign, wrong in (("+", operator.sub), ("-", operator.add), ("*", operator.add)):
            monkeypatch.setitem(operators.WRAPPING, sign, wrong)
        monkeypatch.setattr(wires, "SECONDS", 1)  # a frame is expected that never comes
        found = wires.difference(program, (), frames, links)
        assert found is not None
        assert found.startswith("packet loop, frames ")


@pytest.mark.slow
def test_a_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for sign, wrong in (("+", operator.sub), ("-", operator.add), ("*", operator.add)):
        monkeypatch.setitem(operators.WRAPPING, sign, wrong)
    found = (compare(seed, Options(frames=60)) for seed in SEEDS[:10])
    assert any(text is not None and text.startswith("batch") for text in found)


@pytest.mark.slow
def test_an_interrupted_run_says_what_it_compared() -> None:
    """SIGTERM at its parent alone, as `kill` and `timeout` send it."""
    command = [sys.executable, "-m", "tests.fuzz.run_fuzz", "--minutes", "60", "--frames", "10"]
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        while not re.match(r"(BMv2|native): seeds ", run.stdout.readline()):
            pass
        run.terminate()
        said = run.stdout.read()
    assert run.returncode == INTERRUPTED
    assert re.search(r"^(BMv2|native): \d+ programs, \d+ packets.* \(interrupted\)$", said, re.M)
