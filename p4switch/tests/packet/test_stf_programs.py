"""Our own programs with STF files, one a feature of the language or the architecture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from p4switch.frontend.program import compile_file
from p4switch.stf import run_stf
from p4switch.targets.v1model.engine import Engine
from tests.support.paths import PROGRAMS


@pytest.mark.parametrize("stf", sorted(PROGRAMS.glob("*.stf")), ids=lambda path: path.stem)
def test_program(stf: Path, make_engine: Callable[..., Engine]) -> None:
    failures = run_stf(make_engine, compile_file(stf.with_suffix(".p4")), stf)
    assert failures == []
