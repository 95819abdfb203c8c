"""Lessons: their commands are run, one after the other, and print what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.machine import PATIENCE
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow
LESSONS = sorted((ROOT / "docs" / "lessons").glob("*.md"))
BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_the_commands_print_what_the_page_says(lesson: Path, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "200"}
    blocks = BLOCK.findall(lesson.read_text())
    assert [kind for kind, _ in blocks] == ["sh", "text"] * (len(blocks) // 2)
    for (_, commands), (_, expected) in zip(blocks[::2], blocks[1::2], strict=True):
        done = subprocess.run(
            ["bash", "-euc", commands],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        rest = done.stdout
        for line in expected.splitlines():
            before, found, rest = rest.partition(line.strip())
            assert found, f"{line!r} does not come in {before}"


def test_lessons_lead_on_to_each_other() -> None:
    for lesson, following in pairwise(LESSONS):
        assert f"]({following.name})" in lesson.read_text(), lesson.name
