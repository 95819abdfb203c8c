"""Differences between executors on one generated program and its packets."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from p4switch.backends.native.engine import NativeEngine
from p4switch.backends.reference.interpreter import Interpreter
from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.packet_io.pcap import PcapError, PcapWriter, read_pcap
from p4switch.targets.v1model.engine import Engine
from tests.fuzz import wires
from tests.fuzz.programs import CELLS, PORTS, frames_of, program_of
from tests.support.machine import own_port
from tests.support.sanitizers import SANITIZERS

BMV2_GAPS_SECONDS = (0.001, 0.01, 0.03)
"""Between frames, one attempt each: BMv2 keeps to the files' times, and loses frames on a busy
machine, as its egress queues hold 64."""

BMV2_FRAMES = 300
"""The number of a program's frames that are sent to BMv2 too, which is slow."""

BMV2_SECONDS = 5
"""Without a frame from BMv2 until it counts as done."""


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
        difference = _against_bmv2(text, program_outputs(Interpreter(program), few), few)
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
    text: str, expected: dict[int, list[bytes]], frames: Sequence[bytes]
) -> str | None:
    """Return what BMv2 does differently twice; frames that it loses are others each time."""
    before = None
    for gap in BMV2_GAPS_SECONDS:
        found = _bmv2(text, expected, frames, gap)
        if found is None or found == before:
            return found
        before = found
    return None


def _bmv2(
    text: str, expected: dict[int, list[bytes]], frames: Sequence[bytes], gap: float
) -> str | None:
    """Compile with p4c and run BMv2 on capture files; it must send the same, port by port."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.p4").write_text(text)
        command = ["p4c", "--target", "bmv2", "--arch", "v1model", "-o", name]
        made = subprocess.run(
            [*command, str(folder / "program.p4")], capture_output=True, text=True, check=False
        )
        if made.returncode:
            return f"p4c refuses the program: {made.stderr[-1000:]}"
        for port in range(PORTS):
            with PcapWriter(folder / f"p{port}_in.pcap") as writer:
                for number, frame in enumerate(frames if port == 0 else ()):
                    writer.write(number * gap, frame)
        command = ["simple_switch_grpc", "program.json", "--use-files", "0"]
        command += ["--thrift-port", str(own_port())]
        for port in range(PORTS):
            command += ["-i", f"{port}@p{port}"]
        command += ["--", "--grpc-server-addr", f"unix:{folder}/p4rt"]
        process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            return _await(folder, expected, process)
        finally:
            process.kill()
            process.wait()


def _await(
    folder: Path, expected: dict[int, list[bytes]], process: subprocess.Popen[bytes]
) -> str | None:
    """Wait until as much has been sent as is expected, and compare."""
    deadline, count = time.monotonic() + BMV2_SECONDS, 0
    wanted = sum(len(frames) for frames in expected.values())
    while True:
        sent = {port: _sent(folder / f"p{port}_out.pcap") for port in expected}
        before, count = count, sum(len(frames) for frames in sent.values())
        if count >= wanted:
            break
        if count > before:
            deadline = time.monotonic() + BMV2_SECONDS
        if process.poll() is not None:
            return f"BMv2 ended with status {process.returncode}"
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    for port, frames in expected.items():
        if sent[port] != frames:
            pairs = zip(sent[port], frames, strict=False)
            place = next((n for n, (a, b) in enumerate(pairs) if a != b), None)
            if place is None:
                return f"port {port}: BMv2 sent {len(sent[port])} frames, p4switch {len(frames)}"
            a, b = sent[port][place].hex(), frames[place].hex()
            return f"port {port}, frame {place}: BMv2 {a}, p4switch {b}"
    return None


def _sent(path: Path) -> list[bytes]:
    """Return the frames written so far; BMv2 may be in the middle of one."""
    found: list[bytes] = []
    try:
        for _, frame in read_pcap(path):
            found.append(frame)
    except (PcapError, FileNotFoundError):
        pass
    return found
