from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4switch.frontend.source.lexer import (
    END,
    KEYWORDS,
    NEWLINE,
    OTHER,
    WORD_KIND,
    decode_integer,
    describe,
    scan,
)
from p4switch.literals import decode_string


def words(text: str) -> list[str]:
    """Return the texts of a text's tokens."""
    return [token[1] for token in scan(text)[:-1]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a|+|b|-|c", ["a", "|+|", "b", "|-|", "c"]),
        ("a|+|=b|-|=c", ["a", "|+|=", "b", "|-|=", "c"]),
        ("a&&&b&&c&d", ["a", "&&&", "b", "&&", "c", "&", "d"]),
        ("1..2...3.x", ["1", "..", "2", "...", "3", ".", "x"]),
        ("a<<=1>>=2>>3>=4", ["a", "<<=", "1", ">>=", "2", ">>", "3", ">=", "4"]),
        ("a++b+-c", ["a", "++", "b", "+", "-", "c"]),
        ("{#}{ # }", ["{#}", "{", "#", "}"]),
        ("x!=y==!z~w^v", ["x", "!=", "y", "==", "!", "z", "~", "w", "^", "v"]),
        ("_ _a a_", ["_", "_a", "a_"]),
        ("8w0xFF 4s-1", ["8w0xFF", "4s", "-", "1"]),
        ('"a\\"b" "c//d" "\\\\"', ['"a\\"b"', '"c//d"', '"\\\\"']),
        ("bi/**/t a//b\nc", ["bi", "t", "a", "\n", "c"]),
        ("/* a * / /* b **/c", ["c"]),
        ("@pragma @pragmatic", ["@pragma", "@", "pragmatic"]),
        ("$ ' \\", ["$", "'", "\\"]),
    ],
)
def test_longest_token_wins(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_tokens_know_their_place_and_the_space_before() -> None:
    assert scan("a  b\n/**/c") == [
        ("IDENTIFIER", "a", False, 0),
        ("IDENTIFIER", "b", True, 3),
        (NEWLINE, "\n", False, 4),
        ("IDENTIFIER", "c", True, 9),
        (END, "", False, 10),
    ]


def test_invalid_tokens_are_left_to_the_preprocessor() -> None:
    assert scan('x "open\ny')[1][:2] == (OTHER, '"')
    assert scan("x /* open\ny")[1][:2] == (OTHER, "/* open\ny")


def test_keywords() -> None:
    assert len(KEYWORDS) == 49
    assert WORD_KIND["value_set"] == "value_set"
    assert "exact" not in WORD_KIND


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", (0, None, False)),
        ("0377", (377, None, False)),
        ("1_000", (1000, None, False)),
        ("0xFf_0", (0xFF0, None, False)),
        ("0b_1010_1010", (0xAA, None, False)),
        ("0o17", (15, None, False)),
        ("0D9", (9, None, False)),
        ("32w255", (255, 32, False)),
        ("32w0d255", (255, 32, False)),
        ("32s0xFF", (255, 32, True)),
        ("16w0377", (377, 16, False)),
        ("16w0o377", (255, 16, False)),
        ("8s0b1010_1010", (170, 8, True)),
        ("1w1", (1, 1, False)),
    ],
)
def test_integer_literals_of_the_specification(
    text: str, value: tuple[int, int | None, bool]
) -> None:
    assert decode_integer(text) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8w", "malformed integer literal '8w'; expected digits after"),
        ("12abc", "malformed integer literal '12abc'"),
        ("0x", "malformed integer literal '0x'"),
        ("0x_", "expected digits of base 16"),
        ("0b12", "malformed integer literal '0b12'; expected digits of base 2"),
        ("0o8", "expected digits of base 8"),
        ("8w_1", "malformed integer literal '8w_1'"),
        ("1_0w1", "malformed integer literal '1_0w1'"),
        ("9999999999w1", "width 9999999999 of integer literal is too large"),
        ("9" * 5000, "integer literal of 5000 digits is too long"),
    ],
)
def test_malformed_integer_literals(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match="literal") as caught:
        decode_integer(text)
    assert expected in str(caught.value)


_BASES = {"0x": "{:x}", "0X": "{:X}", "0o": "{:o}", "0b": "{:b}", "0d": "{:d}", "": "{:d}"}


@given(
    st.integers(0, 1 << 200),
    st.sampled_from(sorted(_BASES)),
    st.one_of(st.none(), st.tuples(st.integers(1, 4096), st.booleans())),
    st.lists(st.integers(1, 60)),
)
def test_integer_literals_round_trip(
    value: int, base: str, width: tuple[int, bool] | None, underscores: list[int]
) -> None:
    digits = _BASES[base].format(value)
    for place in underscores:
        if place <= len(digits):
            digits = digits[:place] + "_" + digits[place:]
    prefix = "" if width is None else f"{width[0]}{'s' if width[1] else 'w'}"
    text = prefix + base + digits
    assert words(text) == [text]
    expected = (value, None, False) if width is None else (value, *width)
    assert decode_integer(text) == expected


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"])))
def test_strings_round_trip(value: str) -> None:
    text = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    assert words(text) == [text]
    assert decode_string(text) == value


def test_string_escapes() -> None:
    assert decode_string(r'"a\tb\n\\n\"\q"') == 'a\tb\n\\n"\\q'


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("IDENTIFIER", "x", "identifier 'x'"),
        ("INTEGER", "8w1", "integer 8w1"),
        ("STRING", '"s"', 'string "s"'),
        ("table", "table", "keyword 'table'"),
        ("_", "_", "'_'"),
        (";", ";", "';'"),
        (OTHER, "$", "'$'"),
        (END, "", "end of file"),
    ],
)
def test_tokens_as_errors_name_them(kind: str, text: str, expected: str) -> None:
    assert describe(kind, text) == expected
