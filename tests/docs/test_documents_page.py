"""docs/reference/documents.md: a line for each step, with modules and tests that exist."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "documents.md").read_text()
SECTIONS = {
    heading[:3]: [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| ") and "---" not in line and not line.startswith("| step |")
    ]
    for heading, text in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
}
STEPS = {
    "001": [
        "S1",
        "S2",
        *(f"S3.{n}" for n in range(1, 8)),
        "S4.1",
        "S4.2",
        *(f"S5.{n}" for n in range(1, 5)),
        "S6",
    ],
    "000": ["step 1", "step 2", "step 3", *(f"S{n}" for n in range(1, 12))],
    "002": ["1)", "1) a", "1) b", "2)"],
    "003": [f"claim {n}" for n in range(1, 10)],
    "004": [f"claim {n}" for n in range(1, 13)],
}


def steps_of(cell: str) -> set[str]:
    """The steps at the beginning of a line: `S5, S6, S9`, `S1 to S3`, `claims 5, 6`, `1) a`."""
    if found := re.match(r"(step|claim)s? (\d+(?:, \d+)*) ", cell):
        return {f"{found[1]} {number}" for number in found[2].split(", ")}
    if found := re.match(r"S(\d+) to S(\d+) ", cell):
        return {f"S{number}" for number in range(int(found[1]), int(found[2]) + 1)}
    if found := re.match(r"S[\d.]+(?:, S[\d.]+)* ", cell):
        return set(found[0].strip().split(", "))
    return set(re.findall(r"^\d\)(?: [ab]\b)?", cell))


@pytest.mark.parametrize("document", STEPS)
def test_each_step_has_a_line(document: str) -> None:
    named: set[str] = set()
    for row in SECTIONS[document]:
        assert len(row) == 4, row
        named |= steps_of(row[0])
        assert row[3], f"{row[0]}: says nothing of the difference"
    assert not set(STEPS[document]) - named


@pytest.mark.slow
def test_modules_and_tests_are_there() -> None:
    rows = [row for section in SECTIONS.values() for row in section]
    bare = [row[0] for row in rows if not (row[1] and row[2])]
    assert bare == ["claim 8 at least one processor is a GPU"]
    modules = re.findall(r"`([\w/]+\.(?:py|p4))`", PAGE)
    assert len(modules) >= 60
    missing = [path for path in modules if not (ROOT / path).is_file()]
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(tests) >= 55
    for path, name in tests:
        file = ROOT / path
        tree = ast.parse(file.read_text()) if file.is_file() else ast.Module([], [])
        if name not in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}:
            missing.append(f"{path}::{name}")
    assert not missing
