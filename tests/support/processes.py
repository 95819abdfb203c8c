"""The processes that a test has started, by their command lines."""

from __future__ import annotations

import os
from pathlib import Path

MARK = "HOPSUM_TEST"
"""In the environment of every process that a test starts, directly or not."""


def processes(*words: str) -> list[int]:
    """Return the test's processes whose command lines have all these words."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                environment = (folder / "environ").read_bytes().split(b"\0")
                command = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark in environment and {word.encode() for word in words} <= set(command):
                found.append(int(folder.name))
    return sorted(found)


def process(*words: str) -> int:
    """Return the one of the test's processes whose command line has all these words."""
    found = processes(*words)
    assert len(found) == 1, f"processes {' '.join(words)}: {found}"
    return found[0]
