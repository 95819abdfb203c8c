"""docs/p4runtime.md: each requirement names tests that exist, or says what is not supported."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "p4runtime.md").read_text()
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split(" | "))
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| requirement", "| ---"))
]
TEST = re.compile(r"`((?:\w+/)*test_\w+\.py)::(test_\w+)`")


@pytest.mark.parametrize("row", ROWS, ids=[row[0][:60] for row in ROWS])
def test_a_requirement_has_a_test_or_is_not_supported(row: tuple[str, ...]) -> None:
    _, answer = row
    named = TEST.findall(answer)
    assert named or answer.startswith("not supported"), answer
    assert answer.count("`test_") + answer.count("/test_") == len(named), answer
    for file, test in named:
        folder = ROOT / "tests" if "/" in file else ROOT / "tests" / "p4runtime"
        assert re.search(rf"^def {test}\(", (folder / file).read_text(), re.MULTILINE), test


def test_the_page_has_a_row_for_most_sections() -> None:
    assert len(ROWS) > 100
