"""The image of hopsum: its definition is linted; it is built where a Docker daemon is."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT


def test_the_dockerfile_has_no_warning() -> None:
    beside = Path(sys.executable).parent
    hadolint = shutil.which("hadolint", path=f"{beside}:/usr/local/bin:/usr/bin")
    if hadolint is None:
        pytest.skip("hadolint is not installed (`make test-tools` installs it)")
    done = subprocess.run([hadolint, "Dockerfile"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_environment_of_the_image_needs_nothing_more() -> None:
    """What the image runs is a target of the Makefile, and the checkout's own stays out."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    (target,) = (line.split()[2] for line in dockerfile.splitlines() if line.startswith("RUN make"))
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", target], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "pip install" in done.stdout
    assert ".venv" in (ROOT / ".dockerignore").read_text().splitlines()
