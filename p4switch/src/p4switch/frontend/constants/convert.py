"""Conversions of values between types: implicit ones, casts, `...` defaults, into the IR."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p4switch import ir
from p4switch.frontend.constants import constants
from p4switch.frontend.names.operands import describe
from p4switch.frontend.names.values import (
    DefaultValue,
    DontCareValue,
    InvalidValue,
    ListValue,
    Operand,
    Value,
    type_of,
)
from p4switch.frontend.types import types

if TYPE_CHECKING:
    from p4switch.frontend.names.compilation import Body
    from p4switch.position import Position


def lowered(body: Body, value: Value) -> ir.Expression:
    """Give a value's expression of the IR."""
    if value.expression is not None:
        return value.expression
    if value.sized is not None:
        raise body.error(
            value.position,
            "the width of this integer is not known; write one, as in '32w1 << x'",
        )
    assert value.constant is not None
    return ir.Const(body.lower(value.type, value.position), value.constant)


def plain(body: Body, operand: Operand) -> Value:
    """Require a value; a list becomes a tuple or a struct of its own."""
    if isinstance(operand, Value):
        return operand
    if isinstance(operand, ListValue):
        result = implicit(body, operand, type_of(operand))
        if result is not None:
            return result
    raise body.error(operand.position, f"a value is needed here, not {describe(operand)}")


def to_type(body: Body, operand: Operand, target: types.Type, what: str = "value") -> Value:
    """Convert implicitly to a type, or raise an error that says what did not fit."""
    result = implicit(body, operand, target)
    if result is not None:
        return result
    hint = ""
    if isinstance(operand, Value):
        source = operand.type
        if cast(body, operand, target) is not None:
            hint = f"; write a cast, '({target})', if that is meant"
        elif isinstance(source, types.Bits) and isinstance(target, types.Bits):
            hint = "; cast in two steps, first the width and then the sign"
    elif isinstance(operand, ListValue):
        hint = _list_problem(operand, types.resolved(target))
    raise body.error(
        operand.position, f"{what} must be of type '{target}', not {describe(operand)}{hint}"
    )


def _list_problem(operand: ListValue, target: types.Type) -> str:
    if operand.names is not None and isinstance(target, types.StructLike):
        unknown = [n for n in operand.names if n not in target.fields]
        if unknown:
            return f"; '{target}' has no field '{unknown[0]}'"
        missing = [n for n in target.fields if n not in operand.names]
        if missing and not operand.defaults:
            return f"; no value is given for '{missing[0]}' (end with '...' for default values)"
    return ""


def implicit(body: Body, operand: Operand, target: types.Type) -> Value | None:
    """Convert to a type where the language does so by itself; None where it does not."""
    target = types.resolved(target)
    if isinstance(operand, Value):
        source = types.resolved(operand.type)
        if source is target or types.same(source, target):
            return operand
        if isinstance(target, types.Unknown):
            return operand
        return _implicit_value(body, operand, source, target)
    if isinstance(operand, ListValue):
        return _from_list(body, operand, target)
    if isinstance(operand, DefaultValue):
        return of_expression(operand.position, target, default(body, target, operand.position))
    if isinstance(operand, InvalidValue) and (types.is_header(target) or types.is_union(target)):
        return Value(operand.position, target, ir.Invalid(body.lower(target, operand.position)))
    return None


def _fits(number: int, kind: types.Bits) -> bool:
    """Return whether a number has a meaning in a type; a negative one may stand for its bits."""
    half = 1 << max(kind.width, 1) - 1
    return -half <= number < (half if kind.signed else 1 << kind.width)


def _implicit_value(
    body: Body, value: Value, source: types.Type, target: types.Type
) -> Value | None:
    if isinstance(source, types.Int):
        wide = target.base if isinstance(target, types.NewType) else target
        if isinstance(wide, types.Bits) and value.constant is not None:
            made = constants.convert(value.constant, target, value.position)
            if not _fits(int(value.constant), wide):
                body.compiler.warn(
                    value.position,
                    f"{value.constant} does not fit '{wide}': it is {made.constant} here",
                )
            return made
        if isinstance(wide, types.Bits) and value.sized is not None:
            return retyped(value.sized(wide), target)
        return None
    if isinstance(target, types.Int) and isinstance(source, types.Bits):
        # Only constants can be of type int, so only they become one.
        return None if value.constant is None else retyped(value, target)
    if isinstance(source, types.Enum) and source.underlying is not None:
        if source.underlying == target:
            return retyped(value, target)
        return None
    if isinstance(source, types.Tuple) and isinstance(target, types.Tuple):
        return _fieldwise(body, value, source, target)
    if (
        isinstance(source, types.StructLike)
        and source.declaration is None
        and types.is_struct(target)
    ):
        assert isinstance(target, types.StructLike)
        if list(source.fields) == list(target.fields):
            return _fieldwise(body, value, source, target)
    return None


def _fieldwise(body: Body, value: Value, source: types.Type, target: types.Type) -> Value | None:
    have, want = list(types.parts(source)), list(types.parts(target))
    if len(have) != len(want) or types.is_union(target):
        return None
    built = []
    for (name, kind), (_, wanted) in zip(have, want, strict=True):
        converted = implicit(body, part(body, value, name, kind), wanted)
        if converted is None:
            return None
        built.append(lowered(body, converted))
    return Value(value.position, target, ir.Build(body.lower(target, value.position), tuple(built)))


def part(body: Body, value: Value, name: str, kind: types.Type) -> Value:
    """Take a field of a struct, header, union or tuple."""
    base = value.expression
    assert base is not None
    if isinstance(base, ir.Build):
        names = [n for n, _ in types.parts(value.type)]
        return of_expression(value.position, kind, base.values[names.index(name)])
    return Value(
        value.position,
        kind,
        ir.Field(body.lower(kind, value.position), base, name),
        None,
        value.read_only,
    )


def of_expression(position: Position, kind: types.Type, expression: ir.Expression) -> Value:
    """Make a value of an expression of the IR; a constant stays one."""
    if isinstance(expression, ir.Const):
        return Value(position, kind, None, expression.value)
    return Value(position, kind, expression)


def retyped(value: Value, target: types.Type) -> Value:
    """Give a value another type that is represented in the same way."""
    return Value(value.position, target, value.expression, value.constant, sized=value.sized)


def _from_list(body: Body, operand: ListValue, target: types.Type) -> Value | None:
    if isinstance(target, types.ListOf):
        return _list_of(body, operand, target)
    if isinstance(target, types.Stack):
        return _stack(body, operand, target)
    if isinstance(target, types.NewType):
        return None
    if not isinstance(target, (types.StructLike, types.Tuple)) or types.is_union(target):
        return None
    wanted = list(types.parts(target))
    given = _by_name(operand, [name for name, _ in wanted], target)
    if given is None:
        return None
    built: list[ir.Expression] = []
    for name, kind in wanted:
        element = given.get(name)
        if element is None:
            built.append(default(body, kind, operand.position))
            continue
        converted = implicit(body, element, kind)
        if converted is None:
            return None
        built.append(lowered(body, converted))
    return Value(
        operand.position, target, ir.Build(body.lower(target, operand.position), tuple(built))
    )


def _by_name(operand: ListValue, names: list[str], target: types.Type) -> dict[str, Operand] | None:
    """Match elements with fields; None when they do not match."""
    elements = operand.elements
    if operand.names is not None:
        if isinstance(target, types.Tuple) or not set(operand.names) <= set(names):
            return None
        given = dict(zip(operand.names, elements, strict=True))
    else:
        if len(elements) > len(names):
            return None
        given = dict(zip(names, elements, strict=False))
    if len(given) < len(names) and not operand.defaults:
        return None
    return given


def _list_of(body: Body, operand: ListValue, target: types.ListOf) -> Value | None:
    converted = [implicit(body, element, target.element) for element in operand.elements]
    if any(item is None for item in converted) or operand.names is not None:
        return None
    kind = types.Tuple((target.element,) * len(converted))
    values = tuple(lowered(body, item) for item in converted if item is not None)
    return Value(operand.position, target, ir.Build(body.lower(kind, operand.position), values))


def _stack(body: Body, operand: ListValue, target: types.Stack) -> Value | None:
    if operand.names is not None or len(operand.elements) > target.size:
        return None
    converted = [implicit(body, element, target.element) for element in operand.elements]
    values = [lowered(body, item) for item in converted if item is not None]
    if len(values) != len(operand.elements):
        return None
    if len(values) < target.size and not operand.defaults:
        return None
    kind = body.lower(target, operand.position)
    return Value(operand.position, target, _stack_of(body, kind, values, operand.position))


def _stack_of(
    body: Body, kind: ir.Type, values: list[ir.Expression], position: Position
) -> ir.Expression:
    """Fill a temporary stack; the elements without a value stay invalid."""
    assert isinstance(kind, ir.Stack)
    stack = ir.Read(kind, body.temporary(kind))
    body.emit(ir.Declare(stack.variable), position)
    for index, value in enumerate(values):
        target = ir.Element(kind.element, stack, ir.Const(ir.BIT32, index))
        body.emit(ir.Assign(target, value), position)
    return stack


def default(body: Body, kind: types.Type, position: Position) -> ir.Expression:
    """Make the default value of a type (specification 1.2.5, section 7.3)."""
    kind = types.resolved(kind)
    target = body.lower(kind, position)
    if isinstance(target, (ir.Header, ir.Union)):
        return ir.Invalid(target)
    if isinstance(target, ir.Bits):
        return ir.Const(target, 0)
    if isinstance(target, ir.Bool):
        return ir.Const(target, False)
    if isinstance(target, ir.Struct):
        return ir.Build(target, tuple(default(body, k, position) for _, k in types.parts(kind)))
    if isinstance(target, ir.Stack):
        return _stack_of(body, target, [], position)
    raise body.error(position, f"'{kind}' has no default value")


def cast(body: Body, value: Value, target: types.Type) -> Value | None:
    """Apply an explicit cast; None where the language does not allow it."""
    wide = target.base if isinstance(target, types.NewType) else target
    if (
        isinstance(value.type, types.Int)
        and isinstance(wide, types.Bits)
        and value.constant is not None
    ):
        # Without a warning of what does not fit: it is meant.
        return constants.convert(value.constant, target, value.position)
    converted = implicit(body, value, target)
    if converted is not None:
        return converted if converted is not value else retyped(value, target)
    source = types.resolved(value.type)
    target = types.resolved(target)
    bare_source, bare_target = types.underlying(source), types.underlying(target)
    if not _castable(source, target, bare_source, bare_target, value):
        return None
    if value.constant is not None:
        if isinstance(bare_target, types.Int):
            return Value(value.position, target, None, int(value.constant))
        return constants.convert(value.constant, target, value.position)
    assert value.expression is not None
    if isinstance(bare_target, types.Int):
        assert isinstance(bare_source, types.Bits)
        width = bare_source.width + (not bare_source.signed)
        return Value(value.position, target, widened(value.expression, width))
    kind = body.lower(target, value.position)
    if isinstance(bare_source, types.Int):
        return Value(value.position, target, ir.Cast(kind, value.expression))
    if body.lower(source, value.position) == kind:
        return retyped(value, target)
    return Value(value.position, target, ir.Cast(kind, value.expression))


def widened(expression: ir.Expression, width: int) -> ir.Expression:
    """Hold an integer's value in `int<width>`, which is wide enough for it."""
    kind = ir.Bits(width, True)
    return expression if expression.type == kind else ir.Cast(kind, expression)


def _castable(
    source: types.Type,
    target: types.Type,
    bare_source: types.Type,
    bare_target: types.Type,
    value: Value,
) -> bool:
    if isinstance(bare_source, types.Int):
        if value.constant is None:
            return isinstance(bare_target, types.Bits)
        if bare_target is types.BOOL:
            return value.constant in (0, 1)
        return isinstance(bare_target, types.Bits)
    if (isinstance(source, types.NewType) or isinstance(target, types.NewType)) and not (
        types.same(bare_source, bare_target)
    ):
        return False
    if isinstance(bare_source, types.Bits):
        if isinstance(bare_target, types.Int):
            return True
        if bare_target is types.BOOL:
            return bare_source == types.BIT1
        if isinstance(target, types.Enum) and not isinstance(source, types.Enum):
            return bare_source == bare_target
        return isinstance(bare_target, types.Bits) and (
            bare_source.width == bare_target.width or bare_source.signed == bare_target.signed
        )
    if bare_source is types.BOOL:
        return bare_target in (types.BIT1, types.BOOL)
    # Newtypes of anything else.
    return types.same(bare_source, bare_target)


def explicit(body: Body, operand: Operand, target: types.Type, position: Position) -> Value:
    """Apply an explicit cast, or raise an error."""
    if isinstance(operand, Value):
        result = cast(body, operand, target)
        if result is not None:
            result.position = position
            return result
        hint = ""
        source = types.underlying(operand.type)
        wanted = types.underlying(target)
        if isinstance(source, types.Bits) and isinstance(wanted, types.Bits):
            hint = "; cast in two steps, first the width and then the sign"
        raise body.error(position, f"'{operand.type}' cannot be cast to '{target}'{hint}")
    if isinstance(operand, DontCareValue):
        raise body.error(position, "'_' cannot be cast")
    return to_type(body, operand, target)
