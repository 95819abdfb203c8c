"""Operators: operand types (specification 1.2.5, section 8) and results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p4switch import ir
from p4switch.frontend.constants import constants, convert
from p4switch.frontend.names.operands import describe
from p4switch.frontend.names.values import InvalidValue, ListValue, Operand, Value
from p4switch.frontend.types import types
from p4switch.midend.visit import reads

if TYPE_CHECKING:
    from p4switch.frontend.names.compilation import Body
    from p4switch.position import Position

_EQUALITY = ("==", "!=")
_ORDER = ("<", "<=", ">", ">=")
_NEED_WIDTH = ("|+|", "|-|")
WIDEST = 4096
"""Bits of an `int` at run time."""


def unary(body: Body, operator: str, operand: Value, position: Position) -> Value:
    """Check `-`, `+`, `~` or `!`."""
    kind = operand.type
    if operator == "!":
        operand = convert.to_type(body, operand, types.BOOL, "the operand of '!'")
        kind = types.BOOL
    else:
        operand = _bits(operand)
        kind = operand.type
        fits = isinstance(kind, types.Bits) or (isinstance(kind, types.Int) and operator != "~")
        if not fits:
            raise body.error(position, f"'{operator}' needs a bit<> or int<>, not '{kind}'")
    if operand.constant is not None:
        return Value(position, kind, None, constants.unary(operator, operand.constant, kind))
    if operand.sized is not None:
        return Value(
            position,
            kind,
            sized=lambda bits: unary(
                body, operator, convert.to_type(body, operand, bits), position
            ),
        )
    if operator == "+":
        return Value(position, kind, operand.expression)
    expression = ir.Unary(body.lower(kind, position), operator, convert.lowered(body, operand))
    return Value(position, kind, expression)


def binary(
    body: Body, operator: str, left_operand: Operand, right_operand: Operand, position: Position
) -> Value:
    """Check an operator with two operands (all but the short-circuiting ones)."""
    if operator in _EQUALITY:
        return _equality(body, operator, left_operand, right_operand, position)
    left = _bits(convert.plain(body, left_operand))
    right = _bits(convert.plain(body, right_operand))
    if operator in ("/", "%"):
        for operand in (left, right):
            if isinstance(operand.type, types.Int) and int(operand.constant or 0) < 0:
                raise body.error(position, f"'{operator}' is not defined for negative numbers")
    if operator in ("<<", ">>"):
        return _shift(body, operator, left, right, position)
    if operator == "++":
        return _concatenate(body, left, right, position)
    left, right = _numeric(body, operator, left, right, position)
    kind = left.type
    _limits(body, operator, left, right, position)
    if operator not in _ORDER and (left.sized is not None or right.sized is not None):
        return _of_context(body, operator, left, right, position)
    if isinstance(kind, types.Int) and (left.constant is None or right.constant is None):
        return _of_integers(body, operator, left, right, position)
    result: types.Type = types.BOOL if operator in _ORDER else kind
    return _make(body, operator, left, right, result, position)


def _bits(operand: Value) -> Value:
    """Return a serialisable enum as its bits."""
    if isinstance(operand.type, types.Enum) and operand.type.underlying is not None:
        return convert.retyped(operand, operand.type.underlying)
    return operand


def _numeric(
    body: Body, operator: str, left: Value, right: Value, position: Position
) -> tuple[Value, Value]:
    if isinstance(left.type, types.Int) and isinstance(right.type, types.Bits):
        left = convert.to_type(body, left, right.type)
    elif isinstance(right.type, types.Int) and isinstance(left.type, types.Bits):
        right = convert.to_type(body, right, left.type)
    fits = types.is_numeric(left.type) or (
        # A newtype of bits has no arithmetic, but can be compared with its own type.
        operator in _ORDER and isinstance(left.type, types.NewType)
    )
    if not fits or not types.same(left.type, right.type):
        raise body.error(
            position,
            f"'{operator}' needs two numbers of one type, not '{left.type}' and '{right.type}'"
            + _cast_hint(left.type, right.type),
        )
    return left, right


def _cast_hint(left: types.Type, right: types.Type) -> str:
    if types.is_numeric(left) and types.is_numeric(right):
        return f"; cast one, as in '({left}) ...'"
    return ""


def _limits(body: Body, operator: str, left: Value, right: Value, position: Position) -> None:
    kind = left.type
    if operator in ("/", "%"):
        if isinstance(kind, types.Bits) and kind.signed:
            raise body.error(position, f"'{operator}' is not defined for signed numbers ('{kind}')")
        if right.constant == 0:
            raise body.error(position, "division by zero")
    elif operator in _NEED_WIDTH and isinstance(kind, types.Int):
        raise body.error(position, f"'{operator}' needs operands with a width, not 'int'")


def _make(
    body: Body, operator: str, left: Value, right: Value, result: types.Type, position: Position
) -> Value:
    if left.constant is not None and right.constant is not None:
        try:
            folded = constants.binary(operator, left.constant, right.constant, left.type)
        except constants.FoldError as problem:
            raise body.error(position, str(problem)) from None
        return Value(position, result, None, folded)
    expression = ir.Binary(
        body.lower(result, position),
        operator,
        convert.lowered(body, left),
        convert.lowered(body, right),
    )
    return Value(position, result, expression)


def _of_context(body: Body, operator: str, left: Value, right: Value, position: Position) -> Value:
    """Make an operation on `int` values of which one takes its width from the context."""

    def sized(bits: types.Bits) -> Value:
        sides = [convert.to_type(body, operand, bits) for operand in (left, right)]
        return binary(body, operator, sides[0], sides[1], position)

    return Value(position, types.INT, sized=sized)


def _of_integers(body: Body, operator: str, left: Value, right: Value, position: Position) -> Value:
    """Make an operation on `int` values of which one is known only at run time.

    Casts from `bit<>` and `int<>` make such values; each is held in as many bits as it may need,
    so that no operation loses any.
    """
    widths = [_bits_needed(body, left), _bits_needed(body, right)]
    if operator in ("+", "-"):
        width = max(widths) + 1
    elif operator == "*":
        width = sum(widths)
    elif operator in _ORDER or operator in (*_EQUALITY, "&", "|", "^"):
        width = max(widths)
    else:
        raise body.error(position, f"'{operator}' needs operands with a width, not 'int'")
    if width > WIDEST:
        raise body.error(position, f"this integer may need {width} bits; write casts to 'int<>'")
    kind = ir.Bits(width, True)
    operands = [
        ir.Const(kind, int(operand.constant))
        if operand.constant is not None
        else convert.widened(convert.lowered(body, operand), width)
        for operand in (left, right)
    ]
    if operator in _ORDER or operator in _EQUALITY:
        return Value(position, types.BOOL, ir.Binary(ir.BOOL, operator, *operands))
    return Value(position, types.INT, ir.Binary(kind, operator, *operands))


def _bits_needed(body: Body, operand: Value) -> int:
    if operand.constant is not None:
        number = int(operand.constant)
        return (number if number >= 0 else ~number).bit_length() + 1
    kind = convert.lowered(body, operand).type
    assert isinstance(kind, ir.Bits)
    return kind.width


def _shift(body: Body, operator: str, left: Value, right: Value, position: Position) -> Value:
    if not types.is_numeric(left.type) or not types.is_numeric(right.type):
        raise body.error(
            position, f"'{operator}' needs numbers, not '{left.type}' and '{right.type}'"
        )
    signed = isinstance(right.type, types.Int) or (
        isinstance(right.type, types.Bits) and right.type.signed
    )
    if signed and right.constant is None:
        raise body.error(position, f"the amount of a shift must be unsigned, not '{right.type}'")
    if right.constant is not None and int(right.constant) < 0:
        raise body.error(position, "a shift by a negative number is not defined")
    if isinstance(left.type, types.Int) and (left.sized is not None or right.constant is None):
        # Parameters without a direction count as constants, as in p4c.
        if not constants.is_known(right) and not _is_fixed(body, right):
            raise body.error(
                position,
                "the width of the left operand is not known; write one, as in '32w1 << x'",
            )
        return Value(
            position,
            types.INT,
            sized=lambda bits: _shift(
                body, operator, convert.to_type(body, left, bits), right, position
            ),
        )
    if right.constant is not None and not isinstance(left.type, types.Int):
        # Any amount that is at least the width gives the same; the smallest type will do.
        assert isinstance(left.type, types.Bits)
        amount = min(int(right.constant), left.type.width)
        width = max(amount.bit_length(), 1)
        right = Value(right.position, types.Bits(width), None, amount)
    return _make(body, operator, left, right, left.type, position)


def _is_fixed(body: Body, value: Value) -> bool:
    """Return whether a value is made of constants and parameters without a direction."""
    return (
        value.expression is not None and set(reads(value.expression)) <= body.compiler.directionless
    )


def _concatenate(body: Body, left: Value, right: Value, position: Position) -> Value:
    if left.type is types.STRING and right.type is types.STRING:
        if left.constant is None or right.constant is None:
            raise body.error(position, "strings must be known when compiling")
        return Value(position, types.STRING, None, str(left.constant) + str(right.constant))
    for operand in (left, right):
        if not isinstance(operand.type, types.Bits):
            what = " without a width" if isinstance(operand.type, types.Int) else ""
            raise body.error(
                operand.position, f"'++' needs bit<> or int<>, not '{operand.type}'{what}"
            )
    assert isinstance(left.type, types.Bits) and isinstance(right.type, types.Bits)
    result = types.Bits(left.type.width + right.type.width, left.type.signed)
    if left.constant is not None and right.constant is not None:
        low = int(right.constant) & ((1 << right.type.width) - 1)
        return constants.convert((int(left.constant) << right.type.width) | low, result, position)
    expression = ir.Binary(
        body.lower(result, position),
        "++",
        convert.lowered(body, left),
        convert.lowered(body, right),
    )
    return Value(position, result, expression)


def common(
    body: Body, left: Operand, right: Operand, position: Position, operator: str
) -> tuple[Value, Value]:
    """Bring two operands to one type, whichever of the two the other can become."""
    if isinstance(left, Value) and not isinstance(left.type, types.Int):
        converted = convert.implicit(body, right, left.type)
        if converted is not None:
            return left, converted
    if isinstance(right, Value):
        converted = convert.implicit(body, left, right.type)
        if converted is not None:
            return converted, right
    if isinstance(left, Value) and isinstance(right, Value):
        left_bits, right_bits = _bits(left), _bits(right)
        if left_bits is not left or right_bits is not right:
            return common(body, left_bits, right_bits, position, operator)
    if isinstance(left, ListValue) and isinstance(right, ListValue):
        plain = convert.plain(body, left)
        converted = convert.implicit(body, right, plain.type)
        if converted is not None:
            return plain, converted
    raise body.error(
        position,
        f"the operands of '{operator}' must have one type, not {describe(left)} and "
        f"{describe(right)}",
    )


def _equality(
    body: Body, operator: str, left_operand: Operand, right_operand: Operand, position: Position
) -> Value:
    if isinstance(left_operand, InvalidValue) and isinstance(right_operand, InvalidValue):
        raise body.error(position, "'{#}' has no type of its own; cast one of the two")
    left, right = common(body, left_operand, right_operand, position, operator)
    kind = types.resolved(left.type)
    if left.constant is not None and right.constant is not None:
        folded = constants.binary(operator, left.constant, right.constant, kind)
        return Value(position, types.BOOL, None, folded)
    if isinstance(kind, (types.Extern, types.BlockType, types.Parameter)) or kind in (
        types.VOID,
        types.STRING,
    ):
        raise body.error(position, f"values of type '{kind}' cannot be compared")
    if isinstance(kind, types.Int):
        return _of_integers(body, operator, left, right, position)
    expression = ir.Binary(
        ir.BOOL, operator, convert.lowered(body, left), convert.lowered(body, right)
    )
    return Value(position, types.BOOL, expression)
