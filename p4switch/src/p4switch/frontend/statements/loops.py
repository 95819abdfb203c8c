"""The loops, lowered to the one kind the IR has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p4switch import ir
from p4switch.frontend.constants import convert
from p4switch.frontend.expressions import evaluation, resolve
from p4switch.frontend.names import scope
from p4switch.frontend.names.compilation import declare
from p4switch.frontend.names.values import Value
from p4switch.frontend.statements import bodies
from p4switch.frontend.syntax import ast
from p4switch.frontend.types import types

if TYPE_CHECKING:
    from p4switch.frontend.names.compilation import Body


def for_statement(body: Body, node: ast.Statement) -> None:
    """Lower `for (init; condition; update) body`."""
    assert isinstance(node, ast.For)
    with body.nested_scope():
        bodies.several(body, node.init)
        with body.capture() as condition_code:
            test = evaluation.condition(body, node.condition, "the condition of 'for'")
            condition = convert.lowered(body, test)
        with body.capture() as update:
            bodies.several(body, node.update)
        code = _body(body, node.body)
    body.emit(ir.Loop(condition_code, condition, code, update), node.position)


def _body(body: Body, node: ast.Statement) -> list[ir.Statement]:
    body.loops += 1
    try:
        return bodies.captured(body, node)
    finally:
        body.loops -= 1


def for_in(body: Body, node: ast.Statement) -> None:
    """Lower `for (type name in collection) body`."""
    assert isinstance(node, ast.ForIn)
    with body.nested_scope():
        declared = None
        if node.type is not None:
            declared = resolve.type_of(body.compiler, node.type, body.scope)
        else:
            entity = body.scope.find(node.name)
            if not isinstance(entity, scope.VariableEntity):
                raise body.error(node.position, f"'{node.name}' is not a variable")
            declared = entity.type
        if isinstance(node.collection, ast.RangeKeyset):
            _over_range(body, node, node.collection, declared)
        else:
            _over_elements(body, node, declared)


def _variable(body: Body, node: ast.ForIn, kind: types.Type) -> ir.Expression:
    """Give the loop's variable, declaring it if the loop does."""
    if node.type is None:
        entity = body.scope.find(node.name)
        assert isinstance(entity, scope.VariableEntity)
        if entity.read_only:
            raise body.error(
                node.position, f"'{node.name}' cannot be assigned to: {entity.read_only}"
            )
        return entity.expression
    variable = body.compiler.variable(
        f"{body.local_names}_{node.name}", body.lower(kind, node.position)
    )
    place = ir.Read(variable.type, variable)
    made = scope.VariableEntity(kind, place)
    made.position = node.position
    declare(body.compiler, body.scope, node.name, made)
    return place


def _counter(body: Body, kind: ir.Type, name: str) -> ir.Read:
    return ir.Read(kind, body.compiler.variable(f"{body.local_names}_{name}", kind))


def _over_range(body: Body, node: ast.ForIn, bounds: ast.RangeKeyset, kind: types.Type) -> None:
    low_operand, high_operand = evaluation.sequence(body, [bounds.low, bounds.high])
    low = convert.to_type(body, low_operand, kind, "the start of the range")
    high = convert.to_type(body, high_operand, kind, "the end of the range")
    if not isinstance(types.underlying(kind), types.Bits):
        raise body.error(node.position, f"a range needs numbers, not values of type '{kind}'")
    position = node.position
    place = _variable(body, node, kind)
    width = body.lower(kind, position)
    # The range includes its end, which may be the largest value of the type, so the count
    # must not decide by itself when to stop.
    count, more = _counter(body, width, "count"), _counter(body, ir.BOOL, "more")
    end = high
    if not evaluation.is_stable(body, high.expression):
        saved = ir.Read(width, body.temporary(width))
        body.emit(ir.Assign(saved, convert.lowered(body, high)), position)
        end = Value(position, kind, saved)
    last = convert.lowered(body, end)
    body.emit(ir.Assign(count, convert.lowered(body, low)), position)
    body.emit(ir.Assign(more, ir.Binary(ir.BOOL, "<=", count, last)), position)
    code: list[ir.Statement] = [ir.Assign(place, count, position=position)]
    code += _body(body, node.body)
    update: list[ir.Statement] = [
        ir.Assign(more, ir.Binary(ir.BOOL, "!=", count, last), position=position),
        ir.Assign(count, ir.Binary(width, "+", count, ir.Const(width, 1)), position=position),
    ]
    body.emit(ir.Loop([], more, code, update), position)


def _over_elements(body: Body, node: ast.ForIn, kind: types.Type) -> None:
    position = node.position
    collection = convert.plain(body, evaluation.evaluate(body, node.collection))
    place = _variable(body, node, kind)
    count = _counter(body, ir.BIT32, "count")
    expression = convert.lowered(body, collection)
    source = types.resolved(collection.type)
    if isinstance(source, types.Stack):
        if not types.same(source.element, kind):
            raise body.error(position, f"the elements are of type '{source.element}', not '{kind}'")
        length = source.size
        if not evaluation.is_stable(body, expression):
            saved = ir.Read(expression.type, body.temporary(expression.type))
            body.emit(ir.Assign(saved, expression), position)
            expression = saved
        element = ir.Element(body.lower(kind, position), expression, count)
        fetch: ir.Statement = ir.Assign(place, element, position=position)
    elif isinstance(expression, ir.Build) and isinstance(source, (types.ListOf, types.Tuple)):
        length = len(expression.values)
        if isinstance(source, types.ListOf):
            elements = [source.element] * length
        else:
            elements = list(source.elements)
        cases: list[tuple[tuple[int, ...], list[ir.Statement]]] = []
        for index, (item, item_kind) in enumerate(zip(expression.values, elements, strict=True)):
            constant = item.value if isinstance(item, ir.Const) else None
            held = Value(position, item_kind, None if constant is not None else item, constant)
            value = convert.to_type(body, held, kind, "an element")
            step = ir.Assign(place, convert.lowered(body, value), position=position)
            cases.append(((index,), [step]))
        fetch = ir.Switch(count, cases, [], position=position)
    else:
        raise body.error(
            node.collection.position,
            f"a loop runs over a range, a list or a stack, not over type '{collection.type}'",
        )
    body.emit(ir.Assign(count, ir.Const(ir.BIT32, 0)), position)
    code = [fetch, *_body(body, node.body)]
    condition = ir.Binary(ir.BOOL, "<", count, ir.Const(ir.BIT32, length))
    step = ir.Assign(
        count, ir.Binary(ir.BIT32, "+", count, ir.Const(ir.BIT32, 1)), position=position
    )
    body.emit(ir.Loop([], condition, code, [step]), position)
