"""Pages whose commands bring up Mininet: they are run where the machine has what they need."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.documents import check_commands, emulates
from tests.support.paths import ROOT

pytestmark = [pytest.mark.network, pytest.mark.acceptance]

NEEDS: dict[str, tuple[str, ...]] = {
    "how-to/bmv2.md": ("simple_switch_grpc", "p4c"),
    "how-to/pytorch.md": ("torch", "sklearn"),
    "lessons/8-by-hand.md": ("scapy",),
}
"""By page: programs on PATH, or modules."""
DOCS = ROOT / "docs"


def test_all_lessons_that_emulate_are_here() -> None:
    lessons = (DOCS / "lessons").glob("*.md")
    emulating = {str(page.relative_to(DOCS)) for page in lessons if emulates(page)}
    assert emulating == {page for page in NEEDS if page.startswith("lessons/")}


@pytest.mark.parametrize("page", NEEDS)
def test_commands_print_what_the_page_shows(page: str, tmp_path: Path) -> None:
    missing = [need for need in NEEDS[page] if not (shutil.which(need) or find_spec(need))]
    if missing:
        pytest.skip(f"docs/{page} needs {', '.join(missing)}")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    check_commands(DOCS / page, tmp_path)
