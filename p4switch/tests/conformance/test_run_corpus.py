"""The corpus runner, on a checkout of four files."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.corpus import P4C, SUITES, available, cases, run
from tests.conformance.run_corpus import Tally, judge, read_known
from tests.support.paths import PROGRAMS, ROOT


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    samples = tmp_path / "testdata" / "p4_16_samples"
    errors = tmp_path / "testdata" / "p4_16_errors"
    outputs = tmp_path / "testdata" / "p4_16_errors_outputs"
    for folder in (samples, errors, outputs, tmp_path / "testdata" / "p4_14_samples"):
        folder.mkdir(parents=True)
    for name in ("router.p4", "router.stf"):
        (samples / name).write_text((PROGRAMS / name).read_text())
    (errors / "good.p4").write_text("const bit<8> x = 1;\n")
    (errors / "bad.p4").write_text("const bit<8> x = y;\n")
    (errors / "warned.p4").write_text("const bit<8> x = 1;\n")
    (outputs / "good.p4-stderr").write_text("good.p4(1): [--Werror=x] error: no\n")
    (outputs / "bad.p4-stderr").write_text("bad.p4(1): [--Werror=x] error: y\n")
    (outputs / "warned.p4-stderr").write_text("warned.p4(1): [--Wwarn=x] warning: x\n")
    return tmp_path


def corpus(checkout: Path, known: str, *arguments: str) -> tuple[int, str]:
    """Status and output of the command."""
    file = checkout / "known.txt"
    file.write_text(known)
    command = [sys.executable, "-m", "tests.conformance.run_corpus", str(checkout)]
    command += ["--known", str(file), "--version", "of the test", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_cases_of_suites(checkout: Path) -> None:
    assert [case.title for case in cases(checkout, "stf-native")] == ["stf-native/router"]
    assert [case.name for case in cases(checkout, "refuse")] == ["bad", "good"]
    with pytest.raises(FileNotFoundError, match="suite p4info: expected a checkout of p4lang/p4c"):
        cases(checkout, "p4info")


def test_suites_through_p4c_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert set(SUITES) - set(available()) == {"json-interpreter", "json-native"}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(P4C) is None, reason="p4c is not installed")
@pytest.mark.parametrize("suite", ["json-interpreter", "json-native"])
def test_a_program_through_p4c(checkout: Path, suite: str) -> None:
    [case] = cases(checkout, suite)
    assert run(case) == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(P4C) is None, reason="p4c is not installed")
def test_a_program_of_which_p4c_writes_no_p4info(checkout: Path) -> None:
    """Two actions go by one name, as in many programs that it has translated from P4_14."""
    [case] = cases(checkout, "json-interpreter")
    name = '@name(".same") action'
    text = case.program.read_text().replace("action drop", f"{name} drop")
    egress = f"{name} nothing() {{ }} table none {{ actions = {{ nothing; }} }}"
    text = text.replace("    apply { }", f"{egress} apply {{ none.apply(); }}")
    case.program.write_text(text)
    assert run(case) == []


@pytest.mark.slow
def test_the_command_and_its_table(checkout: Path) -> None:
    suites = ("--suite", "stf-interpreter", "--suite", "refuse", "--table")
    table = checkout / "table.md"
    status, output = corpus(checkout, "", *suites, str(table))
    assert status == 1
    assert "FAIL refuse/good: it is accepted" in output
    assert "stf-interpreter: 1 passed, 0 expected failures, 0 failed" in output
    status, output = corpus(checkout, "refuse/good: a reason\n", *suites, str(table))
    assert status == 0
    text = table.read_text()
    assert "| programs that `compile` must refuse, or say that p4c does | 2 | 1 | 1 | 0 |" in text
    assert "- `refuse/good`: a reason." in text


def test_a_known_failure_that_passes_is_a_failure() -> None:
    tally = Tally()
    judge("refuse/x", [], {"refuse/x": "a reason"}, tally)
    assert tally.failed == {"refuse/x": "passes, but is among the known failures"}


def test_known_failures_need_a_suite_and_a_reason(tmp_path: Path) -> None:
    for line in ("refuse/x:", "nosuite/x: a reason"):
        (tmp_path / "known").write_text(line)
        with pytest.raises(ValueError, match="known:1: expected SUITE/NAME: REASON"):
            read_known(tmp_path / "known")


def test_each_suite_says_what_it_is() -> None:
    known = read_known(Path(__file__).with_name("known_failures.txt"))
    assert {title.partition("/")[0] for title in known} <= set(SUITES)
