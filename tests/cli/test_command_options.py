"""Tables of commands, in narrow terminals and in pipes."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hopsum.cli.command_options import column_groups, make_table, parse_assignments
from hopsum.protocol.errors import InputError

OUTCOMES = [f"outcome_{number}" for number in range(30)]


def shown(columns: list[str], rows: list[list[object]], width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(make_table(columns, rows))
    return out.getvalue()


def test_names_are_whole_in_a_narrow_terminal() -> None:
    row: list[object] = ["a-job-with-a-long-name", "waits for a long time, and says why it does"]
    text = shown(["name", "why"], [row], 24)
    assert "…" not in text
    letters = "".join(line.split("│")[1].strip() for line in text.splitlines() if "│" in line)
    assert letters == "a-job-with-a-long-name"


def test_many_columns_become_several_tables_that_fit() -> None:
    rows: list[list[object]] = [["s1", "up", *range(30)], ["s2", "up", *range(30)]]
    columns = ["switch", "state", *OUTCOMES]
    groups = column_groups(columns, rows, 2, 80)
    assert [i for group in groups for i in group[2:]] == list(range(2, 32))
    for group in groups:
        assert group[:2] == [0, 1]
        text = shown([columns[i] for i in group], [[r[i] for i in group] for r in rows], 80)
        assert all(columns[i] in text for i in group)
        assert len([line for line in text.splitlines() if line.startswith("│")]) == len(rows)


@given(st.lists(st.text("x", min_size=1, max_size=30), min_size=3, max_size=12), st.integers(1, 90))
def test_every_column_is_shown_once_at_any_width(columns: list[str], width: int) -> None:
    groups = column_groups(columns, [[1] * len(columns)], 2, width)
    assert [i for group in groups for i in group[2:]] == list(range(2, len(columns)))
    assert all(group[:2] == [0, 1] and len(group) > 2 for group in groups)


def test_assignments_are_names_and_values() -> None:
    assert parse_assignments(["a=1", " b = x=y "]) == {"a": "1", "b": "x=y"}
    for wrong in (["a"], ["=1"], ["a="], ["a=1", "a=2"]):
        with pytest.raises(InputError, match=r"expected NAME=VALUE|given twice"):
            parse_assignments(wrong)
