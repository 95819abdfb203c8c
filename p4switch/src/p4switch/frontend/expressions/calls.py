"""Calls: of functions, actions, methods of externs, parsers and controls; constructor calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from p4switch import ir
from p4switch.frontend.constants import constants, convert
from p4switch.frontend.expressions import (
    arguments,
    builtins,
    evaluation,
    infer,
    resolve,
)
from p4switch.frontend.names import scope
from p4switch.frontend.names.compilation import suggestion
from p4switch.frontend.names.operands import (
    ApplyResult,
    EntityOperand,
    FunctionsOperand,
    MethodOperand,
    describe,
)
from p4switch.frontend.names.values import DontCareValue, Operand, TypeOperand, Value
from p4switch.frontend.syntax import ast
from p4switch.frontend.types import types

if TYPE_CHECKING:
    from collections.abc import Sequence

    from p4switch.frontend.names.compilation import Body


@dataclass(slots=True, eq=False)
class Signature:
    """The parameters' and the result's types of a function or method, specialised."""

    parameters: tuple[types.Type, ...]
    returns: types.Type


def call(body: Body, node: ast.Call) -> Operand:
    """Check a call; its effects become statements, its result the operand."""
    function = evaluation.evaluate(body, node.function)
    if isinstance(function, FunctionsOperand):
        return _functions(body, node, function)
    if isinstance(function, MethodOperand):
        return _method(body, node, function)
    if isinstance(function, EntityOperand):
        if isinstance(function.entity, scope.ActionEntity):
            _action(body, node, function.entity)
            return Value(node.position, types.VOID)
        if isinstance(function.entity, scope.GenericEntity):
            return body.compiler.rules.construct(body, node)
    if isinstance(function, TypeOperand) and isinstance(
        types.resolved(function.type), (types.Extern, types.BlockType, types.PackageType)
    ):
        return body.compiler.rules.construct(body, node)
    raise body.error(node.position, f"{describe(function)} cannot be called")


# --- Methods ---------------------------------------------------------------------------------


def _method(body: Body, node: ast.Call, method: MethodOperand) -> Operand:
    base = method.base
    if isinstance(base, (Value, TypeOperand)):
        if isinstance(base, TypeOperand) and method.name == "apply":
            instance = body.compiler.rules.anonymous(body, base.type, node.position)
            return _apply_block(body, node, instance)
        return builtins.method_of_value(body, node, method)
    assert isinstance(base, EntityOperand)
    entity = base.entity
    if isinstance(entity, scope.ExternEntity):
        return _extern_method(body, node, entity, method)
    if method.name != "apply":
        raise body.error(method.position, f"{describe(base)} has no method '{method.name}'")
    if isinstance(entity, scope.TableEntity):
        return _apply_table(body, node, entity)
    if isinstance(entity, scope.BlockEntity):
        return _apply_block(body, node, entity)
    if isinstance(entity, scope.GenericEntity):
        kind = resolve.specialise(body.compiler, entity, (), node.position)
        return _apply_block(body, node, body.compiler.rules.anonymous(body, kind, node.position))
    raise body.error(method.position, f"{describe(base)} cannot be applied")


def _apply_table(body: Body, node: ast.Call, entity: scope.TableEntity) -> Operand:
    if body.kind not in ("control", "table"):  # a key may be another table's hit
        raise body.error(
            node.position, "a table can only be applied in the apply block of a control"
        )
    if node.arguments:
        raise body.error(node.position, "a table's apply takes no arguments")
    statement = ir.ApplyTable(entity.table)
    body.emit(statement, node.position)
    return ApplyResult(node.position, statement, entity)


def _apply_block(body: Body, node: ast.Call, entity: scope.BlockEntity) -> Operand:
    declaration = entity.type.declaration
    kind = "parser" if isinstance(declaration, ast.ParserDeclaration) else "control"
    if body.kind != kind:
        where = "a parser's states" if kind == "parser" else "the apply block of a control"
        raise body.error(node.position, f"a {kind} can only be applied in {where}")
    what = f"'{declaration.name}'"
    bounds = arguments.evaluate(body, declaration.parameters, node.arguments, what, node.position)
    names = entity.scope
    bounds = arguments.with_defaults(body, bounds, declaration.parameters, names)
    kinds = [resolve.type_of(body.compiler, b.parameter.type, names) for b in bounds]
    objects = arguments.compile_time(body, bounds, kinds, what)
    made = body.compiler.rules.block(body.compiler, entity, objects, node.position)
    variables = []
    for bound in bounds:
        parameter = made.by_name.get(bound.parameter.name)
        variables.append(None if parameter is None else parameter.variable)
    back = arguments.copy_in_and_out(body, bounds, kinds, variables, what, node.position)
    given = {b.parameter.name for b in bounds}
    for name, parameter in made.by_name.items():
        if name not in given:
            body.emit(ir.Declare(parameter.variable), node.position)
    body.emit(ir.Call(made.block, back), node.position)
    return Value(node.position, types.VOID)


def _extern_method(
    body: Body, node: ast.Call, entity: scope.ExternEntity, method: MethodOperand
) -> Operand:
    declaration = entity.type.declaration
    candidates = [m for m in declaration.methods if m.name == method.name and m.returns is not None]
    if not candidates:
        known = suggestion(method.name, (m.name for m in declaration.methods))
        raise body.error(
            method.position, f"'{declaration.name}' has no method '{method.name}'{known}"
        )
    what = f"'{declaration.name}.{method.name}'"
    chosen = choose(body, candidates, node, what)
    if entity.instance is None:
        return builtins.packet_method(body, node, entity, chosen)
    names = resolve.extern_scope(body.compiler, entity.type)
    return _call_extern(body, node, entity.instance, chosen, names, what)


# --- Functions and actions -------------------------------------------------------------------


def choose(
    body: Body,
    candidates: Sequence[ast.MethodDeclaration | ast.FunctionDeclaration],
    node: ast.Call,
    what: str,
) -> ast.MethodDeclaration | ast.FunctionDeclaration:
    """Choose an overload by the number and names of the arguments."""
    if len(candidates) == 1:
        return candidates[0]
    fitting = [c for c in candidates if arguments.fits(c.parameters, node.arguments)]
    if len(fitting) > 1:
        # Of those that differ only in parameters with default values, the shortest.
        least = min(len(c.parameters) for c in fitting)
        fitting = [c for c in fitting if len(c.parameters) == least]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        forms = "; ".join(f"({', '.join(p.name for p in c.parameters)})" for c in candidates)
        raise body.error(
            node.position,
            f"no form of {what} takes {len(node.arguments)} such arguments; there are {forms}",
        )
    raise body.error(node.position, f"the call of {what} fits more than one declaration")


def _functions(body: Body, node: ast.Call, function: FunctionsOperand) -> Operand:
    candidates = function.functions.candidates
    what = f"'{function.name}'"
    declaration = choose(body, [c.declaration for c in candidates], node, what)
    candidate = next(c for c in candidates if c.declaration is declaration)
    if isinstance(declaration, ast.FunctionDeclaration):
        return _function(body, node, candidate, declaration)
    if builtins.is_core(candidate):
        built_in = builtins.function(body, node, declaration)
        if built_in is not None:
            return built_in
    return _call_extern(body, node, None, declaration, candidate.scope, what)


def infer_types(
    body: Body,
    node: ast.Call,
    declaration: ast.MethodDeclaration | ast.FunctionDeclaration,
    names: scope.Scope,
    bounds: Sequence[arguments.Bound],
    what: str,
) -> tuple[types.Type, ...]:
    """Find the type arguments of a call, given or inferred."""
    parameters = declaration.type_parameters
    given = [resolve.type_of(body.compiler, t, body.scope) for t in node.type_arguments]
    if given and len(given) != len(parameters):
        raise body.error(
            node.position, f"{what} takes {len(parameters)} type arguments, not {len(given)}"
        )
    if not parameters:
        return ()
    if given and not any(types.contains(t, types.Unknown) for t in given):
        return tuple(given)
    unknowns = [types.Unknown(name) for name in parameters]
    for unknown, kind in zip(unknowns, given, strict=False):
        unknown.bound = kind
    inner = resolve.bind(names, parameters, unknowns)
    pairs: list[tuple[types.Type, Operand]] = []
    for bound in bounds:
        kind = resolve.type_of(body.compiler, bound.parameter.type, inner)
        source: Operand = bound.target if bound.target is not None else bound.operand
        if isinstance(source, EntityOperand) and isinstance(source.entity, scope.ExternEntity):
            infer.unify(kind, source.entity.type)
        else:
            pairs.append((kind, source))
    return infer.solve(body.compiler, pairs, unknowns, what, node.position)


def signature(
    body: Body,
    declaration: ast.MethodDeclaration | ast.FunctionDeclaration,
    names: scope.Scope,
    type_arguments: tuple[types.Type, ...],
) -> Signature:
    """Resolve the types of a function's parameters and result."""
    key = (declaration, id(names), type_arguments)
    known = body.compiler.signatures.get(key)
    if known is not None:
        assert isinstance(known, Signature)
        return known
    inner = names
    if declaration.type_parameters:
        inner = resolve.bind(names, declaration.type_parameters, type_arguments)
    assert declaration.returns is not None
    made = Signature(
        arguments.parameter_types(body, declaration.parameters, inner),
        resolve.type_of(body.compiler, declaration.returns, inner),
    )
    body.compiler.signatures[key] = made
    return made


def _function(
    body: Body, node: ast.Call, candidate: scope.Candidate, declaration: ast.FunctionDeclaration
) -> Operand:
    what = f"'{declaration.name}'"
    bounds = arguments.evaluate(body, declaration.parameters, node.arguments, what, node.position)
    bounds = arguments.with_defaults(body, bounds, declaration.parameters, candidate.scope)
    type_arguments = infer_types(body, node, declaration, candidate.scope, bounds, what)
    form = signature(body, declaration, candidate.scope, type_arguments)
    bound_types = _types_of(bounds, declaration, form)
    objects = arguments.compile_time(body, bounds, bound_types, what)
    made = body.compiler.rules.function(
        body.compiler, candidate, declaration, type_arguments, objects, node.position
    )
    by_name = {p.name: p.variable for p in made.callable.parameters}
    variables = [by_name.get(b.parameter.name) for b in bounds]
    back = arguments.copy_in_and_out(body, bounds, bound_types, variables, what, node.position)
    body.emit(ir.Call(made.callable, back), node.position)
    if made.callable.result is None:
        return Value(node.position, types.VOID)
    result = made.callable.result
    return Value(node.position, made.returns, ir.Read(result.type, result))


def _types_of(
    bounds: Sequence[arguments.Bound],
    declaration: ast.MethodDeclaration | ast.FunctionDeclaration,
    form: Signature,
) -> list[types.Type]:
    kinds = {p.name: k for p, k in zip(declaration.parameters, form.parameters, strict=True)}
    return [kinds[b.parameter.name] for b in bounds]


def _action(body: Body, node: ast.Call, entity: scope.ActionEntity) -> None:
    declaration = entity.declaration
    what = f"action '{declaration.name}'"
    if node.type_arguments:
        raise body.error(node.position, f"{what} has no type parameters")
    if body.kind not in ("control", "action"):
        raise body.error(
            node.position, "an action can only be called in a control or in another action"
        )
    bounds = arguments.evaluate(body, declaration.parameters, node.arguments, what, node.position)
    bounds = arguments.with_defaults(body, bounds, declaration.parameters, body.scope)
    variables = [p.variable for p in entity.callable.parameters]
    back = arguments.copy_in_and_out(
        body, bounds, entity.parameter_types, variables, what, node.position
    )
    body.emit(ir.Call(entity.callable, back), node.position)


# --- Externs ---------------------------------------------------------------------------------


def _call_extern(
    body: Body,
    node: ast.Call,
    instance: ir.ExternInstance | None,
    declaration: ast.MethodDeclaration | ast.FunctionDeclaration,
    names: scope.Scope,
    what: str,
) -> Operand:
    position = node.position
    bounds = arguments.evaluate(body, declaration.parameters, node.arguments, what, position)
    bounds = arguments.with_defaults(body, bounds, declaration.parameters, names)
    type_arguments = infer_types(body, node, declaration, names, bounds, what)
    form = signature(body, declaration, names, type_arguments)
    given: list[ir.Argument] = []
    for bound, kind in zip(bounds, _types_of(bounds, declaration, form), strict=True):
        given.append(_extern_argument(body, bound, kind, what))
    result = None
    if form.returns is not types.VOID:
        result = body.temporary(body.lower(form.returns, position))
    statement = ir.CallExtern(
        instance,
        declaration.name,
        tuple(body.lower(t, position) for t in type_arguments),
        tuple(given),
        result,
    )
    body.emit(statement, position)
    if result is None:
        return Value(position, types.VOID)
    return Value(position, form.returns, ir.Read(result.type, result))


def _extern_argument(
    body: Body, bound: arguments.Bound, kind: types.Type, what: str
) -> ir.Argument:
    parameter = bound.parameter
    direction = parameter.direction
    if isinstance(kind, types.Extern):
        raise body.compiler.unsupported(
            bound.operand.position, f"{what}: extern objects as arguments are not supported"
        )
    if direction in (ast.Direction.OUT, ast.Direction.INOUT):
        arguments.check_target(body, bound, kind, what)
        if bound.target is None:
            unused = body.temporary(body.lower(kind, bound.operand.position))
            return ir.Argument(parameter.name, direction.value, ir.Read(unused.type, unused))
        return ir.Argument(parameter.name, direction.value, convert.lowered(body, bound.target))
    if isinstance(bound.operand, DontCareValue):
        raise body.error(bound.operand.position, f"'{parameter.name}' of {what} needs a value")
    value = convert.to_type(body, bound.operand, kind, f"'{parameter.name}' of {what}")
    # Action data from the control plane count as known, as in p4c.
    known = constants.is_known(value) or value.read_only == arguments.NO_DIRECTION
    if direction is ast.Direction.NONE and not known:
        raise body.error(
            bound.operand.position,
            f"'{parameter.name}' of {what} must be known when compiling",
        )
    return ir.Argument(parameter.name, direction.value, convert.lowered(body, value))
