"""Constants: folding of operators and casts, and expressions that must be constant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p4switch import ir
from p4switch.frontend.names.operands import describe
from p4switch.frontend.names.values import Operand, Value
from p4switch.frontend.types import types

if TYPE_CHECKING:
    from p4switch.frontend.names.compilation import Body
    from p4switch.frontend.syntax import ast
    from p4switch.position import Position

Scalar = int | bool | str
MAX_SHIFT = 1 << 16


def wrap(value: int, kind: types.Bits) -> int:
    """Reduce an integer to the values of a type."""
    value &= (1 << kind.width) - 1
    if kind.signed and value >> (kind.width - 1):
        value -= 1 << kind.width
    return value


def scalar(operand: Operand) -> Scalar | None:
    """Return the constant an operand is, or None."""
    return operand.constant if isinstance(operand, Value) else None


def is_known(operand: Operand) -> bool:
    """Return whether a value is known when compiling."""
    if not isinstance(operand, Value):
        return False
    return operand.constant is not None or known_expression(operand.expression)


def known_expression(expression: ir.Expression | None) -> bool:
    """Return whether an expression of the IR consists of constants."""
    if isinstance(expression, ir.Build):
        return all(known_expression(value) for value in expression.values)
    return isinstance(expression, (ir.Const, ir.Invalid))


def integer(body: Body, expression: ast.Expression, what: str) -> int:
    """Evaluate an expression that must be an integer known when compiling."""
    operand = body.compiler.rules.expression(body, expression)
    if isinstance(operand, Value) and isinstance(
        types.underlying(operand.type), (types.Bits, types.Int, types.Parameter)
    ):
        if operand.constant is not None:
            return int(operand.constant)
        raise body.error(expression.position, f"{what} must be known when compiling")
    raise body.error(expression.position, f"{what} must be an integer, not {describe(operand)}")


def unary(operator: str, value: Scalar, kind: types.Type) -> Scalar:
    """Fold `-`, `+`, `~` or `!`."""
    if operator == "!":
        return not value
    assert isinstance(value, int)
    result = {"-": -value, "+": value, "~": ~value}[operator]
    return wrap(result, kind) if isinstance(kind, types.Bits) else result


class FoldError(Exception):
    """An operation without a result, such as a division by zero."""


def binary(operator: str, left: Scalar, right: Scalar, kind: types.Type) -> Scalar:
    """Fold an operator on two constants; `kind` is the type of the left one.

    Raises FoldError where the language gives no result.
    """
    comparison = _compare(operator, left, right)
    if comparison is not None:
        return comparison
    assert isinstance(left, int) and isinstance(right, int)
    if operator in ("|+|", "|-|"):
        assert isinstance(kind, types.Bits)
        low = -(1 << (kind.width - 1)) if kind.signed else 0
        high = (1 << (kind.width - kind.signed)) - 1
        return max(low, min(high, left + right if operator == "|+|" else left - right))
    result = _arithmetic(operator, left, right)
    return wrap(result, kind) if isinstance(kind, types.Bits) else result


def _compare(operator: str, left: Scalar, right: Scalar) -> bool | None:
    if operator == "==":
        return left == right
    if operator == "!=":
        return left != right
    if operator == "&&":
        return bool(left and right)
    if operator == "||":
        return bool(left or right)
    if operator in ("<", "<=", ">", ">="):
        assert isinstance(left, int) and isinstance(right, int)
        return {
            "<": left < right,
            "<=": left <= right,
            ">": left > right,
            ">=": left >= right,
        }[operator]
    return None


def _arithmetic(operator: str, left: int, right: int) -> int:
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    if operator in ("/", "%"):
        if right == 0:
            raise FoldError("division by zero")
        if left < 0 or right < 0:
            raise FoldError(f"'{operator}' is not defined for negative numbers")
        return left // right if operator == "/" else left % right
    if operator == "&":
        return left & right
    if operator == "|":
        return left | right
    if operator == "^":
        return left ^ right
    if right < 0:
        raise FoldError("a shift by a negative number is not defined")
    if operator == "<<":
        if right > MAX_SHIFT:
            if left == 0:
                return 0
            raise FoldError(f"a shift by {right} is too far")
        return left << right
    assert operator == ">>", operator
    return left >> min(right, MAX_SHIFT)


def convert(value: Scalar, kind: types.Type, position: Position) -> Value:
    """Make a constant of a type out of a Python value; integers wrap."""
    base = types.underlying(kind)
    if isinstance(base, types.Bits):
        value = wrap(int(value), base)
    elif base is types.BOOL:
        value = bool(value)
    return Value(position, kind, None, value)
