"""`make test` and its kin run the tests of every distribution."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

NONE_MATCHED = 5
"""pytest's status."""

PLUGINS = {
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTEST_PLUGINS": "xdist.plugin,xdist.looponfail,pytest_timeout",
}
"""Those that the targets' options are for; others take most of the time that pytest needs here."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the Makefile and three distributions of one test each."""
    (tmp_path / "tools").mkdir()
    for name in ("Makefile", "tools/run_tests.py", "tools/environment-is-usable"):
        shutil.copy(ROOT / name, tmp_path / name)
    settings = '[tool.pytest.ini_options]\naddopts = "--import-mode=importlib"\n'
    (tmp_path / "pyproject.toml").write_text(settings + 'testpaths = ["tests"]\n')
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_agent.py").write_text("def test_agent(): pass\n")
    for part in ("p4switch", "hopsum_torch"):
        (tmp_path / part / "tests").mkdir(parents=True)
        (tmp_path / part / "pyproject.toml").write_text(settings)
        (tmp_path / part / f"tests/test_{part}.py").write_text(f"def test_{part}(): pass\n")
    return tmp_path


def make(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `make` with this environment in place of the checkout's own."""
    environment = Path(sys.executable).parent
    return subprocess.run(
        ["make", "--old-file=setup", f"BIN={environment}", *arguments],
        cwd=checkout,
        env=os.environ | PLUGINS,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_a_misspelt_name_is_an_error(checkout: Path) -> None:
    done = make(checkout, "test", "TEST=misspelt")
    assert done.returncode != 0
    assert "TEST=misspelt: no test of any distribution matches" in done.stderr


@pytest.mark.slow
def test_a_failure_in_one_distribution_is_one_of_the_whole(checkout: Path) -> None:
    failing = checkout / "p4switch/tests/test_p4switch.py"
    failing.write_text("def test_p4switch(): assert not 'all is well'\n")
    done = make(checkout, "test", "TEST=p4switch")
    assert done.returncode != 0
    assert "all is well" in done.stdout


@pytest.mark.parametrize("way", [["--in-parallel"], []])
@pytest.mark.parametrize(
    ("hopsum", "p4switch", "whole"),
    [
        (0, 0, 0),
        (NONE_MATCHED, 0, 0),
        (0, NONE_MATCHED, 0),
        (NONE_MATCHED, NONE_MATCHED, NONE_MATCHED),
        (1, 0, 1),
        (0, 1, 1),
        (NONE_MATCHED, 1, 1),
    ],
)
def test_statuses_of_all_distributions_are_one(
    way: list[str],
    hopsum: int,
    p4switch: int,
    whole: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    def call(command: list[str], **_: object) -> int:
        return p4switch if "p4switch/tests" in command else hopsum

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "call", call)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["run_tests.py", *way, "--processes", "2", "-m", "long"])
    assert runpy.run_path(str(ROOT / "tools/run_tests.py"))["main"]() == whole
    said = "no test of any distribution matches" in capsys.readouterr().err
    assert said == (whole == NONE_MATCHED)
