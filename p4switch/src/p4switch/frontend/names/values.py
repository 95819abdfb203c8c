"""A value, or one as soon as its type is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from p4switch import ir
from p4switch.frontend.types import types

if TYPE_CHECKING:
    from p4switch.position import Position


@dataclass(slots=True, eq=False)
class Operand:
    """The result of checking an expression."""

    position: Position


@dataclass(slots=True, eq=False)
class Value(Operand):
    """A value. Exactly one of `constant`, `expression` and `sized` is not None.

    `constant` holds scalars known when compiling (enums and errors as their numbers);
    `read_only` is None for what is no l-value, empty for an l-value that may be written,
    and else says why it may not be.
    """

    type: types.Type
    expression: ir.Expression | None = None
    constant: int | bool | str | None = None
    read_only: str | None = None
    sized: Callable[[types.Bits], Value] | None = None
    """Makes the value of an `int`, as `1 << k`, that has the width of its context."""


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
    """`...`: the default value of the expected type."""


@dataclass(slots=True, eq=False)
class DontCareValue(Operand):
    """`_`."""


@dataclass(slots=True, eq=False)
class TypeOperand(Operand):
    """A type in the place of an expression."""

    type: types.Type


def type_of(operand: Operand) -> types.Type:
    """Return an operand's type; a list's is a tuple, a record's a struct without a declaration."""
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
