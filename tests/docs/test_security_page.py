"""docs/security.md: every test that it names is there, and every constant is as it says."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and "---" not in line
]


def functions(path: str) -> set[str]:
    """The functions that a file defines."""
    return {
        node.name
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.slow
def test_every_test_that_it_names_is_there() -> None:
    named = re.findall(r"`((?:p4switch/)?tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) >= 50
    missing = [f"{path}::{test}" for path, test in named if test not in functions(path)]
    assert not missing


def test_every_defence_has_a_test_and_every_gap_says_so() -> None:
    lines = [row for row in ROWS if len(row) == 3 and row[0] not in ("attempt", "what", "process")]
    attacks = [row for row in lines if "limit" not in row and "MOST" not in row[2]]
    attacks = [row for row in attacks if not row[2].startswith("`") or "::" in row[2]]
    assert len(attacks) >= 40
    for what, by, tests in attacks:
        assert bool(tests) != by.startswith(("nobody", "all of root's")), what


def test_every_bound_is_where_it_says() -> None:
    named = re.findall(r"`([\w/]+\.py)` ([A-Z_]+)((?:, [A-Z_]+)*)", PAGE)
    assert len(named) >= 12
    for path, first, others in named:
        text = (ROOT / path).read_text()
        for name in (first, *others.split(", ")[1:]):
            assert re.search(rf"^{name} = ", text, re.MULTILINE), f"{path}: {name}"
