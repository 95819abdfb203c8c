"""`make` in a checkout whose virtual environment works no longer."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
AGAIN = "making it again"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the Makefile and an environment, as `make setup` leaves them."""
    folder = tmp_path / "checkout"
    (folder / "tools").mkdir(parents=True)
    for name in ("Makefile", "tools/environment-is-usable"):
        shutil.copy(ROOT / name, folder / name)
    for name in ("requirements.lock", "pyproject.toml"):
        (folder / name).touch()
    for name in ("p4switch/pyproject.toml", "src/hopsum/protocol/hopsum.proto"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).touch()
    environment = folder / ".venv"
    venv.create(environment)
    (environment / "bin/pip").write_text(f"#!{environment}/bin/python\n")
    site = Path(f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages")
    (environment / site / "pip").mkdir()
    (environment / site / "pip/__init__.py").touch()
    (environment / "ready").touch()
    return folder


def make(folder: Path) -> str:
    """Return what `make` would do to have the environment."""
    done = subprocess.run(
        ["make", "--dry-run", ".venv/ready"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_that_works_is_kept(checkout: Path) -> None:
    assert "up to date" in make(checkout)


def test_that_of_a_moved_checkout_is_made_again(checkout: Path) -> None:
    moved = checkout.rename(checkout.with_name("elsewhere"))
    assert AGAIN in make(moved)


def test_that_of_a_python_that_is_gone_is_made_again(checkout: Path) -> None:
    python = checkout / ".venv/bin/python"
    python.unlink()
    python.symlink_to("/nowhere/python3")
    assert AGAIN in make(checkout)


def test_that_of_an_older_python_is_made_again(checkout: Path) -> None:
    (library,) = (checkout / ".venv/lib").iterdir()
    library.rename(library.with_name("python3.1"))
    assert AGAIN in make(checkout)


def test_a_first_one_is_made(checkout: Path) -> None:
    shutil.rmtree(checkout / ".venv")
    assert AGAIN not in make(checkout)
    assert "-m venv" in make(checkout)
