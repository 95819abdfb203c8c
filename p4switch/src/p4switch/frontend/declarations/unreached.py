"""Checks of declarations that `main` does not reach, and of generic functions for any types.

They are lowered like the others, with opaque types for their type parameters and dummy values
for their constructor parameters, and the result is discarded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from p4switch import ir
from p4switch.frontend.declarations import instantiate
from p4switch.frontend.expressions import arguments, evaluation, resolve
from p4switch.frontend.expressions.builtins import PACKETS
from p4switch.frontend.names import scope
from p4switch.frontend.names.compilation import Body, Compiler
from p4switch.frontend.names.scope import Unit
from p4switch.frontend.names.values import Value
from p4switch.frontend.statements import callables
from p4switch.frontend.syntax import ast
from p4switch.frontend.types import types

if TYPE_CHECKING:
    from collections.abc import Sequence

_WITHOUT_VALUES = (types.Parameter, types.Unknown, types.Extern, types.BlockType)
"""Types whose default values cannot be checked on their own."""


def check(compiler: Compiler) -> None:
    """Check all declarations of the top level that were not lowered."""
    for entity in list(compiler.generics.values()):
        with compiler.recovering():
            _declaration(compiler, entity)
    for found in list(compiler.globals.names.values()):
        if isinstance(found, scope.FunctionEntity):
            for candidate in found.candidates:
                with compiler.recovering():
                    _function(compiler, candidate)


def _declaration(compiler: Compiler, entity: scope.GenericEntity) -> None:
    declaration = entity.declaration
    if declaration in compiler.used_declarations:
        return
    opaque = tuple(types.Parameter(name) for name in declaration.type_parameters)
    kind = resolve.specialise(compiler, entity, opaque, declaration.position)
    names = resolve.bind(entity.scope, declaration.type_parameters, opaque)
    if isinstance(declaration, ast.ExternDeclaration):
        for method in declaration.methods:
            _signature(compiler, method, names)
    elif isinstance(kind, types.BlockType):
        _block(compiler, kind, names)
    elif isinstance(declaration, ast.PackageDeclaration):
        _types(compiler, declaration.parameters, names)


def _signature(
    compiler: Compiler,
    declaration: ast.MethodDeclaration | ast.FunctionDeclaration,
    names: scope.Scope,
) -> tuple[types.Type, ...]:
    opaque = tuple(types.Parameter(name) for name in declaration.type_parameters)
    inner = resolve.bind(names, declaration.type_parameters, opaque)
    kinds = _types(compiler, declaration.parameters, inner)
    body = Body(compiler, Unit(""), inner, "constant")
    for parameter, kind in zip(declaration.parameters, kinds, strict=True):
        if parameter.default is not None and not types.contains(kind, _WITHOUT_VALUES):
            evaluation.value(body, parameter.default, kind, f"the default of '{parameter.name}'")
    if declaration.returns is not None:
        resolve.type_of(compiler, declaration.returns, inner)
    return kinds


def _types(
    compiler: Compiler, parameters: Sequence[ast.Parameter], names: scope.Scope
) -> tuple[types.Type, ...]:
    body = Body(compiler, Unit(""), names, "constant")
    return arguments.parameter_types(body, parameters, names)


def _function(compiler: Compiler, candidate: scope.Candidate) -> None:
    declaration = candidate.declaration
    if declaration in compiler.used_declarations and not declaration.type_parameters:
        return  # a generic one has been lowered for certain types only
    kinds = _signature(compiler, declaration, candidate.scope)
    if not isinstance(declaration, ast.FunctionDeclaration):
        return
    opaque = tuple(types.Parameter(name) for name in declaration.type_parameters)
    objects = _objects(declaration.parameters, kinds)
    callables.function(compiler, candidate, declaration, opaque, objects, declaration.position)


def _block(compiler: Compiler, kind: types.BlockType, names: scope.Scope) -> None:
    declaration = kind.declaration
    parameters = _types(compiler, declaration.parameters, names)
    if not _has_body(kind):
        return
    constructor = _types(compiler, declaration.constructor_parameters, names)
    bindings: dict[str, scope.Entity] = {}
    for parameter, parameter_kind in zip(
        declaration.constructor_parameters, constructor, strict=True
    ):
        if isinstance(parameter_kind, types.BlockType) and _has_body(parameter_kind):
            raise compiler.error(
                parameter.position,
                f"a constructor parameter cannot be of type '{parameter_kind}', which has a body; "
                "use the type of a parser or control",
            )
        made = _made_up(parameter, parameter_kind)
        if made is None:
            return
        bindings[parameter.name] = made
    objects = _objects(declaration.parameters, parameters)
    entity = scope.BlockEntity(kind, names, declaration.name, bindings)
    instantiate.block(compiler, entity, objects, declaration.position)


def _has_body(kind: types.BlockType) -> bool:
    declaration = kind.declaration
    if isinstance(declaration, ast.ParserDeclaration):
        return declaration.states is not None
    return declaration.body is not None


def _objects(
    parameters: Sequence[ast.Parameter], kinds: Sequence[types.Type]
) -> dict[str, scope.Entity]:
    """Return dummy arguments for which to lower something."""
    found: dict[str, scope.Entity] = {}
    for parameter, kind in zip(parameters, kinds, strict=True):
        if isinstance(kind, types.Extern):
            found[parameter.name] = _object(kind, parameter)
        elif isinstance(kind, types.Int):
            found[parameter.name] = scope.ConstantEntity(Value(parameter.position, kind, None, 1))
    return found


def _object(kind: types.Extern, parameter: ast.Parameter) -> scope.ExternEntity:
    if kind.name in PACKETS:
        return scope.ExternEntity(kind, None)
    return scope.ExternEntity(kind, ir.ExternInstance(parameter.name, kind.name, (), ()))


def _made_up(parameter: ast.Parameter, kind: types.Type) -> scope.Entity | None:
    """Return a dummy for a constructor parameter; None if that is not possible."""
    if isinstance(kind, types.Extern):
        return _object(kind, parameter)
    bare = types.underlying(kind)
    value: int | bool | str
    if isinstance(bare, (types.Bits, types.Int, types.Enum)) or bare is types.ERROR:
        value = 0 if isinstance(bare, types.Enum) else 1
    elif bare is types.BOOL:
        value = False
    elif bare is types.STRING:
        value = ""
    else:
        return None
    return scope.ConstantEntity(Value(parameter.position, kind, None, value))
