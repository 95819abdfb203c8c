"""Decisions are dated records of one form, and short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT

DECISIONS = sorted((ROOT / "docs/decisions").glob("*.md"))
HEAD = re.compile(r"# \d{4}: .+\n\nDate: \d{4}-\d\d-\d\d\. Status: \w")
LABELS = ("**Context", "**Decision", "**Consequences")


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda path: path.stem[:4])
def test_a_decision_has_date_status_and_sections_in_order(decision: Path) -> None:
    text = decision.read_text()
    assert HEAD.match(text)
    places = [text.find(f"\n{label}") for label in LABELS]
    assert -1 not in places
    assert places == sorted(places)
    assert len(text.splitlines()) <= 80
