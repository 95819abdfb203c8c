"""One emulation at a time on a machine, of any user."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from hopsum.mininet_topos.record import EmulationLock, EmulationUp, state_folder
from tests.support.machine import PATIENCE, until
from tests.support.processes import processes


def wait_for_turn() -> None:
    """Return when no emulation is up but of this test's own processes."""
    folder = state_folder()
    until(lambda: not _others_emulate(folder), "the end of another emulation")


def refused(said: str) -> bool:
    """Whether a command that is to emulate has found another emulation up, one that came first.

    `said`: what the command printed. Then it is `wait_for_turn` once more, and the command again.
    """
    return "another emulation is up on this machine" in said


def _others_emulate(folder: Path) -> bool:
    try:
        EmulationLock(folder).release()
    except EmulationUp:
        owner = (folder / "lock").read_text().strip()
        return owner not in map(str, (os.getpid(), *processes()))
    return False


def run_when_free(folder: Path, command: list[str]) -> str:
    """Standard output of a command that emulates, and must succeed."""
    while True:
        ended = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "XDG_RUNTIME_DIR": str(folder)},
        )
        if not refused(ended.stderr):
            assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
            return ended.stdout
        wait_for_turn()
