"""Our own programs with STF files, one a feature of the language or the architecture."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from p4switch.frontend.program import compile_file
from p4switch.programs import compile_path
from p4switch.stf import run_stf
from p4switch.targets.v1model.engine import Engine
from tests.support.paths import PROGRAMS


@pytest.mark.parametrize("stf", sorted(PROGRAMS.glob("*.stf")), ids=lambda path: path.stem)
def test_program(stf: Path, make_engine: Callable[..., Engine]) -> None:
    failures = run_stf(make_engine, compile_file(stf.with_suffix(".p4")), stf)
    assert failures == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("p4c-bm2-ss") is None, reason="needs p4c")
@pytest.mark.parametrize("name", ["bitmaps", "drop_copy", "invalid"])
def test_program_in_bmv2_json(
    name: str, make_engine: Callable[..., Engine], tmp_path: Path
) -> None:
    """A few of those that p4c compiles, where its JSON and our own front end could differ."""
    json, info = tmp_path / f"{name}.json", tmp_path / f"{name}.txtpb"
    command = ["p4c-bm2-ss", "--arch", "v1model", "-o", json, "--p4runtime-files", info]
    subprocess.run([*command, f"{name}.p4"], check=True, capture_output=True, cwd=PROGRAMS)
    program = compile_path(json, p4info=info)
    assert run_stf(make_engine, program, PROGRAMS / f"{name}.stf") == []
