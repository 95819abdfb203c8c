"""Lessons, and other pages with commands: they are run, and print what the page says.

Pages whose commands bring up Mininet are in `test_mininet_pages`.
"""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from hopsum.cli.shell import shell_is_ready
from tests.support.documents import check_commands, emulates
from tests.support.paths import ROOT

LESSONS = sorted((ROOT / "docs" / "lessons").glob("*.md"))
IN_VIRTUAL_TIME = [lesson for lesson in LESSONS if not emulates(lesson)]
OTHERS = [
    ROOT / "docs" / name
    for name in (
        "captures.md",
        "concepts/virtual-time.md",
        "how-to/add-a-planner.md",
        "how-to/add-a-table.md",
        "how-to/own-topology.md",
    )
]


@pytest.mark.acceptance
@pytest.mark.parametrize("lesson", [*IN_VIRTUAL_TIME, *OTHERS], ids=lambda path: path.stem)
def test_commands_print_what_the_page_shows(lesson: Path, tmp_path: Path) -> None:
    if "tshark" in lesson.read_text() and shutil.which("tshark") is None:
        pytest.skip("tshark is not installed (`make test-tools` installs it)")
    if "hopsum shell" in lesson.read_text() and not shell_is_ready():
        pytest.skip("p4runtime-shell is not prepared: `hopsum shell --prepare`")
    check_commands(lesson, tmp_path)


def test_lessons_lead_on_to_each_other() -> None:
    for lesson, following in pairwise(LESSONS):
        assert f"]({following.name})" in lesson.read_text(), lesson.name
