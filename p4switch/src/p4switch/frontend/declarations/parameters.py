"""Checks of all parameter lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p4switch.frontend.syntax import ast, walk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from p4switch.frontend.names.compilation import Compiler


def check_declaration(compiler: Compiler, item: ast.Declaration) -> None:
    """Check the parameter lists of a declaration of the top level, and of actions inside it."""
    if isinstance(item, (ast.ParserDeclaration, ast.ControlDeclaration)):
        both = [*item.parameters, *item.constructor_parameters]
        _check(compiler, item, item.type_parameters, both, optional=True)
        for local in item.locals:
            if isinstance(local, ast.ActionDeclaration):
                check_declaration(compiler, local)
    elif isinstance(item, ast.PackageDeclaration):
        _check(compiler, item, item.type_parameters, item.parameters, optional=True)
    elif isinstance(item, ast.FunctionDeclaration):
        _check(compiler, item, item.type_parameters, item.parameters, optional=False)
    elif isinstance(item, ast.ExternFunctionDeclaration):
        method = item.method
        _check(compiler, method, method.type_parameters, method.parameters, optional=True)
    elif isinstance(item, ast.ExternDeclaration):
        _check(compiler, item, item.type_parameters, (), optional=True)
        _methods(compiler, item)
    elif isinstance(item, ast.StructLike):
        _check(compiler, item, item.type_parameters, (), optional=False)
    elif isinstance(item, ast.ActionDeclaration):
        _check(compiler, item, (), item.parameters, optional=False)


def _check(
    compiler: Compiler,
    item: ast.Declaration,
    type_parameters: Sequence[str],
    parameters: Sequence[ast.Parameter],
    *,
    optional: bool,
) -> None:
    seen: set[str] = set()
    for name in type_parameters:
        if name in seen:
            raise compiler.error(item.position, f"type parameter '{name}' is declared twice")
        seen.add(name)
    for parameter in parameters:
        if parameter.name in seen:
            raise compiler.error(
                parameter.position, f"'{parameter.name}' is declared twice in this list"
            )
        seen.add(parameter.name)
        _parameter(compiler, parameter, optional)


def _parameter(compiler: Compiler, parameter: ast.Parameter, optional: bool) -> None:
    marked = any(a.name == "optional" for a in parameter.annotations)
    if marked and not optional:
        raise compiler.error(
            parameter.position, "optional parameters are for externs, packages and types only"
        )
    if parameter.default is not None:
        if parameter.direction in (ast.Direction.OUT, ast.Direction.INOUT):
            raise compiler.error(
                parameter.position,
                f"an {parameter.direction.value} parameter cannot have a default value",
            )
        if marked:
            raise compiler.error(
                parameter.position, "an optional parameter cannot have a default value"
            )
    if (
        parameter.direction is not ast.Direction.NONE
        and isinstance(parameter.type, ast.SimpleType)
        and parameter.type.name in ("string", "match_kind")
    ):
        raise compiler.error(
            parameter.position,
            f"a parameter of type '{parameter.type.name}' cannot have a direction",
        )


def _methods(compiler: Compiler, item: ast.ExternDeclaration) -> None:
    seen: dict[tuple[str, tuple[str, ...]], ast.MethodDeclaration] = {}
    for method in item.methods:
        if method.name == item.name and method.returns is not None:
            raise compiler.error(
                method.position, f"'{item.name}' is a constructor and has no type to return"
            )
        _check(
            compiler,
            method,
            method.type_parameters,
            method.parameters,
            optional=True,
        )
        for node in walk.nodes([parameter.type for parameter in method.parameters]):
            if isinstance(node, ast.NamedType) and node.name == item.name:
                raise compiler.error(
                    node.position, f"a method of extern '{item.name}' cannot take a '{item.name}'"
                )
        key = (method.name, tuple(sorted(p.name for p in method.parameters)))
        other = seen.setdefault(key, method)
        if other is not method:
            raise compiler.error(
                method.position,
                f"'{method.name}' with these parameters is declared twice; first at "
                f"{other.position}",
            )
