"""Operators against the specification's definitions, on all values of small widths."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from p4switch.backends.reference.operators import (
    binary_operation,
    cast_operation,
    unary_operation,
)
from p4switch.ir import BOOL, Bits, Varbit

UNSIGNED, SIGNED = Bits(4), Bits(4, signed=True)


def values(kind: Bits) -> range:
    half = 1 << kind.width >> 1
    return range(-half, half) if kind.signed else range(1 << kind.width)


def cut(kind: Bits, number: int) -> int:
    """The value of the type that is congruent to a number modulo 2^W."""
    return next(v for v in values(kind) if (v - number) % (1 << kind.width) == 0)


def nearest(kind: Bits, number: int) -> int:
    return min(values(kind), key=lambda v: abs(v - number))


@pytest.mark.parametrize("kind", [UNSIGNED, SIGNED, Bits(1), Bits(1, signed=True)], ids=str)
@pytest.mark.parametrize(
    ("sign", "exact", "into"),
    [
        ("+", lambda a, b: a + b, cut),
        ("-", lambda a, b: a - b, cut),
        ("*", lambda a, b: a * b, cut),
        ("|+|", lambda a, b: a + b, nearest),
        ("|-|", lambda a, b: a - b, nearest),
        ("&", lambda a, b: a & b, cut),
        ("|", lambda a, b: a | b, cut),
        ("^", lambda a, b: a ^ b, cut),
        ("<", lambda a, b: a < b, lambda _, truth: truth),
        (">=", lambda a, b: a >= b, lambda _, truth: truth),
        ("!=", lambda a, b: a != b, lambda _, truth: truth),
    ],
)
def test_operators_of_two_numbers(
    kind: Bits, sign: str, exact: Callable[[int, int], int], into: Callable[[Bits, int], int]
) -> None:
    operation = binary_operation(sign, kind, kind, kind)
    for a, b in product(values(kind), repeat=2):
        assert operation(a, b) == into(kind, exact(a, b)), (a, sign, b)


@pytest.mark.parametrize("kind", [UNSIGNED, SIGNED], ids=str)
def test_shifts_by_more_than_the_width(kind: Bits) -> None:
    left = binary_operation("<<", kind, Bits(64), kind)
    right = binary_operation(">>", kind, Bits(64), kind)
    for a in values(kind):
        for places in (0, 1, 3, 4, 5):
            assert left(a, places) == cut(kind, a * 2**places)
            assert right(a, places) == a // 2**places  # towards minus infinity: the sign moves in
        assert left(a, 1 << 60) == 0


def test_nothing_is_divided_by_zero() -> None:
    assert binary_operation("/", UNSIGNED, UNSIGNED, UNSIGNED)(7, 2) == 3
    assert binary_operation("%", UNSIGNED, UNSIGNED, UNSIGNED)(7, 2) == 1
    assert binary_operation("/", UNSIGNED, UNSIGNED, UNSIGNED)(7, 0) == 0
    assert binary_operation("%", UNSIGNED, UNSIGNED, UNSIGNED)(7, 0) == 0


def test_concatenation_has_the_sign_of_its_result() -> None:
    both = binary_operation("++", SIGNED, UNSIGNED, Bits(8, signed=True))
    assert both(-1, 0x2) == -0x100 + 0xF2
    assert binary_operation("++", UNSIGNED, SIGNED, Bits(8))(0x3, -1) == 0x3F


def test_operators_of_one_operand() -> None:
    assert unary_operation("!", BOOL)(False) is True
    for kind in (UNSIGNED, SIGNED):
        for a in values(kind):
            assert unary_operation("-", kind)(a) == cut(kind, -a)
            assert unary_operation("~", kind)(a) == cut(kind, -a - 1)


@pytest.mark.parametrize("source", [UNSIGNED, SIGNED], ids=str)
@pytest.mark.parametrize("target", [Bits(2), Bits(2, True), Bits(6), Bits(6, True), UNSIGNED])
def test_casts_keep_the_low_bits(source: Bits, target: Bits) -> None:
    cast = cast_operation(source, target) or (lambda a: a)
    for a in values(source):
        assert cast(a) == cut(target, a)


def test_casts_of_booleans() -> None:
    to_bool, from_bool = cast_operation(Bits(1), BOOL), cast_operation(BOOL, Bits(1))
    assert to_bool is not None
    assert from_bool is not None
    assert (to_bool(1), to_bool(0), from_bool(True)) == (True, False, 1)


def test_an_operator_that_a_type_lacks_is_refused() -> None:
    with pytest.raises(TypeError, match=r"operator \+ of"):
        binary_operation("+", Varbit(8), Varbit(8), Varbit(8))
