"""Values as people write them."""

from __future__ import annotations

import pytest

from p4switch.literals import parse_number, parse_value


@pytest.mark.parametrize(
    ("text", "value"),
    [("17", 17), ("007", 7), ("0x1F", 31), ("0b101", 5), ("0o17", 15), ("-3", -3)],
)
def test_numbers(text: str, value: int) -> None:
    assert parse_number(text) == parse_value(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("10.0.0.1", 0x0A000001), ("::1", 1), ("02:00:00:00:00:aA", 0x0200000000AA)],
)
def test_addresses(text: str, value: int) -> None:
    assert parse_value(text) == value
    with pytest.raises(ValueError, match="invalid literal"):
        parse_number(text)


@pytest.mark.parametrize("text", ["", "x", "0x", "10.0.0", "02:00:00:00:00", "1.5"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_value(text)
