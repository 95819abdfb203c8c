"""The actions of a table: its list, its default action and those of its entries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from p4switch import ir
from p4switch.frontend.expressions import arguments, evaluation
from p4switch.frontend.names import scope
from p4switch.frontend.names.compilation import Body, suggestion
from p4switch.frontend.syntax import ast, walk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from p4switch.position import Position

DEFAULT = "the default action"
ENTRY = "entries"


@dataclass(slots=True, eq=False)
class Listed:
    """An action in a table's list, with its arguments and annotations there."""

    name: str
    entity: scope.ActionEntity
    bound: int
    """Number of directional parameters, whose arguments are given in the list."""
    given: dict[str, ast.Expression] = field(default_factory=dict)
    """Arguments given there, by parameter."""
    forbidden: str = ""
    """Use that an annotation forbids."""


@dataclass(slots=True, eq=False)
class Properties:
    """The properties of a table other than keys, actions and entries."""

    size: int | None = None
    default: ir.ActionChoice | None = None
    default_constant: bool = False
    implementation: ir.ExternInstance | None = None
    counters: list[ir.ExternInstance] = field(default_factory=list)
    meters: list[ir.ExternInstance] = field(default_factory=list)
    support_timeout: bool = False
    largest_priority_wins: bool = True
    priority_delta: int = 1


def choose(
    body: Body,
    listed: Sequence[Listed],
    name: str,
    given: Sequence[ast.Argument],
    use: str,
    position: Position,
) -> ir.ActionChoice:
    """Lower an action with its data, as a default action or an entry gives it (`use`)."""
    index = next((i for i, item in enumerate(listed) if item.name == name), None)
    if index is None:
        known = suggestion(name, (item.name for item in listed))
        raise body.error(position, f"'{name}' is not in the table's list of actions{known}")
    item = listed[index]
    if item.forbidden == use:
        raise body.error(position, f"action '{name}' is annotated as not for {use}")
    parameters = item.entity.declaration.parameters
    what = f"action '{name}'"
    # The directional arguments, given in the list of actions, may be repeated here.
    if len(given) < len(parameters):
        parameters = parameters[item.bound :]
    pairs = arguments.match(body, parameters, given, what, position)
    kinds = {
        p.name: kind
        for p, kind in zip(
            item.entity.declaration.parameters, item.entity.parameter_types, strict=True
        )
    }
    values: dict[str, int] = {}
    for parameter, argument in pairs:
        label = f"'{parameter.name}' of {what}"
        if parameter.direction is not ast.Direction.NONE:
            if not walk.same(argument.value, item.given.get(parameter.name)):
                raise body.error(argument.position, f"{label} must be one of the list of actions")
            continue
        value = evaluation.value(body, argument.value, kinds[parameter.name], label)
        if value.constant is None or isinstance(value.constant, str):
            raise body.error(argument.position, f"{label} must be a number known when compiling")
        values[parameter.name] = int(value.constant)
    data = [p.name for p in item.entity.declaration.parameters][item.bound :]
    return ir.ActionChoice(index, tuple(values[name] for name in data))
