"""`make test` and its kin run the tests of every distribution."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.slow


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
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("target", ["test", "test-fast"])
def test_a_misspelt_name_is_an_error(checkout: Path, target: str) -> None:
    done = make(checkout, target, "TEST=misspelt")
    assert done.returncode != 0
    assert "TEST=misspelt: no test of any distribution matches" in done.stderr


@pytest.mark.parametrize("name", ["agent", "p4switch"])
def test_a_name_may_match_in_one_distribution_alone(checkout: Path, name: str) -> None:
    done = make(checkout, "test", f"TEST={name}")
    assert done.returncode == 0
    assert done.stdout.count("1 passed") == 1


@pytest.mark.parametrize("failing", ["tests/test_agent.py", "p4switch/tests/test_p4switch.py"])
def test_a_failure_in_one_distribution_is_one_of_the_whole(checkout: Path, failing: str) -> None:
    (checkout / failing).write_text("def test_it(): assert not 'all is well'\n")
    done = make(checkout, "test")
    assert done.returncode != 0
    assert "all is well" in done.stdout


def test_a_target_without_tests_is_an_error(checkout: Path) -> None:
    """No test of this checkout is marked `long`."""
    done = make(checkout, "test-slow")
    assert done.returncode != 0
    assert "-m long" in done.stderr
