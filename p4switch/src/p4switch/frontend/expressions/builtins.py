"""Built-ins of the language and its core library: methods of headers, stacks and packets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p4switch import ir
from p4switch.frontend.constants import constants, convert
from p4switch.frontend.expressions import arguments, resolve
from p4switch.frontend.names.operands import MethodOperand
from p4switch.frontend.names.values import DontCareValue, Operand, TypeOperand, Value
from p4switch.frontend.syntax import ast
from p4switch.frontend.types import types

if TYPE_CHECKING:
    from p4switch.frontend.names.compilation import Body
    from p4switch.frontend.names.scope import Candidate, ExternEntity

PACKETS = ("packet_in", "packet_out")
_CORE_FUNCTIONS = ("verify", "static_assert")
SIZE_METHODS = frozenset({"minSizeInBits", "minSizeInBytes", "maxSizeInBits", "maxSizeInBytes"})


def is_core(candidate: Candidate) -> bool:
    """Return whether an extern function is one of the core library's."""
    return candidate.declaration.name in _CORE_FUNCTIONS


def method_of_value(body: Body, node: ast.Call, method: MethodOperand) -> Operand:
    """Check a method of a header, union, stack, or one that gives the size of a value or type."""
    base, name = method.base, method.name
    if name in ("push_front", "pop_front"):
        assert isinstance(base, Value)
        return _push(body, node, base, name)
    if node.arguments:
        raise body.error(node.position, f"'{name}' takes no arguments")
    if name in SIZE_METHODS:
        assert isinstance(base, (Value, TypeOperand))
        return _size(body, node, base.type, name)
    assert isinstance(base, Value)
    header = convert.lowered(body, base)
    if name == "isValid":
        return Value(node.position, types.BOOL, ir.IsValid(ir.BOOL, header))
    if types.is_union(types.resolved(base.type)):
        raise body.error(node.position, f"'{name}' is a method of headers, not of header unions")
    target = arguments.lvalue(body, base, f"the header of '{name}'")
    assert target.expression is not None
    body.emit(ir.SetValid(target.expression, name == "setValid"), node.position)
    return Value(node.position, types.VOID)


def _size(body: Body, node: ast.Call, kind: types.Type, name: str) -> Operand:
    try:
        low, high = types.bit_sizes(kind)
    except ValueError:
        raise body.error(node.position, f"a value of type '{kind}' has no size in bits") from None
    bits = low if name.startswith("min") else high
    result = bits if name.endswith("Bits") else (bits + 7) // 8
    return Value(node.position, types.INT, None, result)


def _push(body: Body, node: ast.Call, base: Value, name: str) -> Operand:
    if len(node.arguments) != 1:
        raise body.error(node.position, f"'{name}' takes one argument, the number of elements")
    count = constants.integer(body, node.arguments[0].value, f"the argument of '{name}'")
    if count < 0:
        raise body.error(node.arguments[0].position, f"the argument of '{name}' cannot be negative")
    target = arguments.lvalue(body, base, f"the stack of '{name}'")
    assert target.expression is not None
    if count:
        body.emit(
            ir.Push(target.expression, count if name == "push_front" else -count), node.position
        )
    return Value(node.position, types.VOID)


# --- Functions of core.p4 --------------------------------------------------------------------


def function(body: Body, node: ast.Call, declaration: ast.MethodDeclaration) -> Operand | None:
    """Check `verify` or `static_assert`; None for another function of such a name."""
    what = f"'{declaration.name}'"
    names = [p.name for p in declaration.parameters]
    if declaration.name == "verify" and len(names) == 2:
        if body.kind not in ("parser", "function"):
            raise body.error(node.position, "'verify' can only be called in a parser")
        bounds = arguments.evaluate(
            body, declaration.parameters, node.arguments, what, node.position
        )
        test = convert.to_type(body, bounds[0].operand, types.BOOL, f"the condition of {what}")
        error = convert.to_type(body, bounds[1].operand, types.ERROR, f"the error of {what}")
        body.emit(
            ir.Verify(convert.lowered(body, test), convert.lowered(body, error)), node.position
        )
        return Value(node.position, types.VOID)
    if declaration.name == "static_assert":
        bounds = arguments.evaluate(
            body, declaration.parameters, node.arguments, what, node.position
        )
        test = convert.to_type(body, bounds[0].operand, types.BOOL, f"the condition of {what}")
        if test.constant is None:
            raise body.error(
                node.position, "the condition of a static_assert must be known when compiling"
            )
        if not test.constant:
            text = "static_assert failed"
            if len(bounds) > 1:
                text += f": {constants.scalar(bounds[1].operand)}"
            raise body.error(node.position, text)
        return Value(node.position, types.BOOL, None, True)
    return None


# --- Packets ---------------------------------------------------------------------------------


def packet_method(
    body: Body,
    node: ast.Call,
    entity: ExternEntity,
    declaration: ast.MethodDeclaration | ast.FunctionDeclaration,
) -> Operand:
    """Check a method of `packet_in` or `packet_out`."""
    name = declaration.name
    what = f"'{entity.type.name}.{name}'"
    given = [resolve.type_of(body.compiler, t, body.scope) for t in node.type_arguments]
    if len(given) > len(declaration.type_parameters):
        raise body.error(node.position, f"{what} does not take {len(given)} type arguments")
    bounds = arguments.evaluate(body, declaration.parameters, node.arguments, what, node.position)
    if name == "extract":
        _extract(body, node, bounds, given)
    elif name == "lookahead":
        return _lookahead(body, node, given)
    elif name == "advance":
        bits = convert.to_type(body, bounds[0].operand, types.BIT32, f"the argument of {what}")
        body.emit(ir.Advance(convert.lowered(body, bits)), node.position)
    elif name == "length":
        result = ir.Read(ir.BIT32, body.temporary(ir.BIT32))
        body.emit(ir.PacketLength(result), node.position)
        return Value(node.position, types.BIT32, result)
    elif name == "emit":
        _emit(body, node, bounds[0], given)
    else:
        raise body.compiler.unsupported(node.position, f"{what} is not supported")
    return Value(node.position, types.VOID)


def _extract(
    body: Body, node: ast.Call, bounds: list[arguments.Bound], given: list[types.Type]
) -> None:
    first = bounds[0]
    if first.target is not None:
        kind = types.resolved(first.target.type)
        target = first.target.expression
        if given and not types.same(given[0], kind):
            raise body.error(first.operand.position, f"expected a '{given[0]}', not a '{kind}'")
    else:
        assert isinstance(first.operand, DontCareValue)
        if not given:
            raise body.error(node.position, "write the header type, as in 'extract<header_t>(_)'")
        kind = types.resolved(given[0])
        unused = body.temporary(body.lower(kind, node.position))
        target = ir.Read(unused.type, unused)
    if not types.is_header(kind) and not isinstance(kind, types.Parameter):
        raise body.error(
            first.operand.position, f"'extract' fills a header, not something of type '{kind}'"
        )
    varbits = sum(isinstance(types.resolved(part), types.Varbit) for _, part in types.parts(kind))
    assert target is not None
    if len(bounds) == 1:
        if varbits:
            raise body.error(
                node.position,
                f"'{kind}' has a varbit field; give its width in bits as a second argument",
            )
        body.emit(ir.Extract(target), node.position)
        return
    if varbits != 1:
        raise body.error(
            node.position,
            f"extract with a width needs a header with one varbit field; '{kind}' has {varbits}",
        )
    bits = convert.to_type(
        body, bounds[1].operand, types.BIT32, "the width of a varbit field to extract"
    )
    body.emit(ir.Extract(target, convert.lowered(body, bits)), node.position)


def _lookahead(body: Body, node: ast.Call, given: list[types.Type]) -> Operand:
    if not given:
        raise body.error(
            node.position, "write the type to look ahead to, as in 'lookahead<bit<8>>()'"
        )
    kind = given[0]
    if types.contains(kind, types.Varbit):
        raise body.error(node.position, f"'{kind}' has no fixed size; lookahead needs one")
    result = body.temporary(body.lower(kind, node.position))
    place = ir.Read(result.type, result)
    body.emit(ir.Lookahead(place), node.position)
    return Value(node.position, kind, place)


def _emit(body: Body, node: ast.Call, bound: arguments.Bound, given: list[types.Type]) -> None:
    if given:
        what = "the argument of 'packet_out.emit'"
        value = convert.to_type(body, bound.operand, given[0], what)
    else:
        value = convert.plain(body, bound.operand)
    if not _emittable(value.type):
        raise body.error(
            bound.operand.position,
            "only headers, header unions, stacks and structs of these can be emitted, "
            f"not a value of type '{value.type}'",
        )
    body.emit(ir.Emit(convert.lowered(body, value)), node.position)


def _emittable(kind: types.Type) -> bool:
    kind = types.resolved(kind)
    if isinstance(kind, (types.Stack, types.Parameter)):
        return True
    if types.is_struct(kind) or isinstance(kind, types.Tuple):
        return all(_emittable(part) for _, part in types.parts(kind))
    return isinstance(kind, types.StructLike)
