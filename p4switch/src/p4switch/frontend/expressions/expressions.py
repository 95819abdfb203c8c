"""Expressions: checked, folded, and lowered with their side effects put into statements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p4switch import ir
from p4switch.frontend.constants import constants, convert
from p4switch.frontend.expressions import calls, evaluation, operators, resolve, slices
from p4switch.frontend.expressions.builtins import SIZE_METHODS
from p4switch.frontend.names import scope
from p4switch.frontend.names.compilation import FieldUse, suggestion
from p4switch.frontend.names.operands import (
    ActionRun,
    ApplyResult,
    EntityOperand,
    FunctionsOperand,
    MethodOperand,
    describe,
)
from p4switch.frontend.names.values import (
    DefaultValue,
    DontCareValue,
    InvalidValue,
    ListValue,
    Operand,
    TypeOperand,
    Value,
)
from p4switch.frontend.syntax import ast
from p4switch.frontend.types import types

if TYPE_CHECKING:
    from collections.abc import Callable

    from p4switch.frontend.names.compilation import Body
    from p4switch.position import Position

_HEADER_METHODS = frozenset({"isValid", "setValid", "setInvalid"})
_STACK_METHODS = frozenset({"push_front", "pop_front"})


def evaluate(body: Body, expression: ast.Expression) -> Operand:
    """Check an expression; its side effects become statements of the body."""
    handler = _HANDLERS.get(type(expression))
    if handler is None:
        raise body.error(
            expression.position,
            "this can only be written in the key sets of a select, a switch or a table's entries",
        )
    return handler(body, expression)


# --- Atoms -----------------------------------------------------------------------------------


def _int(body: Body, node: ast.Expression) -> Operand:
    assert isinstance(node, ast.IntLiteral)
    if node.width is None:
        return Value(node.position, types.INT, None, node.value)
    if node.width == 0 and node.signed:
        raise body.error(node.position, "int<0> has no room for its sign")
    kind = types.Bits(node.width, node.signed)
    value = constants.wrap(node.value, kind)
    if value != node.value:
        body.compiler.warn(node.position, f"{node.value} does not fit '{kind}': it is {value} here")
    return Value(node.position, kind, None, value)


def _bool(body: Body, node: ast.Expression) -> Operand:
    assert isinstance(node, ast.BoolLiteral)
    return Value(node.position, types.BOOL, None, node.value)


def _string(body: Body, node: ast.Expression) -> Operand:
    assert isinstance(node, ast.StringLiteral)
    return Value(node.position, types.STRING, None, node.value)


def _list(body: Body, node: ast.Expression) -> Operand:
    assert isinstance(node, ast.ListExpression)
    return ListValue(node.position, evaluation.sequence(body, node.elements), None, node.defaults)


def _record(body: Body, node: ast.Expression) -> Operand:
    assert isinstance(node, ast.RecordExpression)
    elements = evaluation.sequence(body, list(node.fields.values()))
    return ListValue(node.position, elements, list(node.fields), node.defaults)


def _invalid(body: Body, node: ast.Expression) -> Operand:
    return InvalidValue(node.position)


def _dots(body: Body, node: ast.Expression) -> Operand:
    return DefaultValue(node.position)


def _dont_care(body: Body, node: ast.Expression) -> Operand:
    return DontCareValue(node.position)


def _name(body: Body, node: ast.Expression) -> Operand:
    assert isinstance(node, ast.Name)
    where = body.scope.top if node.absolute else body.scope
    entity = where.find(node.name)
    if entity is None and node.name in body.compiler.match_kinds:
        return Value(node.position, types.MATCH_KIND, None, node.name)
    if entity is None:
        raise body.error(
            node.position,
            f"nothing is called '{node.name}' here{suggestion(node.name, where.visible())}",
        )
    body.compiler.symbols.uses[node.position] = node.name, entity
    return of_entity(entity, node.name, node.position)


def of_entity(entity: scope.Entity, name: str, position: Position) -> Operand:
    """Convert a name's meaning into an operand."""
    if isinstance(entity, scope.VariableEntity):
        return Value(position, entity.type, entity.expression, None, entity.read_only)
    if isinstance(entity, scope.ConstantEntity):
        found = entity.value
        if isinstance(found, Value):
            return Value(position, found.type, found.expression, found.constant)
        return found
    if isinstance(entity, scope.TypeEntity):
        return TypeOperand(position, entity.type)
    if isinstance(entity, scope.FunctionEntity):
        return FunctionsOperand(position, entity, name)
    return EntityOperand(position, entity, name)


def _type(body: Body, node: ast.Expression) -> Operand:
    assert isinstance(node, ast.TypeExpression)
    if isinstance(node.type, ast.NamedType):
        return _name(body, ast.Name(node.position, node.type.name, node.type.absolute))
    return TypeOperand(node.position, resolve.type_of(body.compiler, node.type, body.scope))


def _this(body: Body, node: ast.Expression) -> Operand:
    raise body.compiler.unsupported(node.position, "'this' is not supported")


# --- Members and elements ---------------------------------------------------------------------


def _member(body: Body, node: ast.Expression) -> Operand:
    assert isinstance(node, ast.Member)
    base = evaluation.evaluate(body, node.base)
    if isinstance(base, ListValue):
        base = convert.plain(body, base)
    if isinstance(base, Value):
        return _member_of_value(body, node, base)
    if isinstance(base, TypeOperand):
        return _member_of_type(body, node, base)
    if isinstance(base, ApplyResult):
        return _member_of_apply(body, node, base)
    if isinstance(base, EntityOperand):
        return MethodOperand(node.position, base, node.name)
    raise body.error(node.position, f"{describe(base)} has no member '{node.name}'")


def _member_of_value(body: Body, node: ast.Member, base: Value) -> Operand:
    kind = types.resolved(base.type)
    name = node.name
    if isinstance(kind, types.StructLike):
        item = kind.fields.get(name)
        if item is not None:
            body.compiler.symbols.uses[node.at] = name, FieldUse(kind, item.type)
            found = convert.part(body, base, name, item.type)
            found.position = node.position
            return found
        if kind.kind != "struct" and name in _HEADER_METHODS:
            return MethodOperand(node.position, base, name)
    elif isinstance(kind, types.Stack):
        found_member = _member_of_stack(body, node, base, kind)
        if found_member is not None:
            return found_member
    if name in SIZE_METHODS:
        return MethodOperand(node.position, base, name)
    if isinstance(kind, types.StructLike):
        raise body.error(
            node.position,
            f"'{kind}' has no field '{name}'{suggestion(name, iter(kind.fields))}",
        )
    raise body.error(node.position, f"a value of type '{kind}' has no member '{name}'")


def _member_of_stack(
    body: Body, node: ast.Member, base: Value, kind: types.Stack
) -> Operand | None:
    name, position = node.name, node.position
    if name in _STACK_METHODS:
        return MethodOperand(position, base, name)
    if name == "size":
        return Value(position, types.BIT32, None, kind.size)
    if name not in ("next", "last", "lastIndex"):
        return None
    if body.kind not in ("parser", "function"):
        raise body.error(position, f"'{name}' of a stack can only be used in a parser")
    expression = convert.lowered(body, base)
    if name == "lastIndex":
        return Value(position, types.BIT32, ir.StackLastIndex(ir.BIT32, expression))
    maker = ir.StackNext if name == "next" else ir.StackLast
    element = body.lower(kind.element, position)
    return Value(position, kind.element, maker(element, expression), None, base.read_only)


def _member_of_type(body: Body, node: ast.Member, base: TypeOperand) -> Operand:
    kind = types.resolved(base.type)
    if isinstance(kind, types.Enum) and node.name in kind.members:
        return Value(node.position, kind, None, kind.members[node.name])
    if kind is types.ERROR:
        number = body.compiler.errors.get(node.name)
        if number is None:
            known = suggestion(node.name, iter(body.compiler.errors))
            raise body.error(node.position, f"no error is called '{node.name}'{known}")
        return Value(node.position, kind, None, number)
    if node.name in SIZE_METHODS or (isinstance(kind, types.BlockType) and node.name == "apply"):
        return MethodOperand(node.position, base, node.name)
    if isinstance(kind, types.Enum):
        raise body.error(
            node.position,
            f"enum '{kind}' has no member '{node.name}'{suggestion(node.name, iter(kind.members))}",
        )
    raise body.error(node.position, f"the type '{kind}' has no member '{node.name}'")


def _member_of_apply(body: Body, node: ast.Member, base: ApplyResult) -> Operand:
    statement, position = base.statement, node.position
    if node.name in ("hit", "miss"):
        if statement.hit is None:
            statement.hit = body.temporary(ir.BOOL)
        hit: ir.Expression = ir.Read(ir.BOOL, statement.hit)
        if node.name == "miss":
            hit = ir.Unary(ir.BOOL, "!", hit)
        return Value(position, types.BOOL, hit)
    if node.name == "action_run":
        if statement.action_run is None:
            statement.action_run = body.temporary(ir.BIT32)
        return ActionRun(position, ir.Read(ir.BIT32, statement.action_run), base.entity)
    raise body.error(
        position, f"a table's apply has 'hit', 'miss' and 'action_run', not '{node.name}'"
    )


def _index(body: Body, node: ast.Expression) -> Operand:
    assert isinstance(node, ast.Index)
    base = convert.plain(body, evaluation.evaluate(body, node.base))
    mark = len(body.code)
    index = convert.plain(body, evaluation.evaluate(body, node.index))
    if len(body.code) > mark and base.read_only is None:
        saved = evaluation.spill(body, base, mark)
        assert isinstance(saved, Value)
        base = saved
    kind = types.resolved(base.type)
    bare = types.underlying(index.type)
    if not isinstance(bare, (types.Int, types.Bits)):
        raise body.error(
            node.index.position, f"an index must be an integer, not of type '{index.type}'"
        )
    if isinstance(kind, types.Tuple):
        return _tuple_element(body, node, base, kind, index)
    if not isinstance(kind, types.Stack):
        raise body.error(node.position, f"only stacks and tuples have elements, not type '{kind}'")
    if index.constant is not None:
        number = int(index.constant)
        if not 0 <= number < kind.size:
            raise body.error(
                node.index.position,
                f"index {number} is outside the stack, which has {kind.size} elements",
            )
        place: ir.Expression = ir.Const(ir.BIT32, number)
    else:
        place = convert.lowered(body, index)
    element = body.lower(kind.element, node.position)
    expression = ir.Element(element, convert.lowered(body, base), place)
    return Value(node.position, kind.element, expression, None, base.read_only)


def _tuple_element(
    body: Body, node: ast.Index, base: Value, kind: types.Tuple, index: Value
) -> Operand:
    if index.constant is None:
        raise body.error(node.index.position, "the index of a tuple must be known when compiling")
    number = int(index.constant)
    if not 0 <= number < len(kind.elements):
        raise body.error(
            node.index.position,
            f"index {number} is outside the tuple, which has {len(kind.elements)} elements",
        )
    found = convert.part(body, base, f"f{number}", kind.elements[number])
    found.position = node.position
    return found


# --- Operators -------------------------------------------------------------------------------


def _unary(body: Body, node: ast.Expression) -> Operand:
    assert isinstance(node, ast.Unary)
    operand = convert.plain(body, evaluation.evaluate(body, node.operand))
    return operators.unary(body, node.operator, operand, node.position)


def _binary(body: Body, node: ast.Expression) -> Operand:
    assert isinstance(node, ast.Binary)
    # Long chains (a + b + c + ...) lean to the left: walk them without recursion.
    chain = [node]
    first: ast.Expression = node.left
    while isinstance(first, ast.Binary):
        chain.append(first)
        first = first.left
    left = evaluation.evaluate(body, first)
    for link in reversed(chain):
        if link.operator in ("&&", "||"):
            left = _logical(body, link, left)
            continue
        mark = len(body.code)
        right = evaluation.evaluate(body, link.right)
        if len(body.code) > mark:
            left = evaluation.spill(body, left, mark)
        left = operators.binary(body, link.operator, left, right, link.position)
    return left


def _logical(body: Body, node: ast.Binary, left_operand: Operand) -> Operand:
    name = f"the operand of '{node.operator}'"
    for operand in (node.left, node.right):
        if isinstance(operand, ast.Dots):
            raise body.error(operand.position, f"{name} cannot be '...', the default of its type")
    left = convert.to_type(body, left_operand, types.BOOL, name)
    with body.capture() as code:
        right = evaluation.condition(body, node.right, name)
    decides = node.operator == "||"  # the value of the left operand that settles the result
    if left.constant is not None:
        if left.constant is decides:
            return Value(node.position, types.BOOL, None, decides)
        body.code.extend(code)
        return Value(node.position, types.BOOL, right.expression, right.constant)
    if not code and not _may_fail(body, right.expression):
        expression = ir.Binary(
            ir.BOOL, node.operator, convert.lowered(body, left), convert.lowered(body, right)
        )
        return Value(node.position, types.BOOL, expression)
    result = ir.Read(ir.BOOL, body.temporary(ir.BOOL))
    body.emit(ir.Assign(result, convert.lowered(body, left)), node.position)
    code.append(ir.Assign(result, convert.lowered(body, right), position=node.position))
    branch = ir.If(result, [], code) if decides else ir.If(result, code, [])
    body.emit(branch, node.position)
    return Value(node.position, types.BOOL, result)


def _may_fail(body: Body, expression: ir.Expression | None) -> bool:
    """Return whether evaluating an expression can end a parser (`next` and `last` of a stack)."""
    if body.kind != "parser" or expression is None:
        return False
    if isinstance(expression, (ir.StackNext, ir.StackLast)):
        return True
    if isinstance(expression, (ir.Field, ir.Slice)):
        return _may_fail(body, expression.base)
    if isinstance(expression, ir.Element):
        return _may_fail(body, expression.base) or _may_fail(body, expression.index)
    if isinstance(expression, (ir.Unary, ir.Cast)):
        return _may_fail(body, expression.operand)
    if isinstance(expression, ir.Binary):
        return _may_fail(body, expression.left) or _may_fail(body, expression.right)
    if isinstance(expression, ir.IsValid):
        return _may_fail(body, expression.header)
    if isinstance(expression, ir.Mux):
        return any(
            _may_fail(body, e) for e in (expression.condition, expression.then, expression.other)
        )
    if isinstance(expression, ir.Build):
        return any(_may_fail(body, e) for e in expression.values)
    return False


def _ternary(body: Body, node: ast.Expression) -> Operand:
    assert isinstance(node, ast.Ternary)
    test = evaluation.condition(body, node.condition, "the condition of '?:'")
    with body.capture() as then_code:
        then_operand = evaluation.evaluate(body, node.then)
    with body.capture() as other_code:
        other_operand = evaluation.evaluate(body, node.other)
    then, other = operators.common(body, then_operand, other_operand, node.position, "?:")
    if test.constant is not None:
        body.code.extend(then_code if test.constant else other_code)
        chosen = then if test.constant else other
        return Value(node.position, chosen.type, chosen.expression, chosen.constant)
    if isinstance(then.type, types.Int):
        raise body.error(
            node.position, "both branches of '?:' are integers without width; give one a width"
        )
    choice = convert.lowered(body, test)
    kind = body.lower(then.type, node.position)
    yes, no = convert.lowered(body, then), convert.lowered(body, other)
    if not then_code and not other_code and not _may_fail(body, yes) and not _may_fail(body, no):
        return Value(node.position, then.type, ir.Mux(kind, choice, yes, no))
    result = ir.Read(kind, body.temporary(kind))
    then_code.append(ir.Assign(result, yes, position=node.position))
    other_code.append(ir.Assign(result, no, position=node.position))
    body.emit(ir.If(choice, then_code, other_code), node.position)
    return Value(node.position, then.type, result)


def _cast(body: Body, node: ast.Expression) -> Operand:
    assert isinstance(node, ast.Cast)
    target = resolve.type_of(body.compiler, node.type, body.scope)
    return convert.explicit(body, evaluation.evaluate(body, node.operand), target, node.position)


def _call(body: Body, node: ast.Expression) -> Operand:
    assert isinstance(node, ast.Call)
    return calls.call(body, node)


_HANDLERS: dict[type[ast.Expression], Callable[[Body, ast.Expression], Operand]] = {
    ast.IntLiteral: _int,
    ast.BoolLiteral: _bool,
    ast.StringLiteral: _string,
    ast.ListExpression: _list,
    ast.RecordExpression: _record,
    ast.InvalidHeader: _invalid,
    ast.Dots: _dots,
    ast.DontCare: _dont_care,
    ast.Name: _name,
    ast.TypeExpression: _type,
    ast.This: _this,
    ast.Member: _member,
    ast.Index: _index,
    ast.Slice: slices.constant,
    ast.PlusSlice: slices.plus,
    ast.Unary: _unary,
    ast.Binary: _binary,
    ast.Ternary: _ternary,
    ast.Cast: _cast,
    ast.Call: _call,
}
