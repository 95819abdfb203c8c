"""Instances: of externs, parsers, controls and packages; the lowering of parsers and controls."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from p4switch import ir
from p4switch.frontend.constants import constants, convert
from p4switch.frontend.declarations import parsers, tables
from p4switch.frontend.expressions import arguments, infer, resolve
from p4switch.frontend.expressions.builtins import PACKETS
from p4switch.frontend.names import scope
from p4switch.frontend.names.compilation import Body, Compiler, declare
from p4switch.frontend.names.operands import EntityOperand, describe
from p4switch.frontend.names.scope import Unit
from p4switch.frontend.names.values import Operand
from p4switch.frontend.statements import bodies, callables, statements
from p4switch.frontend.syntax import ast
from p4switch.frontend.types import types
from p4switch.frontend.types.lower import type_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from p4switch.position import Position


# --- Constructor calls -----------------------------------------------------------------------


def construct_here(
    body: Body,
    node: ast.Call,
    name: str | None = None,
    annotations: tuple[ir.Annotation, ...] = (),
) -> EntityOperand:
    """Make an object by a constructor call in an expression.

    It is named after its type unless a name (that of a table's property) is given.
    """
    reference = _reference(body, node)
    named = reference.base if isinstance(reference, ast.SpecializedType) else reference
    assert isinstance(named, ast.NamedType)
    entity = construct(
        body,
        reference,
        node.arguments,
        name or named.name,
        named.name,
        annotations,
        node.position,
    )
    return EntityOperand(node.position, entity, named.name)


def _reference(body: Body, node: ast.Call) -> ast.TypeRef:
    function = node.function
    if isinstance(function, ast.TypeExpression):
        reference = function.type
    elif isinstance(function, ast.Name):
        reference = ast.NamedType(function.position, function.name, function.absolute)
    else:
        raise body.error(node.position, "this is not a type that objects can be made of")
    if node.type_arguments:
        if not isinstance(reference, ast.NamedType):
            raise body.error(node.position, "the type arguments are given twice")
        return ast.SpecializedType(node.position, reference, node.type_arguments)
    return reference


def instantiation(body: Body, node: ast.Instantiation) -> scope.Entity:
    """Make the object an instantiation declares and enter its name."""
    if node.body is not None:
        raise body.compiler.unsupported(
            node.position, "externs with methods written in P4 are not supported"
        )
    annotations = resolve.folded_annotations(body.compiler, node.annotations, body.scope)
    entity = construct(body, node.type, node.arguments, node.name, None, annotations, node.position)
    entity.position = node.position
    declare(body.compiler, body.scope, node.name, entity)
    return entity


def construct(
    body: Body,
    reference: ast.TypeRef,
    given: Sequence[ast.Argument],
    name: str,
    anonymous_name: str | None,
    annotations: tuple[ir.Annotation, ...],
    position: Position,
) -> scope.Entity:
    """Make an object. `anonymous_name` is set when the source gives it no name of its own."""
    kind = _constructed_type(body, reference, given, position)
    if isinstance(kind, types.Extern):
        # What a table's property constructs goes by the bare name.
        unit = body.unit if anonymous_name is None else body.compiler.top
        full_name = unit.qualified(name, annotations)
        return _extern(body, kind, given, full_name, annotations, position)
    if isinstance(kind, types.BlockType):
        own = resolve.folded_annotations(body.compiler, kind.declaration.annotations, body.scope)
        if body.unit is body.compiler.top and anonymous_name is None:
            raise body.error(
                position,
                "parsers and controls are not made at the top level; write the constructor call "
                "where the package takes it",
            )
        if anonymous_name is not None:
            # A block of the top level has the name of its type, also if it has a @name.
            full_name = body.unit.qualified(kind.name)
        else:
            full_name = body.unit.qualified(name, annotations)
        return _block_entity(body, kind, given, full_name, annotations or own, position)
    if isinstance(kind, types.PackageType):
        return _package(body, kind, given, name, annotations, position)
    raise body.error(position, f"objects cannot be made of type '{kind}'")


def _constructed_type(
    body: Body, reference: ast.TypeRef, given: Sequence[ast.Argument], position: Position
) -> types.Type:
    """Resolve the type of a constructor call, inferring its type arguments if there are none."""
    compiler = body.compiler
    if isinstance(reference, ast.NamedType):
        where = body.scope.top if reference.absolute else body.scope
        entity = where.find(reference.name)
        if isinstance(entity, scope.GenericEntity) and entity.declaration.type_parameters:
            return _inferred(body, entity, given, position)
    kind = resolve.type_of(compiler, reference, body.scope)
    if types.contains(kind, types.Unknown) and isinstance(reference, ast.SpecializedType):
        entity = body.scope.find(reference.base.name)
        if isinstance(entity, scope.GenericEntity):
            return _inferred(body, entity, given, position, leave_open=True)
    return kind


def _constructor_parameters(
    body: Body,
    declaration: (
        ast.ExternDeclaration
        | ast.ParserDeclaration
        | ast.ControlDeclaration
        | ast.PackageDeclaration
        | ast.StructLike
    ),
    given: Sequence[ast.Argument],
    position: Position,
) -> list[ast.Parameter]:
    if isinstance(declaration, ast.ExternDeclaration):
        constructors = [m for m in declaration.methods if m.returns is None]
        fitting = [c for c in constructors if arguments.fits(c.parameters, given)]
        if len(fitting) == 1:
            return fitting[0].parameters
        if len(constructors) == 1:
            return constructors[0].parameters
        raise body.error(
            position,
            f"no constructor of '{declaration.name}' takes {len(given)} such arguments"
            if constructors
            else f"extern '{declaration.name}' has no constructor",
        )
    if isinstance(declaration, ast.PackageDeclaration):
        return declaration.parameters
    if isinstance(declaration, (ast.ParserDeclaration, ast.ControlDeclaration)):
        return declaration.constructor_parameters
    raise body.error(position, f"objects cannot be made of type '{declaration.name}'")


def _inferred(
    body: Body,
    entity: scope.GenericEntity,
    given: Sequence[ast.Argument],
    position: Position,
    *,
    leave_open: bool = False,
) -> types.Type:
    """Infer the type arguments of a constructor call.

    Those of a package may stay open where `leave_open` (the source writes `_`) or where optional
    parameters are left out.
    """
    declaration = entity.declaration
    parameters = _constructor_parameters(body, declaration, given, position)
    what = f"'{declaration.name}'"
    with body.capture():
        # Only looked at here; the real evaluation comes when the type is known.
        scratch = Body(body.compiler, Unit(body.unit.name), body.scope, "constant")
        bounds = arguments.evaluate(scratch, parameters, given, what, position)
    present = {bound.parameter.name for bound in bounds}
    unknowns = [types.Unknown(name) for name in declaration.type_parameters]
    inner = resolve.bind(entity.scope, declaration.type_parameters, unknowns)
    pairs: list[tuple[types.Type, Operand]] = []
    for bound in bounds:
        kind = resolve.type_of(body.compiler, bound.parameter.type, inner)
        operand = bound.operand
        if isinstance(operand, EntityOperand):
            entity_fits = _unify_entity(body.compiler, kind, operand.entity)
            if not entity_fits and isinstance(operand.entity, scope.PackageEntity):
                raise body.error(
                    operand.position,
                    f"'{bound.parameter.name}' of {what}, a '{operand.entity.type}', has other "
                    "types than its other arguments: what they share must be of one type",
                )
        else:
            pairs.append((kind, operand))
    found = infer.solve(
        body.compiler,
        pairs,
        unknowns,
        what,
        position,
        leave_open=isinstance(declaration, ast.PackageDeclaration)
        and (leave_open or any(p.default is None for p in parameters if p.name not in present)),
    )
    return resolve.specialise(body.compiler, entity, found, position)


def _unify_entity(compiler: Compiler, wanted: types.Type, entity: scope.Entity) -> bool:
    """Unify the type of a package's or constructor's parameter with an object's."""
    if isinstance(entity, scope.ExternEntity):
        return infer.unify(wanted, entity.type)
    if isinstance(entity, scope.PackageEntity):
        return infer.unify(wanted, entity.type)
    if not isinstance(entity, scope.BlockEntity):
        return False
    wanted = types.resolved(wanted)
    if isinstance(wanted, types.Unknown):
        wanted.bound = entity.type
        return True
    if not isinstance(wanted, types.BlockType):
        return False
    if type(wanted.declaration) is not type(entity.type.declaration):
        return False
    expected = wanted.declaration.parameters
    actual = entity.type.declaration.parameters
    if len(expected) != len(actual):
        return False
    generic = compiler.generics[wanted.declaration]
    inner = resolve.bind(generic.scope, wanted.declaration.type_parameters, wanted.arguments)
    return all(
        want.direction is have.direction
        and infer.unify(
            resolve.type_of(compiler, want.type, inner),
            resolve.type_of(compiler, have.type, entity.scope),
        )
        for want, have in zip(expected, actual, strict=True)
    )


# --- Externs ---------------------------------------------------------------------------------


def _extern(
    body: Body,
    kind: types.Extern,
    given: Sequence[ast.Argument],
    full_name: str,
    annotations: tuple[ir.Annotation, ...],
    position: Position,
) -> scope.ExternEntity:
    what = f"the constructor of '{kind.name}'"
    for method in kind.declaration.methods:
        if method.abstract:
            raise body.error(
                position,
                f"'{kind.name}' has the abstract method '{method.name}': a declaration with a body "
                "must give it",
            )
    if kind.name in PACKETS:
        raise body.error(position, f"a '{kind.name}' cannot be made")
    parameters = _constructor_parameters(body, kind.declaration, given, position)
    names = resolve.extern_scope(body.compiler, kind)
    constant = Body(body.compiler, body.unit, body.scope, "constant")
    bounds = arguments.evaluate(constant, parameters, given, what, position)
    bounds = arguments.with_defaults(constant, bounds, parameters, names)
    folded: list[ir.Folded] = []
    for bound in bounds:
        wanted = resolve.type_of(body.compiler, bound.parameter.type, names)
        if isinstance(bound.operand, EntityOperand) or isinstance(
            wanted, (types.Extern, types.ListOf)
        ):
            raise body.compiler.unsupported(
                bound.operand.position,
                f"{what}: only numbers, strings, enums, and tuples and structs of them are "
                "supported",
            )
        name = f"'{bound.parameter.name}' of {what}"
        value = convert.to_type(constant, bound.operand, wanted, name)
        found = value.constant if value.constant is not None else _folded(value.expression)
        if found is None:
            raise body.error(bound.operand.position, f"{name} must be known when compiling")
        folded.append(found)
    instance = ir.ExternInstance(
        full_name,
        kind.name,
        tuple(body.lower(a, position) for a in kind.arguments),
        tuple(folded),
        annotations,
        tuple(type_name(a) for a in kind.arguments),
        position,
    )
    body.unit.contents.append(instance)
    return scope.ExternEntity(kind, instance)


def _folded(expression: ir.Expression | None) -> ir.Folded | None:
    """Return the constant, or the tuple of constants, that an expression is; else None."""
    if isinstance(expression, ir.Const):
        return expression.value
    if isinstance(expression, ir.Build):
        parts = [_folded(part) for part in expression.values]
        known = tuple(part for part in parts if part is not None)
        return known if len(known) == len(parts) else None
    return None


# --- Packages --------------------------------------------------------------------------------


def _package(
    body: Body,
    kind: types.PackageType,
    given: Sequence[ast.Argument],
    name: str,
    annotations: tuple[ir.Annotation, ...],
    position: Position,
) -> scope.PackageEntity:
    declaration = kind.declaration
    what = f"package '{kind.name}'"
    constant = Body(body.compiler, body.unit, body.scope, "constant")
    bounds = arguments.evaluate(constant, declaration.parameters, given, what, position)
    names = resolve.bind(
        body.compiler.generics[declaration].scope, declaration.type_parameters, kind.arguments
    )
    made: dict[str, scope.Entity] = {}
    for bound in bounds:
        operand = bound.operand
        wanted = resolve.type_of(body.compiler, bound.parameter.type, names)
        if isinstance(operand, EntityOperand):
            if not _unify_entity(body.compiler, wanted, operand.entity):
                _block_mismatch(body, bound, wanted, what)
            made[bound.parameter.name] = operand.entity
        else:
            convert.to_type(constant, operand, wanted, f"'{bound.parameter.name}' of {what}")
    return scope.PackageEntity(kind, name, made, annotations)


def _block_mismatch(body: Body, bound: arguments.Bound, wanted: types.Type, what: str) -> None:
    operand = bound.operand
    assert isinstance(operand, EntityOperand)
    text = f"'{bound.parameter.name}' of {what} must be of type '{wanted}'"
    if not isinstance(operand.entity, scope.BlockEntity) or not isinstance(wanted, types.BlockType):
        raise body.error(operand.position, f"{text}, not {describe(operand)}")
    expected = ", ".join(_shown(p) for p in wanted.declaration.parameters)
    actual = ", ".join(_shown(p) for p in operand.entity.type.declaration.parameters)
    raise body.error(
        operand.position,
        f"{text}: its parameters must be ({expected}), but '{operand.name}' has ({actual})",
    )


def _shown(parameter: ast.Parameter) -> str:
    direction = f"{parameter.direction.value} " if parameter.direction.value else ""
    kind = parameter.type
    if isinstance(kind, ast.SpecializedType):
        kind = kind.base
    return f"{direction}{resolve.written(kind)} {parameter.name}"


# --- Parsers and controls --------------------------------------------------------------------


def anonymous(body: Body, kind: types.Type, position: Position) -> scope.BlockEntity:
    """Make the instance for a type that is applied directly."""
    kind = types.resolved(kind)
    if not isinstance(kind, types.BlockType):
        raise body.error(position, f"'{kind}' cannot be applied")
    own = resolve.folded_annotations(body.compiler, kind.declaration.annotations, body.scope)
    return _block_entity(body, kind, (), body.unit.qualified(kind.name), own, position)


def _block_entity(
    body: Body,
    kind: types.BlockType,
    given: Sequence[ast.Argument],
    full_name: str,
    annotations: tuple[ir.Annotation, ...],
    position: Position,
) -> scope.BlockEntity:
    declaration = kind.declaration
    compiler = body.compiler
    has_body = (
        declaration.states if isinstance(declaration, ast.ParserDeclaration) else declaration.body
    )
    if has_body is None:
        raise body.error(
            position, f"'{kind.name}' is a type without a body; objects cannot be made of it"
        )
    what = f"'{kind.name}'"
    constant = Body(compiler, body.unit, body.scope, "constant")
    parameters = declaration.constructor_parameters
    bounds = arguments.evaluate(constant, parameters, given, what, position)
    names = resolve.bind(
        compiler.generics[declaration].scope, declaration.type_parameters, kind.arguments
    )
    bounds = arguments.with_defaults(constant, bounds, parameters, names)
    bindings: dict[str, scope.Entity] = {}
    for bound in bounds:
        wanted = resolve.type_of(compiler, bound.parameter.type, names)
        bindings[bound.parameter.name] = _binding(constant, bound, wanted, what)
    entity = scope.BlockEntity(kind, names, full_name, bindings, annotations)
    entity.position = position
    body.unit.contents.append(entity)
    return entity


def _binding(body: Body, bound: arguments.Bound, wanted: types.Type, what: str) -> scope.Entity:
    operand = bound.operand
    if isinstance(operand, EntityOperand):
        if not _unify_entity(body.compiler, wanted, operand.entity):
            raise body.error(
                operand.position,
                f"'{bound.parameter.name}' of {what} must be of type '{wanted}', "
                f"not {describe(operand)}",
            )
        return operand.entity
    value = convert.to_type(body, operand, wanted, f"'{bound.parameter.name}' of {what}")
    if not constants.is_known(value):
        raise body.error(
            operand.position, f"'{bound.parameter.name}' of {what} must be known when compiling"
        )
    found = scope.ConstantEntity(value)
    found.position = operand.position
    return found


def block(
    compiler: Compiler,
    entity: scope.BlockEntity,
    objects: Mapping[str, scope.Entity],
    position: Position,
) -> scope.BlockUnit:
    """Lower a parser or control instance, once for each set of extern objects it is applied to."""
    key = tuple(scope.identity(o) for o in objects.values())
    known = entity.blocks.get(key)
    if known is not None:
        return known
    declaration = entity.type.declaration
    if declaration in compiler.running:
        raise compiler.error(position, f"'{declaration.name}' applies itself; P4 has no recursion")
    compiler.running.add(declaration)
    try:
        made = _block(compiler, entity, objects)
    finally:
        compiler.running.discard(declaration)
    entity.blocks[key] = made
    return made


def _block(
    compiler: Compiler, entity: scope.BlockEntity, objects: Mapping[str, scope.Entity]
) -> scope.BlockUnit:
    declaration = entity.type.declaration
    compiler.used_declarations.add(declaration)
    unit = Unit(entity.name)
    names = scope.Scope(entity.scope)
    for name, bound in entity.bindings.items():
        bound = copy(bound)
        bound.parameter = True
        declare(compiler, names, name, bound)
    is_parser = isinstance(declaration, ast.ParserDeclaration)
    body = Body(compiler, unit, names, "parser" if is_parser else "control", entity.name)
    kinds = arguments.parameter_types(body, declaration.parameters, names)
    parameters: dict[str, ir.Parameter] = {}
    for parameter, kind in zip(declaration.parameters, kinds, strict=True):
        found = objects.get(parameter.name)
        if found is not None or isinstance(kind, types.Extern):
            if found is None:
                assert isinstance(kind, types.Extern)
                if kind.name not in PACKETS:
                    raise compiler.unsupported(
                        parameter.position,
                        f"a parameter of type '{kind}' of a top-level block is not supported",
                    )
                found = scope.ExternEntity(kind, None)
            declare(compiler, names, parameter.name, found)
        else:
            parameters[parameter.name] = callables.parameter_of(
                body, names, parameter, kind, entity.name
            )
    body.scope = scope.Scope(names)
    compiler.symbols.scopes.append((declaration.position, body.scope))
    for item in declaration.locals:
        with compiler.recovering(body.scope, item.name):
            local(body, item)
    states: dict[str, ir.State] = {}
    if isinstance(declaration, ast.ParserDeclaration):
        states = parsers.states(body, declaration)
    else:
        assert declaration.body is not None
        compiler.symbols.scopes.append((declaration.body.position, body.scope))
        bodies.block(body, declaration.body)
        bodies.warn_of_reads(body)
    made = ir.Block(
        entity.name,
        body.kind,
        declaration.name,
        tuple(parameters.values()),
        body.code,
        states,
        resolve.folded_annotations(compiler, declaration.annotations, entity.scope),
    )
    return scope.BlockUnit(made, unit, kinds, parameters)


def local(body: Body, item: ast.Declaration) -> None:
    """Lower a declaration local to a parser or control."""
    compiler = body.compiler
    if isinstance(item, ast.Instantiation):
        instantiation(body, item)
    elif isinstance(item, ast.ActionDeclaration):
        declare(compiler, body.scope, item.name, callables.action(body, item))
    elif isinstance(item, ast.TableDeclaration):
        declare(compiler, body.scope, item.name, tables.table(body, item))
    elif isinstance(item, ast.ValueSetDeclaration):
        declare(compiler, body.scope, item.name, parsers.value_set(body, item))
    elif isinstance(item, ast.FunctionDeclaration):
        callables.enter_function(compiler, body.unit, body.scope, item)
    else:
        statements.declaration(body, item)
