"""Actions and tables."""

from __future__ import annotations

import re
from collections.abc import Callable

from p4switch import ir
from p4switch.bmv2_json.control_plane import HIDDEN, ControlPlane
from p4switch.bmv2_json.document import Document, Part, number_of
from p4switch.bmv2_json.expressions import Expressions
from p4switch.bmv2_json.externs import Arrays, call
from p4switch.bmv2_json.headers import Headers
from p4switch.bmv2_json.primitives import Primitives

OWN_TABLES = re.compile(r"tbl_\w+|switch_\d+_table\w*")
"""p4c's name prefixes of tables made from calls, assignments and switch statements."""
NO_ACTION = "NoAction"
MATCH_KINDS = ("exact", "lpm", "ternary", "range", "valid")


class Tables:
    """Translates the actions and tables of a file."""

    def __init__(
        self,
        document: Document,
        headers: Headers,
        arrays: Arrays,
        primitives: Primitives,
        control_plane: ControlPlane,
        variables: Callable[[str, ir.Type], ir.Variable],
    ) -> None:
        self._document = document
        self._headers = headers
        self._arrays = arrays
        self._primitives = primitives
        self._control_plane = control_plane
        self._variables = variables
        self._expressions = Expressions(document, headers)
        self._parts = [
            part for pipeline in document.parts("pipelines") for part in pipeline["tables"]
        ]
        parts = {part["id"]: part for part in document.parts("actions")}
        self._numbers = {part["name"]: part["id"] for part in parts.values()}
        shown = {
            parts[number]["name"]
            for part in self._parts
            if not self._is_hidden(part)
            for number in self._action_numbers(part)
            if number in parts
        }
        self.actions = {
            number: self._action(part, part["name"] not in shown) for number, part in parts.items()
        }
        self.tables = {part["name"]: self._table(part) for part in self._parts}

    # --- actions

    def _action_numbers(self, part: Part) -> list[int]:
        """Return the numbers of a table's actions, which old files give only by name."""
        numbers: list[int] = part.get("action_ids") or [self._numbers[n] for n in part["actions"]]
        return numbers

    def action(self, number: int, part: Part) -> ir.Callable:
        """Return an action by its number."""
        if number not in self.actions:
            raise self._document.error(f"there is no action {number}", part)
        return self.actions[number]

    def _action(self, part: Part, hidden: bool) -> ir.Callable:
        name = part["name"]
        ids = self._control_plane.data(name)
        parameters = tuple(
            ir.Parameter(
                item["name"],
                "",
                self._variables(
                    f"{name}_{item['name']}", ir.Bits(self._document.width(item["bitwidth"], part))
                ),
                ids.get(item["name"], ()),
            )
            for item in part["runtime_data"]
        )
        variables = [parameter.variable for parameter in parameters]
        expressions = Expressions(self._document, self._headers, variables)
        annotations = self._control_plane.annotations("actions", name)
        # Names from the source are prefixed with their control's name.
        if not self._control_plane and hidden and "." not in name:
            annotations = (HIDDEN,)
        return ir.Callable(
            name,
            parameters,
            self._primitives.code(part["primitives"], expressions),
            annotations=annotations,
            is_action=True,
            position=self._document.position(part),
        )

    # --- tables

    def _is_hidden(self, part: Part) -> bool:
        if self._control_plane:
            return HIDDEN in self._control_plane.annotations("tables", part["name"])
        return OWN_TABLES.fullmatch(part["name"]) is not None

    def _table(self, part: Part) -> ir.Table:
        name = part["name"]
        annotations = self._control_plane.annotations("tables", name)
        if self._is_hidden(part):
            annotations = (HIDDEN,)
        keys = self._keys(part)
        scopes = self._control_plane.action_scopes(name)
        listed = [self.action(number, part) for number in self._action_numbers(part)]
        actions = [
            ir.TableAction(item, self._colour(name), annotations=scopes.get(item.name, ()))
            for item in listed
        ]
        default, constant = self._default(part, actions)
        direct = self._arrays.of_table.get(name, [])
        entries = tuple(self._entry(entry, keys, part) for entry in part.get("entries") or [])
        if len({entry.priority is None for entry in entries}) > 1:
            raise self._document.error("some entries have a priority, others none", part)
        profile = part.get("action_profile") if part["type"] != "simple" else None
        return ir.Table(
            name,
            keys + self._selector_keys(profile),
            tuple(actions),
            default,
            constant,
            entries,
            bool(entries) and self._control_plane.is_const(name),
            int(part.get("max_size") or 0) or None,
            largest_priority_wins=False,
            implementation=self._arrays.instances[profile] if profile else None,
            counters=tuple(item for item in direct if item.extern == "direct_counter"),
            meters=tuple(item for item in direct if item.extern == "direct_meter"),
            support_timeout=bool(part.get("support_timeout")),
            annotations=annotations,
            position=self._document.position(part),
        )

    def _keys(self, part: Part) -> tuple[ir.Key, ...]:
        known = self._control_plane.keys(part["name"])
        keys = []
        for index, item in enumerate(part["key"]):
            kind, target = item["match_type"], item["target"]
            expression: ir.Expression
            if kind not in MATCH_KINDS:
                kinds = ", ".join(MATCH_KINDS)
                raise self._document.error(f"match kind {kind!r}: expected one of {kinds}", item)
            if kind == "valid":
                kind = "exact"
                header = target if isinstance(target, str) else target[0]
                valid = ir.IsValid(ir.BOOL, self._headers.header(header, item))
                expression = ir.Cast(ir.BIT, valid)
                own = f"{header}.$valid$"
            else:
                expression = self._headers.field(target[0], target[1], item)
                own = ".".join(target)
            mask = None if item.get("mask") is None else number_of(item["mask"])
            name = item.get("name") or own
            annotations: tuple[ir.Annotation, ...] = ()
            if known:
                name, optional, width, annotations = known[index]
                kind = "optional" if optional else kind
                if mask is not None:
                    expression, mask = _sliced(expression, mask, width)
            if mask is not None:
                expression = _masked(expression, mask)
            keys.append(ir.Key(name, kind, expression, annotations))
        return tuple(keys)

    def _selector_keys(self, profile: str | None) -> tuple[ir.Key, ...]:
        """Return the inputs of an action profile's selector hash."""
        keys = []
        for pipeline in self._document.parts("pipelines"):
            for part in pipeline.get("action_profiles") or []:
                if part["name"] == profile and part.get("selector"):
                    for item in part["selector"]["input"]:
                        place = self._expressions.place(item)
                        keys.append(ir.Key(".".join(item["value"]), "selector", place))
        return tuple(keys)

    def _colour(self, table: str) -> list[ir.Statement]:
        """Return code that stores the colour of a table's direct meter at its destination."""
        if table not in self._arrays.results:
            return []
        target = self._arrays.results[table]
        meter = next(item for item in self._arrays.of_table[table] if item.extern == "direct_meter")
        return [call("read", ("out", target), instance=meter, types=(target.type,))]

    def _default(self, part: Part, actions: list[ir.TableAction]) -> tuple[ir.ActionChoice, bool]:
        """Return the default action, added to the table's if necessary, and whether it is const."""
        entry = part.get("default_entry")
        if entry is not None:
            number = entry["action_id"]
            if number not in self._action_numbers(part):
                only = (ir.Annotation("defaultonly"),)
                actions.append(ir.TableAction(self.action(number, part), annotations=only))
            action = self.action(number, part)
            index = next(i for i, item in enumerate(actions) if item.action is action)
            constant = bool(entry.get("action_const"))
            return _choice(index, action, entry.get("action_data") or []), constant
        for index, item in enumerate(actions):
            if item.action.name == NO_ACTION:
                return ir.ActionChoice(index), False
        nothing = ir.Callable(NO_ACTION, (), [], annotations=(HIDDEN,), is_action=True)
        actions.append(ir.TableAction(nothing))
        return ir.ActionChoice(len(actions) - 1), False

    def _entry(self, entry: Part, keys: tuple[ir.Key, ...], part: Part) -> ir.Entry:
        numbers = self._action_numbers(part)
        action = entry["action_entry"]
        if action["action_id"] not in numbers:
            raise self._document.error(f"no action {action['action_id']} in the table", part)
        index = numbers.index(action["action_id"])
        priority = entry.get("priority") if part["match_type"] in ("ternary", "range") else None
        return ir.Entry(
            tuple(_const_key(*pair) for pair in zip(entry["match_key"], keys, strict=True)),
            _choice(index, self.actions[action["action_id"]], action.get("action_data") or []),
            True,
            None if priority is None else int(priority),
            position=self._document.position(entry),
        )


def _choice(index: int, action: ir.Callable, data: list[str]) -> ir.ActionChoice:
    values = []
    for parameter, text in zip(action.data, data, strict=True):
        kind = parameter.variable.type
        assert isinstance(kind, ir.Bits)
        values.append(number_of(text) & (1 << kind.width) - 1)
    return ir.ActionChoice(index, tuple(values))


def _const_key(match: Part, key: ir.Key) -> ir.ConstKey:
    full = (1 << key.width) - 1
    match match["match_type"]:
        case "valid":
            return ir.ConstKey(int(bool(match["key"])), full)
        case "lpm":
            length = int(match["prefix_length"])
            mask = full & ~((1 << key.width - length) - 1)
            return ir.ConstKey(number_of(match["key"]) & mask, mask, any=length == 0)
        case "ternary":
            mask = number_of(match["mask"]) & full
            return ir.ConstKey(number_of(match["key"]) & mask, mask, any=mask == 0)
        case "range":
            low, high = number_of(match["start"]) & full, number_of(match["end"]) & full
            return ir.ConstKey(low, full, high, any=(low, high) == (0, full))
    return ir.ConstKey(number_of(match["key"]) & full, full)


def _sliced(expression: ir.Expression, mask: int, width: int) -> tuple[ir.Expression, int | None]:
    """Return the slice for a mask if the key has only `width` bits."""
    low = (mask & -mask).bit_length() - 1
    assert isinstance(expression.type, ir.Bits)
    if width == expression.type.width or mask != (1 << width) - 1 << low:
        return expression, mask
    return ir.Slice(ir.Bits(width), expression, low + width - 1, low), None


def _masked(expression: ir.Expression, mask: int) -> ir.Expression:
    assert isinstance(expression.type, ir.Bits)
    full = (1 << expression.type.width) - 1
    constant = ir.Const(expression.type, mask & full)
    return ir.Binary(expression.type, "&", expression, constant)
