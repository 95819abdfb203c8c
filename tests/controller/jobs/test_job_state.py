"""States of jobs, as docs/cluster.md tells them."""

from __future__ import annotations

import re

from hopsum.controller.jobs.job_state import NEXT
from tests.support.paths import ROOT


def test_the_documented_transitions_are_the_allowed_ones() -> None:
    text = (ROOT / "docs/cluster.md").read_text()
    table = text[text.index("| state | what it means |") :].partition("\n\n")[0]
    documented = {}
    for row in table.splitlines()[2:]:
        state, _, following = (cell.strip() for cell in row.strip("|").split("|"))
        documented[state] = set(re.sub(r" \([^)]*\)", "", following).split(", "))
    assert documented == {
        state.value: {each.value for each in following}
        for state, following in NEXT.items()
        if following
    }
