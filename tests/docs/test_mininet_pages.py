"""Pages whose commands bring up Mininet: they are run where the machine has what they need."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.documents import check_commands
from tests.support.paths import ROOT

pytestmark = [pytest.mark.network, pytest.mark.long]

NEEDS = {"bmv2": ("simple_switch_grpc", "p4c"), "pytorch": ("torch", "sklearn")}
"""By page: programs on PATH, or modules."""


@pytest.mark.parametrize("page", NEEDS)
def test_commands_print_what_the_page_shows(page: str, tmp_path: Path) -> None:
    missing = [need for need in NEEDS[page] if not (shutil.which(need) or find_spec(need))]
    if missing:
        pytest.skip(f"docs/how-to/{page}.md needs {', '.join(missing)}")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    check_commands(ROOT / "docs" / "how-to" / f"{page}.md", tmp_path)
