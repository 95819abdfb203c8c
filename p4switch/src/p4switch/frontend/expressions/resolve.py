"""Types as written, resolved; generic declarations, specialised; annotations, folded."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from p4switch import ir
from p4switch.frontend.constants import constants
from p4switch.frontend.expressions import evaluation
from p4switch.frontend.names import scope
from p4switch.frontend.names.compilation import Body, Compiler, suggestion
from p4switch.frontend.syntax import ast, walk
from p4switch.frontend.types import types
from p4switch.position import P4Error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from p4switch.frontend.names.scope import Scope
    from p4switch.position import Position

_SIMPLE = {
    "bool": types.BOOL,
    "error": types.ERROR,
    "string": types.STRING,
    "void": types.VOID,
    "match_kind": types.MATCH_KIND,
}
MAX_WIDTH = 2048
MAX_PACKET_BITS = 8 * 65536
MAX_STACK = 65536
"""Maximum number of one-byte headers in the largest packet."""
_TRANSLATION = re.compile(r'".*" , (string|[0-9]\w*|bit < [0-9]\w* >)')
_HEADER_FIELDS = (types.Bits, types.Varbit, types.NewType, types.Parameter, types.Unknown)


def type_of(compiler: Compiler, reference: ast.TypeRef, names: Scope) -> types.Type:
    """Resolve a type as written."""
    if isinstance(reference, ast.NamedType):
        return _named(compiler, reference, names)
    if isinstance(reference, ast.BitType):
        if reference.width is None:
            return types.INT if reference.signed else types.BIT1
        width = _size(compiler, reference.width, names, "the width")
        if width > MAX_WIDTH:
            raise compiler.error(
                reference.position, f"width {width} is larger than {MAX_WIDTH}, the largest allowed"
            )
        if reference.signed and width == 0:
            raise compiler.error(reference.position, "int<0> has no room for its sign")
        return types.Bits(width, reference.signed)
    if isinstance(reference, ast.SimpleType):
        return _SIMPLE[reference.name]
    if isinstance(reference, ast.VarbitType):
        width = _size(compiler, reference.width, names, "the width")
        if width > MAX_PACKET_BITS:
            raise compiler.error(
                reference.position,
                f"varbit<{width}> is larger than any packet, which has at most "
                f"{MAX_PACKET_BITS} bits",
            )
        return types.Varbit(width)
    if isinstance(reference, ast.StackType):
        return _stack(compiler, reference, names)
    if isinstance(reference, ast.TupleType):
        return types.Tuple(tuple(_element(compiler, e, names) for e in reference.elements))
    if isinstance(reference, ast.ListType):
        return types.ListOf(type_of(compiler, reference.element, names))
    if isinstance(reference, ast.SpecializedType):
        entity = _type_entity(compiler, reference.base, names)
        if not isinstance(entity, scope.GenericEntity):
            raise compiler.error(
                reference.position, f"'{reference.base.name}' has no type parameters to give"
            )
        arguments = tuple(type_of(compiler, a, names) for a in reference.arguments)
        return specialise(compiler, entity, arguments, reference.position)
    if isinstance(reference, ast.DontCareType):
        return types.Unknown("_")
    raise AssertionError(reference)


def _element(compiler: Compiler, reference: ast.TypeRef, names: Scope) -> types.Type:
    """Resolve the type of a tuple's element (P4_16 specification, section 7.2.8)."""
    kind = type_of(compiler, reference, names)
    if kind in (types.STRING, types.VOID) or isinstance(reference, ast.DontCareType):
        raise compiler.error(
            reference.position, f"an element of a tuple cannot be of type '{written(reference)}'"
        )
    return kind


def _type_entity(compiler: Compiler, reference: ast.NamedType, names: Scope) -> scope.Entity:
    where = names.top if reference.absolute else names
    entity = where.find(reference.name)
    if entity is None:
        raise compiler.error(
            reference.position,
            f"no type is called '{reference.name}'{suggestion(reference.name, where.visible())}",
        )
    compiler.symbols.uses[reference.position] = reference.name, entity
    return entity


def _named(compiler: Compiler, reference: ast.NamedType, names: Scope) -> types.Type:
    entity = _type_entity(compiler, reference, names)
    if isinstance(entity, scope.TypeEntity):
        return entity.type
    if isinstance(entity, scope.GenericEntity):
        return specialise(compiler, entity, (), reference.position)
    raise compiler.error(reference.position, f"'{reference.name}' is not a type")


def _stack(compiler: Compiler, reference: ast.StackType, names: Scope) -> types.Type:
    element = type_of(compiler, reference.element, names)
    if not (
        types.is_header(element)
        or types.is_union(element)
        or isinstance(element, (types.Parameter, types.Unknown))
    ):
        raise compiler.unsupported(
            reference.position,
            f"arrays of '{element}' are not supported, only stacks of headers and header unions",
        )
    size = _size(compiler, reference.size, names, "the size")
    if size == 0:
        raise compiler.error(reference.position, "a stack of size 0 is not allowed")
    if size > MAX_STACK:
        raise compiler.error(
            reference.position,
            f"a stack of {size} elements is larger than any packet; at most {MAX_STACK} are "
            "supported",
        )
    return types.Stack(element, size)


def _size(compiler: Compiler, expression: ast.Expression, names: Scope, what: str) -> int:
    if isinstance(expression, ast.IntLiteral):
        return expression.value
    for node in walk.nodes(expression):
        if isinstance(node, ast.Name):
            entity = (names.top if node.absolute else names).find(node.name)
            if entity is not None and entity.parameter:
                raise compiler.error(
                    node.position, f"{what} must be a constant, not the parameter '{node.name}'"
                )
    body = Body(compiler, compiler.top, names, "constant")
    value = constants.integer(body, expression, what)
    if value < 0:
        raise compiler.error(expression.position, f"{what} is {value}; it cannot be negative")
    return value


def specialise(
    compiler: Compiler,
    entity: scope.GenericEntity,
    arguments: tuple[types.Type, ...],
    position: Position,
) -> types.Type:
    """Apply a declaration with type parameters to types; the same ones give the same object."""
    declaration = entity.declaration
    if len(arguments) != len(declaration.type_parameters):
        wanted = len(declaration.type_parameters)
        hint = (
            f"; write {declaration.name}<{', '.join(declaration.type_parameters)}>"
            if not arguments
            else ""
        )
        raise compiler.error(
            position,
            f"'{declaration.name}' takes {wanted} type argument{'s' * (wanted != 1)}, "
            f"not {len(arguments)}{hint}",
        )
    made = entity.made.get(arguments)
    if made is not None:
        return made
    if isinstance(declaration, ast.StructLike) and any(
        _holds(argument, declaration) for argument in arguments
    ):
        raise compiler.error(position, f"'{declaration.name}' cannot be a type argument of itself")
    if isinstance(declaration, ast.ExternDeclaration):
        made = types.Extern(declaration, arguments)
    elif isinstance(declaration, (ast.ParserDeclaration, ast.ControlDeclaration)):
        made = types.BlockType(declaration, arguments)
    elif isinstance(declaration, ast.PackageDeclaration):
        made = types.PackageType(declaration, arguments)
    else:
        made = types.StructLike(declaration.kind, declaration.name, declaration, arguments)
        entity.made[arguments] = made
        inner = bind(entity.scope, declaration.type_parameters, arguments)
        _fill(compiler, made, declaration, inner)
        return made
    entity.made[arguments] = made
    return made


def _holds(kind: types.Type, declaration: ast.StructLike) -> bool:
    """Return whether a type is made from a declaration, or has type arguments that are."""
    if not isinstance(kind, types.StructLike):
        return False
    return kind.declaration is declaration or any(_holds(a, declaration) for a in kind.arguments)


def bind(outer: Scope, parameters: Sequence[str], arguments: Sequence[types.Type]) -> Scope:
    """Open a scope in which type parameters stand for types."""
    inner = scope.Scope(outer)
    for name, argument in zip(parameters, arguments, strict=True):
        inner.names[name] = scope.TypeEntity(argument)
    return inner


def extern_scope(compiler: Compiler, kind: types.Extern) -> Scope:
    """Give the scope in which an extern's methods are declared."""
    known = compiler.extern_scopes.get(kind)
    if known is None:
        generic = compiler.generics[kind.declaration]
        known = bind(generic.scope, kind.declaration.type_parameters, kind.arguments)
        compiler.extern_scopes[kind] = known
    return known


def _fill(
    compiler: Compiler, made: types.StructLike, declaration: ast.StructLike, names: Scope
) -> None:
    made.annotations = folded_annotations(compiler, declaration.annotations, names)
    for item in declaration.fields:
        kind = type_of(compiler, item.type, names)
        if item.name in made.fields:
            raise compiler.error(item.position, f"field '{item.name}' is declared twice")
        _check_field(compiler, made, item, kind)
        for annotation in item.annotations:
            if annotation.name == "match":
                _check_match(compiler, annotation)
            elif annotation.name == "length":
                _check_length(compiler, annotation, made, names)
        made.fields[item.name] = types.FieldInfo(
            item.name, kind, folded_annotations(compiler, item.annotations, names)
        )


def _check_match(compiler: Compiler, annotation: ast.Annotation) -> None:
    """Check a field's `@match`, which says how value sets match it."""
    found = annotation.arguments
    if len(found) != 1 or written(found[0]) not in compiler.match_kinds:
        raise compiler.error(annotation.position, "'@match' takes one match kind")


def _check_length(
    compiler: Compiler, annotation: ast.Annotation, made: types.StructLike, names: Scope
) -> None:
    """Check the names in a field's `@length`, which gives a varbit's width by fields before it."""
    for argument in annotation.arguments:
        for node in walk.nodes(argument):
            if isinstance(node, ast.Name) and not (
                node.name in made.fields or names.find(node.name)
            ):
                raise compiler.error(
                    node.position,
                    f"'{node.name}' of '@length' is neither declared nor an earlier field",
                )


def _check_field(
    compiler: Compiler, made: types.StructLike, item: ast.FieldDeclaration, kind: types.Type
) -> None:
    kind = types.resolved(kind)
    if isinstance(kind, types.Unknown):
        return
    if made.kind == "header_union":
        if not types.is_header(kind) and not isinstance(kind, types.Parameter):
            raise compiler.error(item.position, f"a header union holds headers only, not '{kind}'")
    elif made.kind == "header":
        if not _fits_header(kind):
            raise compiler.error(
                item.position,
                f"a header field cannot be of type '{kind}'; allowed are bit<>, int<>, varbit<>, "
                "bool, serialisable enums and structs of these",
            )
    elif isinstance(kind, (types.Extern, types.BlockType, types.PackageType, types.Int)) or (
        kind in (types.VOID, types.MATCH_KIND)
    ):
        raise compiler.error(item.position, f"a struct field cannot be of type '{kind}'")


def _fits_header(kind: types.Type) -> bool:
    if types.is_struct(kind):
        return all(_fits_header(types.resolved(part)) for _, part in types.parts(kind))
    if isinstance(kind, types.Enum):
        return kind.underlying is not None
    return isinstance(kind, _HEADER_FIELDS) or kind is types.BOOL


def ground(compiler: Compiler, kind: types.Type) -> types.Type:
    """Replace the inference variables inside a type by what they are bound to."""
    kind = types.resolved(kind)
    if isinstance(kind, types.Tuple):
        return types.Tuple(tuple(ground(compiler, e) for e in kind.elements))
    if isinstance(kind, types.Stack):
        return types.Stack(ground(compiler, kind.element), kind.size)
    if isinstance(kind, types.ListOf):
        return types.ListOf(ground(compiler, kind.element))
    if isinstance(kind, (types.StructLike, types.Extern, types.BlockType, types.PackageType)):
        if not kind.arguments:
            return kind
        arguments = tuple(ground(compiler, a) for a in kind.arguments)
        if all(a is b for a, b in zip(arguments, kind.arguments, strict=True)):
            return kind
        assert kind.declaration is not None
        generic = compiler.generics[kind.declaration]
        return specialise(compiler, generic, arguments, kind.declaration.position)
    return kind


def folded_annotations(
    compiler: Compiler, found: Sequence[ast.Annotation], names: Scope
) -> tuple[ir.Annotation, ...]:
    """Fold annotations' arguments to plain values."""
    if not found:
        return ()
    for item in found:
        if item.structured and sum(other.name == item.name for other in found) > 1:
            raise compiler.error(
                item.position, f"'@{item.name}[...]' must be the only annotation of that name here"
            )
        if item.name == "name" and not (
            len(item.arguments) == 1
            and isinstance(_argument(compiler, item.arguments[0], names), str)
        ):
            raise compiler.error(item.position, "'@name' takes one string")
        if item.name == "pkginfo" and not item.tokens:
            raise compiler.error(item.position, "'@pkginfo' takes a list of NAME=VALUE")
        if item.name == "deprecated" and not (
            len(item.arguments) == 1
            and isinstance(_argument(compiler, item.arguments[0], names), str)
        ):
            raise compiler.error(item.position, "'@deprecated' takes one string")
        if item.name == "p4runtime_translation" and not _TRANSLATION.fullmatch(
            " ".join(item.tokens)
        ):
            raise compiler.error(
                item.position,
                "'@p4runtime_translation' takes a string and 'bit<N>', 'string' or a number",
            )
    return tuple(
        ir.Annotation(
            item.name,
            _arguments(compiler, item, names),
            tuple((key, _argument(compiler, a, names)) for key, a in item.pairs.items()),
            tuple(item.tokens),
            item.structured,
        )
        for item in found
    )


def _arguments(
    compiler: Compiler, item: ast.Annotation, names: Scope
) -> tuple[int | str | bool, ...]:
    """Fold an annotation's arguments.

    Annotations that are not structured are free to hold anything: what is no list of constants
    stays as the raw text in `tokens` only.
    """
    try:
        return tuple(_argument(compiler, a, names) for a in item.arguments)
    except P4Error:
        if item.name == "name" or item.structured:
            raise
        return ()


def _argument(compiler: Compiler, expression: ast.Expression, names: Scope) -> int | str | bool:
    if isinstance(expression, ast.StringLiteral):
        return expression.value
    if isinstance(expression, ast.BoolLiteral):
        return expression.value
    if isinstance(expression, ast.IntLiteral):
        return expression.value
    if isinstance(expression, (ast.Name, ast.TypeExpression, ast.Member)):
        entity = names.find(expression.name) if isinstance(expression, ast.Name) else None
        if isinstance(entity, scope.ConstantEntity):
            folded = constants.scalar(entity.value)
            if folded is not None:
                return folded
        if isinstance(expression, ast.Member):
            return _member(expression, names)
        return written(expression)
    body = Body(compiler, compiler.top, names, "constant")
    folded = constants.scalar(evaluation.evaluate(body, expression))
    if folded is None:
        raise compiler.error(expression.position, "an annotation's argument must be a constant")
    return folded


def _member(expression: ast.Member, names: Scope) -> int | str:
    """Fold a member of an enum; another `a.b` stays as it is written."""
    base = expression.base
    if isinstance(base, ast.TypeExpression) and isinstance(base.type, ast.NamedType):
        base = ast.Name(base.position, base.type.name, base.type.absolute)
    if isinstance(base, ast.Name):
        entity = names.find(base.name)
        if isinstance(entity, scope.TypeEntity) and isinstance(entity.type, types.Enum):
            number = entity.type.members.get(expression.name)
            if number is not None:
                return number
    return written(expression)


def written(node: ast.Expression | ast.TypeRef) -> str:
    """Give names and simple types as the source wrote them."""
    if isinstance(node, (ast.Name, ast.NamedType)):
        return f".{node.name}" if node.absolute else node.name
    if isinstance(node, ast.Member):
        return f"{written(node.base)}.{node.name}"
    if isinstance(node, ast.TypeExpression):
        return written(node.type)
    if isinstance(node, ast.SimpleType):
        return node.name
    if isinstance(node, ast.DontCareType):
        return "_"
    if isinstance(node, ast.BitType):
        width = f"<{node.width.value}>" if isinstance(node.width, ast.IntLiteral) else ""
        return f"{'int' if node.signed else 'bit'}{width}"
    return type(node).__name__
