"""Commands in documents: a `sh` block is run, and prints the lines of the `text` block below."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.machine import PATIENCE

BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def emulates(document: Path) -> bool:
    """Whether a document's commands bring up Mininet."""
    commands = [text for kind, text in BLOCK.findall(document.read_text()) if kind == "sh"]
    return any("--world mininet" in text or "hopsum cluster" in text for text in commands)


def check_commands(document: Path, folder: Path) -> None:
    """Run a document's commands in a folder, one block after the other, and compare."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "200"}
    blocks = BLOCK.findall(document.read_text())
    assert blocks
    assert [kind for kind, _ in blocks] == ["sh", "text"] * (len(blocks) // 2)
    for (_, commands), (_, expected) in zip(blocks[::2], blocks[1::2], strict=True):
        done = subprocess.run(
            ["bash", "-euc", commands],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        rest = _narrow(done.stdout)
        for line in _narrow(expected).splitlines():
            before, found, rest = rest.partition(line.strip())
            assert found, f"{line!r} does not come in {before}"


def _narrow(text: str) -> str:
    """As text with columns of no width: those of a table depend on figures the page leaves out."""
    return re.sub(" +", " ", text)
