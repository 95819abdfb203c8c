"""Generated code under the address and undefined-behaviour sanitizers, with any packets."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.paths import PROGRAMS, ROOT
from tests.support.sanitizers import SANITIZERS, address_sanitizer, sanitized_environment

DAILY = ("parsing", "again", "varbit")
LONG = ("matches", "replication", "stacks", "unions")
"""Programs that add little to the others', and take seconds each to compile."""

SCRIPT = """
import random, sys
from pathlib import Path
from p4switch.frontend.program import compile_file
from p4switch.backends.native.engine import NativeEngine
from p4switch.targets.v1model.engine import CloneSession, EngineOptions, Replica

flags, *names = sys.argv[1:]
for name in names:
    rng = random.Random(1)
    program = compile_file(Path(name))
    # What is copied and sent again costs time, and after a few turns shows nothing new.
    options = EngineOptions(queue_depth=8, packet_budget=100)
    engine = NativeEngine(program, options, extra_flags=tuple(flags.split()))
    for number in range(1, 8):
        engine.set_multicast_group(number, [Replica(port, number) for port in range(number)])
        engine.set_clone_session(number, CloneSession((Replica(number),), number))
    for step in range(400):
        batch = []
        for _ in range(rng.randint(1, 12)):
            frame = bytearray(rng.randbytes(rng.choice((0, 1, 7, 20, 64, 1082, 1514, 9000))))
            for place in range(min(len(frame), 40)):
                if rng.random() < 0.7:
                    frame[place] = rng.choice((0, 1, 2, 8, 255))
            batch.append((rng.randint(0, 511), bytes(frame)))
        engine.process(batch, step)
    engine.close()
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("names", [DAILY, pytest.param(LONG, marks=pytest.mark.long)])
def test_no_packet_makes_the_switch_read_or_write_out_of_bounds(names: tuple[str, ...]) -> None:
    library = address_sanitizer()
    if library is None:
        pytest.skip("needs a C compiler with the address sanitizer's library")
    environment = {**sanitized_environment(library), "PYTHONPATH": str(ROOT / "src")}
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            SCRIPT,
            " ".join(("-O1", *SANITIZERS)),
            *(str(PROGRAMS / f"{name}.p4") for name in names),
        ],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stdout == "done\n"
