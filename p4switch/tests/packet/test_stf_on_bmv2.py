"""Our programs' STF files on BMv2: what they expect of the executors holds there, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from p4switch.stf import run_stf
from tests.packet.conftest import compiled
from tests.support.bmv2 import missing, running_bmv2
from tests.support.paths import PROGRAMS

WHY_NOT = missing()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]

PSA = "simple_switch_grpc runs v1model; BMv2's psa_switch has no P4Runtime"
EXCEPT = {
    "calls": "a bug of p4c: Overwriting definitions at ExitStatement",
    "clone_data": "p4c refuses clone3, resubmit(data) and recirculate(data)",
    "loops": "p4c refuses for-in loops",
    "matches": "p4c refuses a table that is applied in two branches which meet again",
    "parsing": "p4c refuses packet.length()",
    "psa_externs": PSA,
    "psa_paths": PSA,
    "stacks": "p4c refuses push_front and pop_front in parsers",
    "state": "BMv2 has no registers over P4Runtime",
    "unions": "BMv2's pop_front leaves the last union of a stack valid",
}
"""Files that cannot hold on BMv2, and why (docs/bmv2.md)."""


@pytest.mark.parametrize(
    "stf",
    sorted(path for path in PROGRAMS.glob("*.stf") if path.stem not in EXCEPT),
    ids=lambda path: path.stem,
)
def test_program(stf: Path, tmp_path: Path) -> None:
    program = compiled(stf.stem)
    with running_bmv2(program, stf.with_suffix(".p4"), tmp_path) as engine:
        assert run_stf(lambda _: engine, program, stf) == []
