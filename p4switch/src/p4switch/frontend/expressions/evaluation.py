"""The evaluation of expressions, in the order the language gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p4switch import ir
from p4switch.frontend.constants import convert
from p4switch.frontend.names.values import ListValue, Operand, Value
from p4switch.frontend.syntax import ast
from p4switch.frontend.types import types

if TYPE_CHECKING:
    from p4switch.frontend.names.compilation import Body


def evaluate(body: Body, expression: ast.Expression) -> Operand:
    """Check an expression; its side effects become statements of the body."""
    return body.compiler.rules.expression(body, expression)


def value(
    body: Body, expression: ast.Expression, target: types.Type | None = None, what: str = "value"
) -> Value:
    """Check an expression that must be a value, and convert it to a type if one is given."""
    operand = evaluate(body, expression)
    if target is None:
        return convert.plain(body, operand)
    return convert.to_type(body, operand, target, what)


def condition(body: Body, expression: ast.Expression, what: str = "the condition") -> Value:
    """Check an expression that must be a bool."""
    return value(body, expression, types.BOOL, what)


def is_stable(body: Body, expression: ir.Expression | None) -> bool:
    """Return whether no later statement can change what an expression gives."""
    if expression is None or isinstance(expression, (ir.Const, ir.Invalid)):
        return True
    if isinstance(expression, ir.Read):
        return expression.variable in body.compiler.temporaries
    if isinstance(expression, (ir.Field, ir.Slice)):
        return is_stable(body, expression.base)
    if isinstance(expression, (ir.Cast, ir.Unary)):
        return is_stable(body, expression.operand)
    if isinstance(expression, ir.Build):
        return all(is_stable(body, item) for item in expression.values)
    return False


def spill(body: Body, operand: Operand, mark: int) -> Operand:
    """Save a value in a temporary at an earlier place of the code.

    For an operand that was evaluated at `mark`, when code came after it that might change it.
    """
    if isinstance(operand, ListValue):
        elements = []
        for element in operand.elements:
            before = len(body.code)
            elements.append(spill(body, element, mark))
            mark += len(body.code) - before
        return ListValue(operand.position, elements, operand.names, operand.defaults)
    if not isinstance(operand, Value) or is_stable(body, operand.expression):
        return operand
    expression = operand.expression
    assert expression is not None
    saved = ir.Read(expression.type, body.temporary(expression.type))
    body.code.insert(mark, ir.Assign(saved, expression, position=operand.position))
    return Value(operand.position, operand.type, saved)


def freeze(body: Body, target: ir.Expression, mark: int | None = None) -> ir.Expression:
    """Evaluate what an l-value depends on once: its run-time indices go to temporaries."""
    if isinstance(target, ir.Read):
        return target
    if isinstance(target, (ir.Field, ir.Slice, ir.Element, ir.StackNext, ir.StackLast)):
        before = len(body.code)
        base = freeze(body, target.base, mark)
        if mark is not None:
            mark += len(body.code) - before
        if isinstance(target, ir.Element):
            index = target.index
            if not is_stable(body, index):
                saved = ir.Read(index.type, body.temporary(index.type))
                place = len(body.code) if mark is None else mark
                body.code.insert(place, ir.Assign(saved, index))
                index = saved
            if base is target.base and index is target.index:
                return target
            return ir.Element(target.type, base, index)
        if base is target.base:
            return target
        if isinstance(target, ir.Field):
            return ir.Field(target.type, base, target.name)
        if isinstance(target, ir.Slice):
            return ir.Slice(target.type, base, target.high, target.low)
        return type(target)(target.type, base)
    return target


def sequence(body: Body, items: list[ast.Expression]) -> list[Operand]:
    """Evaluate expressions from left to right, each unharmed by the side effects of later ones."""
    done: list[tuple[Operand, int]] = []
    for item in items:
        before = len(body.code)
        operand = evaluate(body, item)
        settle(body, done, before)
        done.append((operand, len(body.code)))
    return [operand for operand, _ in done]


def settle(body: Body, done: list[tuple[Operand, int]], before: int) -> None:
    """Spill the operands in `done`, each with its mark, if there is new code since `before`."""
    if len(body.code) == before:
        return
    shift = 0
    for index, (operand, mark) in enumerate(done):
        length = len(body.code)
        saved = spill(body, operand, mark + shift)
        shift += len(body.code) - length
        done[index] = (saved, mark + shift)
