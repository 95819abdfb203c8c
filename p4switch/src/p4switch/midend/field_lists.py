"""Field lists: the metadata that a cloned, resubmitted or recirculated packet keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from p4switch import ir
from p4switch.midend.call_graph import bodies, reachable
from p4switch.midend.visit import statements
from p4switch.position import UnsupportedError

DEPRECATED = {
    "clone3": "clone_preserving_field_list",
    "resubmit": "resubmit_preserving_field_list",
    "recirculate": "recirculate_preserving_field_list",
}
"""Externs whose last argument lists the fields, and those that name the list."""

FIRST_OF_CALLS = 256
"""The first number of a list that a call made; those of @field_list are bit<8>."""


def field_lists(package: ir.Package) -> dict[int, tuple[ir.FieldPath, ...]]:
    """Return the field lists of a program by number.

    Deprecated calls with data are changed to those that name a list, one of their own. As in BMv2,
    a list's fields have the values of the end of ingress or egress, not those of the call. Raises
    UnsupportedError for data that are not fields of metadata.
    """
    roots = _roots(package)
    lists: dict[int, list[ir.FieldPath]] = {}
    for variable, name in roots.items():
        _annotated(variable.type, (name,), lists)
    for call in _deprecated_calls(package):
        data = call.arguments[-1].value
        number = max(FIRST_OF_CALLS, *lists, 0) + 1
        lists[number] = list(_paths(data, roots, call))
        index = ir.Argument("index", "in", ir.Const(ir.BIT32, number))
        call.method = DEPRECATED[call.method]
        call.arguments = (*call.arguments[:-1], index)
        call.type_arguments = ()
    return {number: tuple(dict.fromkeys(paths)) for number, paths in lists.items()}


def path_of(place: ir.Expression, roots: Mapping[ir.Variable, str]) -> ir.FieldPath | None:
    """Return the path of a field of metadata; None if it is none."""
    names: list[str] = []
    while isinstance(place, ir.Field):
        names.append(place.name)
        place = place.base
    if not isinstance(place, ir.Read) or place.variable not in roots:
        return None
    return (roots[place.variable], *reversed(names))


def _roots(package: ir.Package) -> dict[ir.Variable, str]:
    """Return the parameters with metadata of the blocks that have them."""
    found: dict[ir.Variable, str] = {}
    for name in ("p", "ig", "eg"):
        block = package.blocks.get(name)
        if block is not None and len(block.parameters) == len(ir.FIELD_PATH_ROOTS) + 1:
            variables = (parameter.variable for parameter in block.parameters[1:])
            found.update(zip(variables, ir.FIELD_PATH_ROOTS, strict=True))
    return found


def _annotated(kind: ir.Type, path: ir.FieldPath, lists: dict[int, list[ir.FieldPath]]) -> None:
    """Add the fields with @field_list."""
    if not isinstance(kind, ir.Struct):
        return
    for field in kind.fields:
        for annotation in field.annotations:
            if annotation.name == "field_list":
                for index in annotation.arguments:
                    lists.setdefault(int(index), []).append((*path, field.name))
        _annotated(field.type, (*path, field.name), lists)


def _deprecated_calls(package: ir.Package) -> Iterator[ir.CallExtern]:
    for function in reachable(package.blocks.values()):
        for body in bodies(function):
            for statement in statements(body):
                if (
                    isinstance(statement, ir.CallExtern)
                    and statement.instance is None
                    and statement.method in DEPRECATED
                    and statement.arguments
                ):
                    yield statement


def _paths(
    data: ir.Expression, roots: Mapping[ir.Variable, str], call: ir.CallExtern
) -> Iterator[ir.FieldPath]:
    if isinstance(data, ir.Build):
        for value in data.values:
            yield from _paths(value, roots, call)
        return
    path = path_of(data, roots)
    if path is None:
        raise UnsupportedError(
            call.position,
            f"{call.method!r} can preserve fields of metadata only; annotate them with "
            f"@field_list and call {DEPRECATED[call.method]!r}",
        )
    yield path
