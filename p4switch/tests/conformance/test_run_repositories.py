"""Public programs, with a clone of three files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.run_corpus import read_known
from tests.conformance.run_repositories import REFUSED, REPOSITORIES, programs
from tests.support.paths import PROGRAMS, ROOT


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "p4-guide"
    (folder / "lessons").mkdir(parents=True)
    router = (PROGRAMS / "router.p4").read_text()
    (folder / "router.p4").write_text(router)
    (folder / "lessons" / "broken.p4").write_text(router.replace("V1Switch(", "V1Switch(nothing,"))
    (folder / "part.p4").write_text("const bit<8> x = y;\n")
    return folder


def compiled(clone: Path, refused: str, *arguments: str) -> tuple[int, str]:
    """Status and output of the command, where these programs are known to be refused."""
    file = clone.parent / "refused.txt"
    file.write_text(refused)
    command = [sys.executable, "-m", "tests.conformance.run_repositories", str(clone)]
    command += ["--refused", str(file), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_only_programs_for_our_switches_count(clone: Path) -> None:
    assert [case.name for case in programs(clone)] == ["lessons/broken.p4", "router.p4"]


@pytest.mark.slow
def test_the_command_and_its_table(clone: Path) -> None:
    table = clone.parent / "table.md"
    status, output = compiled(clone, "", "--table", str(table))
    assert status == 1
    assert "FAIL p4-guide/lessons/broken.p4: P4Error" in output
    assert "of unknown version | 2 | 1 | 0 | 1 |" in table.read_text()
    known = "p4-guide/lessons/broken.p4: a reason\n"
    status, output = compiled(clone, known, "--table", str(table))
    assert (status, output) == (0, "p4-guide: 1 compiled, 1 refused as known\n")
    assert "| jafingerhut/p4-guide | of unknown version | 2 | 1 | 1 | 0 |" in table.read_text()
    assert "- `p4-guide/lessons/broken.p4`: a reason." in table.read_text()
    status, output = compiled(clone, known + "p4-guide/router.p4: none\n")
    assert status == 1
    assert "p4-guide/router.p4: passes, but is among the known failures" in output


@pytest.mark.slow
def test_a_folder_that_is_none_of_the_repositories(tmp_path: Path) -> None:
    status, output = compiled(tmp_path, "")
    assert status == 2
    assert "no programs: expected a clone of one of p4lang/tutorials" in output


def test_each_refused_program_has_a_reason() -> None:
    assert read_known(REFUSED, REPOSITORIES)
