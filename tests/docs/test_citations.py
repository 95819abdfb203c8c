"""Docstrings link to the five documents, by headings of docs/references.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT

REFERENCES = (ROOT / "docs" / "references.md").read_text()
DOCUMENTS = set(re.findall(r"^### (\d{3})$", REFERENCES, re.MULTILINE))
# `[002][]`, or `[004 claim 5][004]`; and a number that is no part of another one.
LINK = re.compile(r"\[(\d{3})([^\]]*)\]\[(\d*)\]")
NUMBER = re.compile(r"(?<![\d.,])\b00\d\b(?![.,]?\d)")


def wrong_citations(text: str) -> list[str]:
    """Return citations of documents that are no links, or links to a heading that is not there."""
    wrong = [
        link[0]
        for link in LINK.finditer(text)
        if link[1] not in DOCUMENTS or link[3] != (link[1] if link[2] else "")
    ]
    return wrong + NUMBER.findall(LINK.sub("", text))


def docstrings(path: Path) -> Iterator[str]:
    """Yield the docstrings of a module, also those of attributes."""
    source = path.read_text()
    # Few modules have such a number at all.
    if not NUMBER.search(source):
        return
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("in its order ([002][]; [004 claims 1, 2][004])", []),
        ("in 0.001 s, 5,000 of them, after decision 0002", []),
        ("in its order (002)", ["002"]),
        ("as in document\n000, steps 1 to 3", ["000"]),
        ("[009][] and [003 claim 2][]", ["[009][]", "[003 claim 2][]"]),
        ("[001 S3][003]", ["[001 S3][003]"]),
    ],
)
def test_a_citation_is_a_link(text: str, wrong: list[str]) -> None:
    assert wrong_citations(text) == wrong


@pytest.mark.slow
def test_docstrings_cite_by_links() -> None:
    assert {"000", "001", "002", "003", "004"} == DOCUMENTS
    found = {
        f"{path.relative_to(ROOT)}: {wrong}"
        for path in ROOT.rglob("*.py")
        if not any(part.startswith(".") or part == "build" for part in path.relative_to(ROOT).parts)
        for text in docstrings(path)
        for wrong in wrong_citations(text)
    }
    assert not found
