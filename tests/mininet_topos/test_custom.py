"""`mn --custom mininet_topos/custom.py`, as people run it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.machine import PATIENCE
from tests.support.paths import ROOT

pytestmark = pytest.mark.network

CUSTOM = ROOT / "mininet_topos" / "custom.py"


def mn(topology: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = shutil.which("mn")
    if command is None:
        pytest.skip("Mininet's command mn is not installed")
    try:
        return subprocess.run(
            [command, "--custom", str(CUSTOM), "--topo", f"hopsum,{topology}", *options],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            env={**os.environ, **environment},
        )
    except subprocess.TimeoutExpired as hung:
        raise AssertionError(f"mn hangs; its last lines: {(hung.stderr or b'')[-500:]!r}") from hung


def test_every_host_reaches_every_other(tmp_path: Path) -> None:
    """Even with modules of another checkout on Python's path."""
    other = tmp_path / "hopsum"
    other.mkdir()
    (other / "__init__.py").write_text("raise ImportError('another checkout')")
    options = ["--switch", "p4switch", "--controller", "hopsum", "--test", "pingall"]
    done = mn("leaf-spine:2x1", *options, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "0% dropped" in done.stdout + done.stderr


def test_hosts_with_several_links_are_refused() -> None:
    done = mn("torus:2x2", "--test", "none")
    assert done.returncode != 0
    assert "torus:2x2: host h1 has 2 links, and `mn` sets no routes" in done.stderr + done.stdout
