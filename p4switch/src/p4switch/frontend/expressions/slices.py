"""Slices: `[high:low]` and `[low +: width]`, read and written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p4switch import ir
from p4switch.frontend.constants import constants, convert
from p4switch.frontend.expressions import evaluation, operators
from p4switch.frontend.names.values import Operand, Value
from p4switch.frontend.syntax import ast
from p4switch.frontend.types import types

if TYPE_CHECKING:
    from p4switch.frontend.names.compilation import Body
    from p4switch.position import Position

RUN_TIME_BOUND = "it is a slice whose place is known at run time only; assign to it with '='"


def constant(body: Body, node: ast.Expression) -> Operand:
    """Check `base[high:low]`."""
    assert isinstance(node, ast.Slice)
    base = convert.plain(body, evaluation.evaluate(body, node.base))
    high = constants.integer(body, node.high, "the upper bound of a slice")
    low = constants.integer(body, node.low, "the lower bound of a slice")
    return _take(body, base, high, low, node.position)


def _take(body: Body, base: Value, high: int, low: int, position: Position) -> Value:
    kind = types.underlying(base.type)
    if isinstance(kind, types.Int) and base.constant is not None:
        kind = types.Bits(max(high + 1, 1))
    elif not isinstance(kind, types.Bits):
        raise body.error(position, f"only bit<> and int<> can be sliced, not '{base.type}'")
    if low < 0 or high < low:
        raise body.error(
            position, f"slice [{high}:{low}] is wrong; write [high:low] with high >= low >= 0"
        )
    if high >= kind.width:
        raise body.error(
            position, f"bit {high} does not exist; '{base.type}' has {kind.width} bits"
        )
    result = types.Bits(high - low + 1)
    if base.constant is not None:
        return constants.convert(int(base.constant) >> low, result, position)
    expression = ir.Slice(body.lower(result, position), convert.lowered(body, base), high, low)
    return Value(position, result, expression, None, base.read_only)


def plus(body: Body, node: ast.Expression) -> Operand:
    """Check `base[low +: width]` where it is read, or where it is a constant slice."""
    assert isinstance(node, ast.PlusSlice)
    operands = evaluation.sequence(body, [node.base, node.low])
    base, low = (convert.plain(body, operand) for operand in operands)
    width = constants.integer(body, node.width, "the width of a slice")
    if width <= 0:
        raise body.error(node.width.position, "the width of a slice must be positive")
    if low.constant is not None:
        return _take(body, base, int(low.constant) + width - 1, int(low.constant), node.position)
    shifted = operators.binary(body, ">>", base, low, node.position)
    result = _take(body, shifted, width - 1, 0, node.position)
    result.read_only = RUN_TIME_BOUND
    return result


def assign(body: Body, node: ast.PlusSlice, target: Value, value: Value) -> None:
    """Write to `base[low +: width]`, `low` known at run time.

    `target` is the base as an l-value; bits beyond it are not written.
    """
    low = convert.plain(body, evaluation.evaluate(body, node.low))
    kind = target.type
    if not isinstance(kind, types.Bits) or not isinstance(value.type, types.Bits):
        raise body.error(node.position, f"only bit<> and int<> can be sliced, not '{kind}'")
    ones = constants.convert((1 << value.type.width) - 1, kind, node.position)
    widened = convert.explicit(
        body,
        convert.explicit(body, value, types.Bits(kind.width), node.position),
        kind,
        node.position,
    )
    position = node.position
    hole = operators.unary(body, "~", operators.binary(body, "<<", ones, low, position), position)
    kept = operators.binary(body, "&", target, hole, position)
    moved = operators.binary(body, "<<", widened, low, position)
    result = operators.binary(body, "|", kept, moved, position)
    assert target.expression is not None
    body.emit(ir.Assign(target.expression, convert.lowered(body, result)), position)
