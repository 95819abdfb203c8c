"""P4's operators on Python values.

Unsigned values are ints in 0..2^w-1, signed ones ints in -2^(w-1)..2^(w-1)-1; each operator gives a
value in the range of its type again. Sections are those of the P4_16 specification 1.2.5.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from p4switch.backends.reference.values import Value, bit_width, from_bits, is_object, to_bits, wrap
from p4switch.ir import Bits, Bool, Type

Operation = Callable[[Value, Value], Value]

COMPARISONS: dict[str, Operation] = {
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
"""Of numbers by value (8.6, 8.7), of Booleans (8.5), and of varbits with their width (8.10)."""

BITWISE: dict[str, Operation] = {"&": operator.and_, "|": operator.or_, "^": operator.xor}
"""Bitwise (8.6); Python's ints act as two's complement, so this holds for signed ones too."""

WRAPPING: dict[str, Operation] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
"""The exact result, truncated to the width (8.6: "computed modulo 2^W"; 8.7)."""


def binary_operation(sign: str, left: Type, right: Type, result: Type) -> Operation:
    """Return the function of an operator on operands of these types, except `&&` and `||`.

    Raises TypeError for an operator that operands of these types do not have.
    """
    if is_object(left):
        return _equality(sign)
    if sign in COMPARISONS:
        return COMPARISONS[sign]
    if not isinstance(left, Bits):
        raise TypeError(f"operator {sign} of {left}")
    if sign in BITWISE:
        return BITWISE[sign]
    if sign in WRAPPING:
        return _wrapping(left, WRAPPING[sign])
    match sign:
        case "|+|":
            return _saturating(left, operator.add)
        case "|-|":
            return _saturating(left, operator.sub)
        case "/":
            return lambda a, b: a // b if b else 0
        case "%":
            return lambda a, b: a % b if b else 0
        case "<<":
            return _shift_left(left)
        case ">>":
            return _shift_right
        case "++":
            return _concatenation(left, right, result)
    raise TypeError(f"operator {sign} of {left}")


def _equality(sign: str) -> Operation:
    """`==` and `!=` of structs (8.16), headers (8.17), stacks (8.18) and unions (8.19)."""
    if sign == "==":
        return lambda a, b: a.equals(b)
    return lambda a, b: not a.equals(b)


def _wrapping(kind: Bits, exact: Operation) -> Operation:
    if kind.signed:
        return lambda a, b: wrap(kind, exact(a, b))
    mask = (1 << kind.width) - 1
    return lambda a, b: exact(a, b) & mask


def _saturating(kind: Bits, exact: Operation) -> Operation:
    """`|+|` and `|-|` stop at the largest and smallest value of the type (8.6, 8.7)."""
    half = 1 << max(kind.width - 1, 0)
    low, high = (-half, half - 1) if kind.signed else (0, (1 << kind.width) - 1)
    return lambda a, b: min(max(exact(a, b), low), high)


def _shift_left(kind: Bits) -> Operation:
    """`<<`: zeros are shifted in; shifts by the width or more give 0 (8.9.2)."""
    width = kind.width
    return lambda a, b: wrap(kind, a << b) if b < width else 0


def _shift_right(left: int, right: int) -> int:
    """`>>`: zeros are shifted into unsigned values, the sign into signed ones (8.9.2)."""
    return left >> right


def _concatenation(left: Type, right: Type, result: Type) -> Operation:
    """`++`: the bits of the left operand above those of the right one (8.9.1)."""
    places = bit_width(right)
    return lambda a, b: from_bits(result, to_bits(left, a) << places | to_bits(right, b))


def unary_operation(sign: str, kind: Type) -> Callable[[Value], Value]:
    """Return the function of `!` (8.5), `~` or `-` (8.6, 8.7) on an operand of a type."""
    if sign == "!":
        return operator.not_
    if not isinstance(kind, Bits):
        raise TypeError(f"operator {sign} of {kind}")
    if sign == "~":
        return lambda a: wrap(kind, ~a)
    return lambda a: wrap(kind, -a)


def cast_operation(source: Type, target: Type) -> Callable[[Value], Value] | None:
    """Return the function of an explicit cast (8.11.1); None if it does not change the value.

    `bit` and `int` of one width keep their bits; a change of width truncates, or extends with zeros
    or the sign of the operand.
    """
    if isinstance(target, Bool):
        return None if isinstance(source, Bool) else lambda a: a != 0
    if isinstance(source, Bool):
        return lambda a: from_bits(target, int(a))
    assert isinstance(source, Bits)
    assert isinstance(target, Bits)
    fits = not source.signed and not target.signed and source.width <= target.width
    if source == target or fits:
        return None
    return lambda a: wrap(target, a)
