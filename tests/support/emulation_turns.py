"""One emulation at a time on a machine, of any user."""

from __future__ import annotations

import os
from pathlib import Path

from mininet_topos.record import EmulationLock, EmulationUp, state_folder
from tests.support.machine import until
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
