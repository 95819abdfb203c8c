"""The commands of docs/quickstart.md, as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

BLOCKS = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "quickstart.md").read_text(), re.DOTALL)


@pytest.mark.slow
def test_commands_before_run_work(tmp_path: Path) -> None:
    """Those that need no interfaces and no running switch, which have tests of their own."""
    program = "p4switch demo --source > router.p4\n"
    alone = [b for b in BLOCKS if "p4switch run" not in b and "p4switch cli" not in b]
    script = "set -e\n" + program + "".join(alone)
    assert script.count("p4switch") == 4
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "sent: port 4" in done.stdout
    assert "router.stf: passed" in done.stdout
    assert (tmp_path / "router.p4info.txtpb").exists()
