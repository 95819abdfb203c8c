"""Inference of type arguments by unification (specification 1.2.5, section 8.20)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p4switch.frontend.expressions import resolve
from p4switch.frontend.names.values import ListValue, Operand, Value
from p4switch.frontend.types import types

if TYPE_CHECKING:
    from collections.abc import Sequence

    from p4switch.frontend.names.compilation import Compiler
    from p4switch.position import Position


def unify(wanted: types.Type, found: types.Type) -> bool:
    """Bind the unknowns of two types so that the types become equal, if possible."""
    wanted, found = types.resolved(wanted), types.resolved(found)
    if wanted is found:
        return True
    if isinstance(wanted, types.Unknown):
        wanted.bound = found
        return True
    if isinstance(found, types.Unknown):
        found.bound = wanted
        return True
    if isinstance(wanted, types.Stack) and isinstance(found, types.Stack):
        return wanted.size == found.size and unify(wanted.element, found.element)
    if isinstance(wanted, types.Tuple) and isinstance(found, types.Tuple):
        return _all(wanted.elements, found.elements)
    if isinstance(wanted, types.ListOf) and isinstance(found, types.ListOf):
        return unify(wanted.element, found.element)
    if isinstance(wanted, (types.StructLike, types.Extern, types.BlockType, types.PackageType)):
        if type(wanted) is type(found) and wanted.arguments:
            assert isinstance(found, type(wanted))
            return wanted.declaration is found.declaration and _all(
                wanted.arguments, found.arguments
            )
        return False
    return wanted == found


def _all(wanted: Sequence[types.Type], found: Sequence[types.Type]) -> bool:
    return len(wanted) == len(found) and all(
        unify(a, b) for a, b in zip(wanted, found, strict=True)
    )


def from_operand(
    wanted: types.Type, operand: Operand, late: list[tuple[types.Type, Value]]
) -> None:
    """Learn type arguments from an argument of a call.

    Integers without a width go to `late`: they count only if nothing else determines the type.
    Mismatches are left for the conversion of the argument to report.
    """
    wanted = types.resolved(wanted)
    if isinstance(operand, Value):
        found = types.resolved(operand.type)
        if isinstance(found, types.Int):
            late.append((wanted, operand))
        elif (
            isinstance(found, types.Enum)
            and found.underlying is not None
            and isinstance(wanted, types.Bits)
        ):
            pass
        elif isinstance(found, types.Tuple) and isinstance(wanted, types.StructLike):
            for (_, kind), element in zip(types.parts(wanted), found.elements, strict=False):
                unify(kind, element)
        else:
            unify(wanted, found)
    elif isinstance(operand, ListValue):
        _from_list(wanted, operand, late)


def _from_list(
    wanted: types.Type, operand: ListValue, late: list[tuple[types.Type, Value]]
) -> None:
    if isinstance(wanted, types.Unknown):
        kinds: list[types.Type] = []
        for element in operand.elements:
            kind = types.Unknown("_")
            from_operand(kind, element, late)
            kinds.append(kind)
        if operand.names is None:
            wanted.bound = types.Tuple(tuple(kinds))
        return
    if isinstance(wanted, types.ListOf):
        for element in operand.elements:
            from_operand(wanted.element, element, late)
        return
    if isinstance(wanted, types.Stack):
        for element in operand.elements:
            from_operand(wanted.element, element, late)
        return
    expected = list(types.parts(wanted))
    if operand.names is not None:
        by_name = dict(expected)
        for name, element in zip(operand.names, operand.elements, strict=True):
            if name in by_name:
                from_operand(by_name[name], element, late)
        return
    for (_, part), element in zip(expected, operand.elements, strict=False):
        from_operand(part, element, late)


def solve(
    compiler: Compiler,
    pairs: Sequence[tuple[types.Type, Operand]],
    unknowns: Sequence[types.Unknown],
    what: str,
    position: Position,
    *,
    leave_open: bool = False,
) -> tuple[types.Type, ...]:
    """Find type arguments from pairs of a parameter's type and its argument.

    With `leave_open`, those that nothing is known about become opaque: they do not matter to a
    package whose optional parameters are left out.
    """
    late: list[tuple[types.Type, Value]] = []
    for kind, operand in pairs:
        from_operand(kind, operand, late)
    for target, number in late:
        if isinstance(types.resolved(target), types.Unknown):
            unify(target, number.type)
    found: list[types.Type] = []
    for unknown in unknowns:
        if leave_open and isinstance(types.resolved(unknown), types.Unknown):
            unknown.bound = types.Parameter(unknown.name)
        argument = resolve.ground(compiler, unknown)
        if types.contains(argument, types.Unknown):
            raise compiler.error(
                position,
                f"the type argument '{unknown.name}' of {what} cannot be inferred; write it, "
                "as in 'f<bit<32>>(...)'",
            )
        found.append(argument)
    return tuple(found)
