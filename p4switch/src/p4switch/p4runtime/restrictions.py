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
from p4switch.position import Position
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
    """The restrictions of one program.

    Those that are not well-formed restrict nothing, as on BMv2, which p4c leaves them to;
    `warnings` says why.
    """

    def __init__(self, program: Program) -> None:
        self.warnings: list[tuple[Position, str]] = []
        self._tables: dict[str, Constraint] = {}
        self._actions: dict[str, Constraint] = {}
        for table in program.tables:
            kinds = {key.name: Kind(key.match_kind, key.width) for key in match_keys(table)}
            self._add(self._tables, table, ENTRY, {**kinds, PRIORITY: INT})
        for action in program.actions:
            kinds = {name: Kind("bit", width) for name, width in action_data(action)}
            self._add(self._actions, action, ACTION, kinds)

    def _add(
        self, found: dict[str, Constraint], item: _Restricted, name: str, kinds: dict[str, Kind]
    ) -> None:
        annotation = next((each for each in item.annotations if each.name == name), None)
        if annotation is None:
            return
        try:
            found[item.name] = _constraint(annotation, kinds)
        except ConstraintError as error:
            message = f"@{name} of {item.name!r} is not checked: {error}"
            self.warnings.append((item.position, message))

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


def _constraint(annotation: Annotation, kinds: dict[str, Kind]) -> Constraint:
    tokens = annotation.tokens
    if not tokens or any(not token.startswith('"') for token in tokens):
        raise ConstraintError("expected a string, in quotation marks")
    # Strings side by side are one.
    return Constraint("\n".join(map(decode_string, tokens)), kinds)


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
