"""What an expression of the source turns into while it is checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from p4switch import ir
from p4switch.frontend.types import types

if TYPE_CHECKING:
    from p4switch.frontend.names.scope import Entity, FunctionEntity
    from p4switch.position import Position


@dataclass(slots=True, eq=False)
class Operand:
    """The result of checking an expression."""

    position: Position


@dataclass(slots=True, eq=False)
class Value(Operand):
    """A value. Exactly one of `constant` and `expression` is not None.

    `constant` holds scalars known when compiling (enums and errors as their numbers);
    `read_only` is None for what is no l-value, empty for an l-value that may be written,
    and else says why it may not be.
    """

    type: types.Type
    expression: ir.Expression | None = None
    constant: int | bool | str | None = None
    read_only: str | None = None
    known: bool = False
    """Known when compiling: constants, and structs and tuples of nothing but constants."""
    bounded: bool = False
    """It was an `int` without width that an operator's other operand gave one."""


@dataclass(slots=True, eq=False)
class ListValue(Operand):
    """`{a, b}` or `{a = x, b = y}` (`names`) before its type is known.

    `defaults`: it ended in `...`.
    """

    elements: list[Operand]
    names: list[str] | None
    defaults: bool


@dataclass(slots=True, eq=False)
class InvalidValue(Operand):
    """`{#}`."""


@dataclass(slots=True, eq=False)
class DefaultValue(Operand):
    """`...`: the default value of whatever type is wanted."""


@dataclass(slots=True, eq=False)
class DontCareValue(Operand):
    """`_`."""


@dataclass(slots=True, eq=False)
class TypeOperand(Operand):
    """A type where an expression stands."""

    type: types.Type


@dataclass(slots=True, eq=False)
class EntityOperand(Operand):
    """A function, action, table, instance or generic declaration."""

    entity: Entity
    name: str


@dataclass(slots=True, eq=False)
class FunctionsOperand(Operand):
    """The functions a name stands for."""

    functions: FunctionEntity
    name: str


@dataclass(slots=True, eq=False)
class MethodOperand(Operand):
    """`base.name` where it must be called: of an object, header, stack, table, block or value."""

    base: Operand
    name: str


@dataclass(slots=True, eq=False)
class ApplyResult(Operand):
    """`table.apply()` before `.hit`, `.miss` or `.action_run` says what is wanted."""

    statement: ir.ApplyTable
    entity: Entity


@dataclass(slots=True, eq=False)
class ActionRun(Operand):
    """`table.apply().action_run`."""

    value: ir.Expression
    entity: Entity


def type_of(operand: Operand) -> types.Type:
    """Say an operand's type; a list's is a tuple, a record's a struct without a declaration."""
    if isinstance(operand, Value):
        return operand.type
    if isinstance(operand, ListValue):
        elements = [type_of(element) for element in operand.elements]
        if operand.names is None:
            return types.Tuple(tuple(elements))
        return types.StructLike(
            "struct",
            "struct_literal",
            None,
            (),
            {
                name: types.FieldInfo(name, kind)
                for name, kind in zip(operand.names, elements, strict=True)
            },
        )
    if isinstance(operand, InvalidValue):
        return types.INVALID
    if isinstance(operand, DontCareValue):
        return types.DONT_CARE
    return types.VOID


def describe(operand: Operand) -> str:
    """Describe an operand for an error message."""
    if isinstance(operand, Value):
        return f"a value of type '{operand.type}'"
    if isinstance(operand, ListValue):
        if operand.names is None:
            return f"a list of {len(operand.elements)} elements"
        return f"a structure of fields {', '.join(operand.names)}"
    if isinstance(operand, InvalidValue):
        return "an invalid header '{#}'"
    if isinstance(operand, DontCareValue):
        return "'_'"
    if isinstance(operand, DefaultValue):
        return "'...'"
    if isinstance(operand, TypeOperand):
        return f"the type '{operand.type}'"
    if isinstance(operand, FunctionsOperand):
        return f"the function '{operand.name}'"
    if isinstance(operand, EntityOperand):
        kind = type(operand.entity).__name__.removesuffix("Entity").lower()
        kind = {"block": "instance", "extern": "extern object", "generic": "type"}.get(kind, kind)
        return f"the {kind} '{operand.name}'"
    if isinstance(operand, MethodOperand):
        return f"the method '{operand.name}'"
    if isinstance(operand, ApplyResult):
        return "the result of a table's apply"
    return "an 'action_run'"
