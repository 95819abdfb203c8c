"""The restrictions that a program puts on the entries of its tables and on its actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from p4switch.ir import Annotation, Callable, Program, Table
from p4switch.literals import decode_string
from p4switch.p4runtime.constraints import (
    INT,
    PRIORITY,
    Constraint,
    ConstraintError,
    Form,
    Kind,
    Values,
)
from p4switch.position import P4Error, Position
from p4switch.targets.v1model.engine import ControlError, KeyMatch
from p4switch.targets.v1model.matches import action_data, match_keys, ternary_form

ENTRY, ACTION = "entry_restriction", "action_restriction"


class _Restricted(Protocol):
    """A table or an action."""

    @property
    def name(self) -> str: ...

    @property
    def annotations(self) -> tuple[Annotation, ...]: ...

    @property
    def position(self) -> Position: ...


class Restrictions:
    """The restrictions of one program."""

    def __init__(self, program: Program) -> None:
        """Raise P4Error for one that is not well-formed."""
        self._tables: dict[str, Constraint] = {}
        self._actions: dict[str, Constraint] = {}
        for table in program.tables:
            kinds = {key.name: Kind(key.match_kind, key.width) for key in match_keys(table)}
            found = _constraint(table, ENTRY, {**kinds, PRIORITY: INT})
            if found is not None:
                self._tables[table.name] = found
        for action in program.actions:
            kinds = {name: Kind("bit", width) for name, width in action_data(action)}
            found = _constraint(action, ACTION, kinds)
            if found is not None:
                self._actions[action.name] = found

    def check_entry(self, table: Table, matches: Sequence[KeyMatch], priority: int) -> None:
        """Raise INVALID_ARGUMENT for an entry that its table does not allow."""
        constraint = self._tables.get(table.name)
        if constraint is not None:
            values: dict[str, Form] = {
                key.name: _form(match, key.match_kind, key.width)
                for key, match in zip(match_keys(table), matches, strict=True)
            }
            values[PRIORITY] = priority
            _check(constraint, values, f"table {table.name!r}", ENTRY)

    def check_action(self, action: Callable, arguments: Sequence[int]) -> None:
        """Raise INVALID_ARGUMENT for arguments that an action does not allow."""
        constraint = self._actions.get(action.name)
        if constraint is not None:
            names = [name for name, _ in action_data(action)]
            values = dict(zip(names, arguments, strict=True))
            _check(constraint, values, f"action {action.name!r}", ACTION)


def _constraint(item: _Restricted, name: str, kinds: dict[str, Kind]) -> Constraint | None:
    found = next((each for each in item.annotations if each.name == name), None)
    if found is None:
        return None
    where = f"@{name} of {item.name!r}"
    if not found.tokens or any(not token.startswith('"') for token in found.tokens):
        raise P4Error(item.position, f"{where}: expected a string, in quotation marks")
    # Strings side by side are one.
    text = "\n".join(decode_string(token) for token in found.tokens)
    try:
        return Constraint(text, kinds)
    except ConstraintError as error:
        raise P4Error(item.position, f"{where}: {error}") from None


def _form(match: KeyMatch, match_kind: str, width: int) -> Form:
    if match_kind == "exact":
        return (match.value,)
    if match_kind == "range":
        return (0, (1 << width) - 1) if match.any else (match.value, match.high)
    if match_kind == "lpm":
        return match.value, match.prefix_length
    return ternary_form(match, match_kind, width)


def _check(constraint: Constraint, values: Values, where: str, name: str) -> None:
    found = constraint.violated(values)
    if found is None:
        return
    part, names = found
    given = ", ".join(f"{each} is {_shown(values[each])}" for each in values if each in names)
    raise ControlError(
        "INVALID_ARGUMENT",
        f"{where}: its @{name} demands {part!r}" + (f", but {given}" if given else ""),
    )


def _shown(form: Form) -> str:
    if isinstance(form, int):
        return str(form)
    return hex(form[0]) if len(form) == 1 else f"({', '.join(map(hex, form))})"
