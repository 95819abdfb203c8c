"""Functions and actions, lowered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p4switch import ir
from p4switch.frontend.expressions import arguments, resolve
from p4switch.frontend.names import scope
from p4switch.frontend.names.compilation import Body, Compiler, FunctionUnit, declare
from p4switch.frontend.names.scope import Unit
from p4switch.frontend.statements import bodies
from p4switch.frontend.syntax import ast
from p4switch.frontend.types import types
from p4switch.frontend.types.lower import type_name

if TYPE_CHECKING:
    from p4switch.position import Position

READ_ONLY_IN = "an 'in' parameter is read-only"


def function(
    compiler: Compiler,
    candidate: scope.Candidate,
    declaration: ast.FunctionDeclaration,
    type_arguments: tuple[types.Type, ...],
    objects: dict[str, scope.Entity],
    position: Position,
) -> FunctionUnit:
    """Lower a function for some type arguments and extern objects; each such form once."""
    key = (
        declaration,
        id(candidate.scope),
        type_arguments,
        tuple((name, scope.identity(entity)) for name, entity in objects.items()),
    )
    known = compiler.functions.get(key)
    if known is not None:
        return known
    if declaration in compiler.running:
        raise compiler.error(position, f"'{declaration.name}' calls itself; P4 has no recursion")
    compiler.running.add(declaration)
    try:
        made = _function(compiler, candidate, declaration, type_arguments, objects)
    finally:
        compiler.running.discard(declaration)
    compiler.functions[key] = made
    return made


def _function(
    compiler: Compiler,
    candidate: scope.Candidate,
    declaration: ast.FunctionDeclaration,
    type_arguments: tuple[types.Type, ...],
    objects: dict[str, scope.Entity],
) -> FunctionUnit:
    compiler.used_declarations.add(declaration)
    names = resolve.bind(candidate.scope, declaration.type_parameters, type_arguments)
    full_name = candidate.unit.qualified(declaration.name)
    inner = scope.Scope(names)
    body = Body(compiler, candidate.unit, inner, "function", full_name)
    kinds = arguments.parameter_types(body, declaration.parameters, names)
    parameters = []
    for parameter, kind in zip(declaration.parameters, kinds, strict=True):
        if parameter.name in objects:
            declare(compiler, inner, parameter.name, objects[parameter.name])
        else:
            parameters.append(parameter_of(body, inner, parameter, kind, full_name))
    returns = resolve.type_of(compiler, declaration.returns, names)
    result = None
    if returns is not types.VOID:
        lowered = compiler.lower(returns, declaration.position)
        result = compiler.variable(f"{full_name}_result", lowered)
    body.result, body.result_type = result, returns
    body.scope = scope.Scope(inner)
    compiler.symbols.scopes.append((declaration.position, body.scope))
    errors = compiler.errors_noted
    bodies.block(body, declaration.body)
    bodies.warn_of_reads(body)
    if (
        result is not None
        and compiler.errors_noted == errors
        and not bodies.always_returns(body.code)
    ):
        raise compiler.error(
            declaration.position,
            f"function '{declaration.name}' can end without returning a value",
        )
    made = ir.Callable(
        full_name,
        tuple(parameters),
        body.code,
        result,
        resolve.folded_annotations(compiler, declaration.annotations, names),
    )
    return FunctionUnit(made, kinds, returns)


def parameter_of(
    body: Body,
    names: scope.Scope,
    parameter: ast.Parameter,
    kind: types.Type,
    prefix: str,
) -> ir.Parameter:
    """Make a parameter's variable and enter it into a scope."""
    compiler = body.compiler
    variable = compiler.variable(
        f"{prefix}_{parameter.name}", compiler.lower(kind, parameter.position)
    )
    read_only = ""
    if parameter.direction is ast.Direction.IN:
        read_only = READ_ONLY_IN
    elif parameter.direction is ast.Direction.NONE:
        read_only = arguments.NO_DIRECTION
        compiler.directionless.add(variable)
    entity = scope.VariableEntity(kind, ir.Read(variable.type, variable), read_only)
    entity.position = parameter.position
    entity.parameter = True
    declare(compiler, names, parameter.name, entity)
    return ir.Parameter(
        parameter.name,
        parameter.direction.value,
        variable,
        resolve.folded_annotations(compiler, parameter.annotations, names),
        type_name(kind),
    )


def action(body: Body, declaration: ast.ActionDeclaration) -> scope.ActionEntity:
    """Lower an action of the block (or top level) whose locals `body` is lowering."""
    compiler, unit = body.compiler, body.unit
    annotations = resolve.folded_annotations(compiler, declaration.annotations, body.scope)
    full_name = unit.qualified(declaration.name, annotations)
    names = scope.Scope(body.scope)
    inner = Body(compiler, unit, names, "action", unit.qualified(declaration.name))
    kinds = arguments.parameter_types(inner, declaration.parameters, body.scope)
    parameters = []
    data = False
    for parameter, kind in zip(declaration.parameters, kinds, strict=True):
        directed = parameter.direction is not ast.Direction.NONE
        if directed and data:
            raise compiler.error(
                parameter.position,
                "parameters without a direction (the control plane's) come after all others",
            )
        data = data or not directed
        if isinstance(kind, (types.Extern, types.Int)) or kind is types.STRING:
            raise compiler.error(
                parameter.position, f"an action parameter cannot be of type '{kind}'"
            )
        parameters.append(parameter_of(inner, names, parameter, kind, inner.local_names))
    inner.scope = scope.Scope(names)
    compiler.symbols.scopes.append((declaration.position, inner.scope))
    bodies.block(inner, declaration.body)
    bodies.warn_of_reads(inner)
    made = ir.Callable(
        full_name,
        tuple(parameters),
        inner.code,
        None,
        annotations,
        is_action=True,
        position=declaration.position,
    )
    unit.contents.append(made)
    entity = scope.ActionEntity(declaration, made, kinds)
    entity.position = declaration.position
    return entity


def enter_function(
    compiler: Compiler,
    unit: Unit,
    names: scope.Scope,
    declaration: ast.FunctionDeclaration | ast.MethodDeclaration,
) -> None:
    """Enter a function into a scope, as another overload of its name."""
    known = names.names.get(declaration.name)
    candidate = scope.Candidate(declaration, names, unit)
    if known is None:
        entity = scope.FunctionEntity([candidate])
        entity.position = declaration.position
        names.names[declaration.name] = entity
        return
    if not isinstance(known, scope.FunctionEntity):
        raise compiler.error(
            declaration.position,
            f"'{declaration.name}' is declared twice; first at {known.position}",
        )
    own = sorted(p.name for p in declaration.parameters)
    for other in known.candidates:
        if sorted(p.name for p in other.declaration.parameters) == own:
            raise compiler.error(
                declaration.position,
                f"'{declaration.name}' with these parameters is declared twice; first at "
                f"{other.declaration.position}",
            )
    known.candidates.append(candidate)
