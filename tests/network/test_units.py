"""Rates, sizes, times, counts and shares as people write them."""

from __future__ import annotations

import pytest

from hopsum.network.units import has_unit, parse_count, parse_rate, parse_share


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100M", 1e8),
        ("100Mbit", 1e8),
        ("100mbit", 1e8),
        ("100 Mbit/s", 1e8),
        ("1gbit", 1e9),
        ("1gbps", 1e9),
        ("2.5e1k", 25e3),
        ("100bit", 100.0),
        ("1e8", 1e8),
    ],
)
def test_rates(text: str, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["100m", "100mb", "-1M", "M", "", "1e999M", "0"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="rate"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [("1000", 1000), ("1e6", 10**6), ("1M", 10**6), ("0.5k", 500), ("0", 0), (" 7 ", 7)],
)
def test_counts(text: str, count: int) -> None:
    assert parse_count(text) == count


def test_no_digit_of_a_count_is_lost() -> None:
    assert parse_count("123456789012345678") == 123456789012345678


@pytest.mark.parametrize("text", ["1.5", "-1", "1e-3", "many", "", "1Mi", "1e999"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="whole number"):
        parse_count(text)


@pytest.mark.parametrize(
    ("text", "share"), [("0.01", 0.01), ("1%", 0.01), ("0", 0.0), ("3 %", 0.03)]
)
def test_shares(text: str, share: float) -> None:
    assert parse_share(text) == share


def test_a_number_alone_has_no_unit() -> None:
    assert not any(map(has_unit, ("100", " 1e8 ", ".5")))
    assert all(map(has_unit, ("100M", "1bit", "5ms")))
