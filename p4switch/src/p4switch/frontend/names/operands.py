"""Results of checking an expression of the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from p4switch import ir
from p4switch.frontend.names.values import (
    DefaultValue,
    DontCareValue,
    InvalidValue,
    ListValue,
    Operand,
    TypeOperand,
    Value,
)

if TYPE_CHECKING:
    from p4switch.frontend.names.scope import Entity, FunctionEntity


@dataclass(slots=True, eq=False)
class EntityOperand(Operand):
    """A function, action, table, instance or generic declaration."""

    entity: Entity
    name: str


@dataclass(slots=True, eq=False)
class FunctionsOperand(Operand):
    """The functions of a name."""

    functions: FunctionEntity
    name: str


@dataclass(slots=True, eq=False)
class MethodOperand(Operand):
    """`base.name` where it must be called: of an object, header, stack, table, block or value."""

    base: Operand
    name: str


@dataclass(slots=True, eq=False)
class ApplyResult(Operand):
    """`table.apply()` before `.hit`, `.miss` or `.action_run` selects a result."""

    statement: ir.ApplyTable
    entity: Entity


@dataclass(slots=True, eq=False)
class ActionRun(Operand):
    """`table.apply().action_run`."""

    value: ir.Expression
    entity: Entity


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
