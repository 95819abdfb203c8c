"""The language of constraints on entries, by p4-constraints' specification."""

from __future__ import annotations

import pytest

from p4switch.p4runtime.constraints import INT, PRIORITY, Constraint, ConstraintError, Form, Kind

KINDS = {
    "e": Kind("exact", 8),
    "hdr.ipv4.dst": Kind("ternary", 32),
    "o": Kind("optional", 16),
    "l": Kind("lpm", 32),
    "r": Kind("range", 16),
    "p": Kind("bit", 12),
    PRIORITY: INT,
}
VALUES: dict[str, Form] = {
    "e": (5,),
    "hdr.ipv4.dst": (0x0A000000, 0xFF000000),
    "o": (7, 0xFFFF),
    "l": (0x0A000000, 8),
    "r": (1, 0xFFFF),
    "p": 4095,
    PRIORITY: 900,
}


def violated(text: str, **values: Form) -> str | None:
    """The part of a constraint that does not hold."""
    found = Constraint(text, KINDS).violated(VALUES | values)
    return None if found is None else found[0]


@pytest.mark.parametrize(
    "text",
    [
        "true",
        "!false",
        "e == 5",
        "e::value == 0b101 && e != 0o6 && e == 0d5 && e <= 0x05",
        "hdr.ipv4.dst::mask == 0xff000000; hdr.ipv4.dst::value == ipv4('10.0.0.0');",
        "hdr.ipv4.dst != ipv4('10.0.0.0')",  # Not exact.
        "o == 7 && o::mask == -1",  # -1 has the width of the mask.
        "l::prefix_length >= 8 && -l::prefix_length == -8",
        "l != 0x0a000000",  # Shorter than the number, which is a /32.
        "r::low == 1 && r::high == 65535; r != 1",
        "p == -1",
        "::priority == 900",
        "e == 6 -> false",
        "(e == 5 -> true) && (false || true)",
        "true || false && false",  # `&&` binds more strongly.
        "false -> false || false;",
        "e::value < mac('00:00:00:00:00:06') && hdr.ipv4.dst::value > ipv6('::9')",
        "// only a comment before it\n /* and\n another */ true;",
        "(true;)",
        "e == 261",  # Modulo 2**8.
    ],
)
def test_what_holds(text: str) -> None:
    assert violated(text) is None


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("false", "false"),
        ("true; e == 6", "e == 6"),
        ("(e == 5 && (o == 8 && p == 1)); true", "o == 8"),
        ("e == 5 ->  // comment\n  o::mask\n == 0;", "e == 5 -> o::mask == 0"),
        ("::priority < 10", "::priority < 10"),
        ("hdr.ipv4.dst == 0x0a000000", "hdr.ipv4.dst == 0x0a000000"),
    ],
)
def test_the_first_part_that_does_not_hold(text: str, part: str) -> None:
    assert violated(text) == part


def test_names_of_the_part() -> None:
    found = Constraint("true; e == 6 || ::priority == 1", KINDS).violated(VALUES)
    assert found is not None
    assert found[1] == {"e", PRIORITY}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1 of the constraint: expected a value, found 'the end'"),
        ("e", "expected a value of type bool, not exact<8>"),
        ("true true", "expected the end, found 'true'"),
        ("\n x == 1", "line 2 of the constraint: nothing is called 'x'; there are e, hdr.ipv4.dst"),
        ("e == 1 == 2", "'==' follows '=='"),
        ("true -> true -> true", "'->' follows '->'"),
        ("e::mask == 1", "a value of type exact<8> has no 'mask'"),
        ("hdr.ipv4.dst < 5", "values of type ternary<32> have no order"),
        ("e == p", "cannot compare exact<8> and bit<12>"),
        ("e == true", "cannot compare exact<8> and bool"),
        ("e == 1 && 1", "expected a value of type bool, not int"),
        ("!1", "expected a value of type bool, not int"),
        ("-p == 1", "expected a value of type int, not bit<12>"),
        ("::size == 1", "entries have no attribute 'size'"),
        ("hdr.ipv4.dst == ipv4('10.0.0')", "no address"),
        ("e == mac('1:2:3:4:5:6')", "'1:2:3:4:5:6' is no MAC address"),
        ("e == $", "unexpected '$'"),
        ("(true", "expected )"),
    ],
)
def test_what_is_no_constraint(text: str, message: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        Constraint(text, KINDS)
    assert message in str(caught.value)
