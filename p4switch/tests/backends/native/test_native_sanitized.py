"""Generated code under the address and undefined-behaviour sanitizers, with any packets."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import PROGRAMS, ROOT

NAMES = ("matches", "parsing", "replication", "again", "stacks", "unions", "varbit")

SCRIPT = """
import random, sys
from pathlib import Path
from p4switch.frontend.program import compile_file
from p4switch.backends.native.build import SANITIZERS
from p4switch.backends.native.engine import NativeEngine
from p4switch.targets.v1model.engine import CloneSession, EngineOptions, Replica

rng = random.Random(1)
for name in sys.argv[1:]:
    program = compile_file(Path(name))
    engine = NativeEngine(program, EngineOptions(queue_depth=8), extra_flags=("-O1", *SANITIZERS))
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


def address_sanitizer() -> Path | None:
    """The library that the process must preload."""
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None:
        return None
    command = [compiler, "-print-file-name=libasan.so"]
    path = Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    return path if path.is_absolute() else None


@pytest.mark.slow
def test_no_packet_makes_the_switch_read_or_write_out_of_bounds() -> None:
    library = address_sanitizer()
    if library is None:
        pytest.skip("needs a C compiler with the address sanitizer's library")
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",  # so that what Python hands over has red zones too
        "PYTHONPATH": str(ROOT / "src"),
    }
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, *(str(PROGRAMS / f"{name}.p4") for name in NAMES)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stdout == "done\n"
