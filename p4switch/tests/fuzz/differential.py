"""Differences between executors on one generated program and its packets."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from p4switch.backends.native.engine import NativeEngine
from p4switch.backends.reference.interpreter import Interpreter
from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.ir import Program
from p4switch.targets.v1model.engine import Engine
from tests.fuzz import wires
from tests.fuzz.programs import CELLS, PORTS, frames_of, program_of
from tests.support.bmv2 import running_bmv2
from tests.support.sanitizers import SANITIZERS

BMV2_FRAMES = 300
"""The number of a program's frames that are sent to BMv2 too, which is slow."""


@dataclass(frozen=True, slots=True)
class Options:
    """The executors to compare with the interpreter."""

    frames: int = 3000
    sanitize: bool = False
    """Native code under ASan and UBSan, at -O2; the process must have preloaded libasan."""
    bmv2: bool = False


def compare(seed: int, options: Options, links: wires.Wires | None = None) -> str | None:
    """Return what differs, or None. With `links` frames go through the packet loop, too."""
    text = program_of(seed, beyond=not options.bmv2)
    program = compile_program(parse_text(text, f"seed{seed}.p4"))
    frames = frames_of(seed, options.frames)
    reference = Interpreter(program)
    flags = ("-O2", *SANITIZERS) if options.sanitize else ()
    native = NativeEngine(program, extra_flags=flags)
    try:
        difference = _engines(reference, native, frames, seed)
    finally:
        native.close()
    if difference is None and links is not None:
        difference = wires.difference(program, flags, frames, links, 1 + seed % 3)
    if difference is None and options.bmv2:
        few = frames[:BMV2_FRAMES]
        difference = _against_bmv2(program, text, program_outputs(Interpreter(program), few), few)
    return difference


def _engines(reference: Engine, native: Engine, frames: Sequence[bytes], seed: int) -> str | None:
    """Send batches of one to six packets to both."""
    done = step = 0
    while done < len(frames):
        size = 1 + (seed + step) % 6
        batch = [(0, frame) for frame in frames[done : done + size]]
        want, have = reference.process(batch, step * 1000), native.process(batch, step * 1000)
        if want != have:
            return f"batch {step}, {batch}: native {have}, interpreter {want}"
        done, step = done + size, step + 1
    if reference.statistics() != native.statistics():
        return f"statistics: native {native.statistics()}, interpreter {reference.statistics()}"
    for instance in reference.program.externs:
        for index in range(CELLS):
            a, b = (engine.read_register(instance.name, index) for engine in (reference, native))
            if a != b:
                return f"{instance.name}[{index}]: native {b}, interpreter {a}"
    return None


def program_outputs(engine: Engine, frames: Sequence[bytes]) -> dict[int, list[bytes]]:
    """Return what leaves each of the ports 0..PORTS-1 when frames go through one by one."""
    out: dict[int, list[bytes]] = {port: [] for port in range(PORTS)}
    for frame in frames:
        for port, sent in engine.process([(0, frame)]):
            if port in out:
                out[port].append(sent)
    return out


def _against_bmv2(
    program: Program, text: str, expected: dict[int, list[bytes]], frames: Sequence[bytes]
) -> str | None:
    """Compile with p4c and run BMv2; it must send the same, port by port."""
    with tempfile.TemporaryDirectory() as name:
        source = Path(name, "program.p4")
        source.write_text(text)
        try:
            with running_bmv2(program, source, Path(name)) as engine:
                sent = program_outputs(engine, frames)
        except subprocess.CalledProcessError as error:
            return f"p4c refuses the program: {error.stderr[-1000:]}"
        except grpc.RpcError as error:
            return f"BMv2 ended: {error}"
    for port, wanted in expected.items():
        for number, (a, b) in enumerate(zip(sent[port], wanted, strict=False)):
            if a != b:
                return f"port {port}, frame {number}: BMv2 {a.hex()}, p4switch {b.hex()}"
        if len(sent[port]) != len(wanted):
            return f"port {port}: BMv2 sent {len(sent[port])} frames, p4switch {len(wanted)}"
    return None
