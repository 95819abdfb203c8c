"""Conversions between P4Runtime's table entities and the engine's entries."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from p4switch.ir import (
    ActionChoice,
    Callable,
    ExternInstance,
    Program,
    Table,
    TableAction,
    TypeName,
    ValueSet,
)
from p4switch.p4runtime.bytestrings import decode, encode
from p4switch.p4runtime.ids import IdKind
from p4switch.p4runtime.names import EXTERN_KINDS, Names, field_ids, value_set_ids
from p4switch.p4runtime.restrictions import Restrictions
from p4switch.p4runtime.string_types import StringType, StringTypes
from p4switch.proto import p4r
from p4switch.targets.v1model.engine import ControlError, KeyMatch, TableEntry
from p4switch.targets.v1model.matches import (
    ANY,
    canonical_matches,
    match_keys,
    prefix_mask,
    scalar_width,
)
from p4switch.targets.v1model.state import value_set_widths

log = logging.getLogger(__name__)

UpdateKind = int
"""`p4r.Update.INSERT`, `MODIFY` or `DELETE`."""


def bad(message: str) -> ControlError:
    """Make an INVALID_ARGUMENT error."""
    return ControlError("INVALID_ARGUMENT", message)


def check_known(kind: UpdateKind, known: bool, what: str) -> None:
    """Raise ALREADY_EXISTS for an INSERT of a known object, else NOT_FOUND for an unknown one."""
    if kind == p4r.Update.INSERT and known:
        raise ControlError("ALREADY_EXISTS", f"there is {what} already")
    if kind != p4r.Update.INSERT and not known:
        raise ControlError("NOT_FOUND", f"there is no {what}")


HIDDEN_IDS = 1 << 32
"""First id of members and groups of one-shot entries, outside the range of clients' ids."""


class Field(NamedTuple):
    """A match field of a table or value set; `id` is P4Info's."""

    id: int
    name: str
    match_kind: str
    width: int
    what: str
    """In messages of errors."""
    strings: StringType | None
    """Of a type that the controller knows as strings."""


Fields = dict[int, Field]
"""Match fields by id, in the order of keys."""


class Parameter(NamedTuple):
    """A parameter of an action; `id` is P4Info's."""

    id: int
    width: int
    what: str
    """In messages of errors."""
    strings: StringType | None


_names = lru_cache(maxsize=4)(Names)
"""The switches of one process share them."""


class Entities:
    """Conversions for one program."""

    def __init__(self, program: Program) -> None:
        self.restrictions = Restrictions(program)
        for position, message in self.restrictions.warnings:
            log.warning("%s: %s", position, message)
        self.strings = strings = StringTypes()
        self.names = names = _names(program)
        self.tables = {names.id(IdKind.TABLE, t.name): t for t in names.tables}
        self.actions = {names.id(IdKind.ACTION, a.name): a for a in names.actions}
        self.externs = {names.extern_id(e): e for e in names.externs}
        self.value_sets = {names.id(IdKind.VALUE_SET, v.name): v for v in names.value_sets}
        self.digests = {names.id(IdKind.DIGEST, d.name): d for d in names.digests}
        self._parameters = {a.name: _parameters(a, strings) for a in names.actions}
        self._table_fields = {
            table.name: (f"table {table.name!r}", _table_fields(table, strings))
            for table in names.tables
        }
        self._masked = {t.name for t in names.tables if any(key.mask for key in match_keys(t))}
        self._value_set_fields = {v.name: _value_set_fields(v, strings) for v in names.value_sets}

    # --- look-ups by id

    def table(self, table_id: int) -> Table:
        """Return the table of an id; INVALID_ARGUMENT if there is none."""
        try:
            return self.tables[table_id]
        except KeyError:
            raise bad(f"no table has id {table_id:#010x}") from None

    def extern(self, extern_id: int, kind: IdKind) -> ExternInstance:
        """Return the extern instance of an id; INVALID_ARGUMENT if there is none of that kind."""
        instance = self.externs.get(extern_id)
        if instance is None or EXTERN_KINDS[instance.extern] != kind:
            what = kind.name.lower().replace("_", " ")
            raise bad(f"no {what} has id {extern_id:#010x}")
        return instance

    def of_kind(self, kind: IdKind, wanted: int = 0) -> list[ExternInstance]:
        """Return the instances of a kind; the one of id `wanted` unless that is 0 (a wildcard)."""
        if wanted:
            return [self.extern(wanted, kind)]
        return [e for e in self.externs.values() if EXTERN_KINDS[e.extern] == kind]

    def table_id(self, table: Table) -> int:
        """Return the id of a table."""
        return self.names.id(IdKind.TABLE, table.name)

    def extern_id(self, instance: ExternInstance) -> int:
        """Return the id of an extern instance."""
        return self.names.extern_id(instance)

    def value_set(self, value_set_id: int) -> ValueSet:
        """Return the parser value set of an id; INVALID_ARGUMENT if there is none."""
        try:
            return self.value_sets[value_set_id]
        except KeyError:
            raise bad(f"no value set has id {value_set_id:#010x}") from None

    def profile_actions(self, profile: ExternInstance) -> tuple[TableAction, ...]:
        """Return the actions of the first table of an action profile.

        The others have the same ones, except those that are @defaultonly: the engine checks it.
        """
        for table in self.tables.values():
            if table.implementation is profile:
                return table.actions
        return ()

    # --- matches

    def matches(self, table: Table, fields: Iterable[p4r.FieldMatch]) -> tuple[KeyMatch, ...]:
        """Return the engine's matches of a message's fields; an absent field is don't-care."""
        found = _matches(*self._table_fields[table.name], fields)
        # Entries are also compared by these, before an engine has laid a key's mask over them.
        return canonical_matches(table, found) if table.name in self._masked else found

    def match_messages(self, table: Table, matches: Sequence[KeyMatch]) -> list[p4r.FieldMatch]:
        """Return the message form of an entry's matches; don't-care fields are left out."""
        return _match_messages(self._table_fields[table.name][1], matches)

    def value_set_member(
        self, value_set: ValueSet, fields: Iterable[p4r.FieldMatch]
    ) -> tuple[KeyMatch, ...]:
        """Return the engine's form of a value set's member."""
        owner = f"value set {value_set.name!r}"
        return _matches(owner, self._value_set_fields[value_set.name], fields)

    def value_set_messages(
        self, value_set: ValueSet, member: Sequence[KeyMatch]
    ) -> list[p4r.FieldMatch]:
        """Return the message form of a value set's member."""
        return _match_messages(self._value_set_fields[value_set.name], member)

    # --- actions

    def choice(
        self, owner: str, actions: Sequence[TableAction], action: p4r.Action
    ) -> ActionChoice:
        """Return the engine's form of an action with its parameters."""
        wanted = self.actions.get(action.action_id)
        if wanted is None:
            raise bad(f"no action has id {action.action_id:#010x}")
        for index, item in enumerate(actions):
            if item.action.name == wanted.name:
                return ActionChoice(index, self._arguments(wanted, action))
        raise bad(f"{owner} does not list action {wanted.name!r}")

    def _arguments(self, action: Callable, message: p4r.Action) -> tuple[int, ...]:
        parameters = self._parameters[action.name]
        given = {parameter.param_id: parameter.value for parameter in message.params}
        if len(given) != len(message.params) or given.keys() != parameters.keys():
            raise bad(
                f"action {action.name!r}: parameters {sorted(p.param_id for p in message.params)} "
                f"are given; expected {list(parameters)}, each once"
            )
        arguments = tuple(
            [
                _number(given[id], width, what, strings)
                for id, width, what, strings in parameters.values()
            ]
        )
        self.restrictions.check_action(action, arguments)
        return arguments

    def action_message(self, actions: Sequence[TableAction], choice: ActionChoice) -> p4r.Action:
        """Return the message form of an action with its parameters."""
        action = actions[choice.index].action
        message = p4r.Action(action_id=self.names.id(IdKind.ACTION, action.name))
        parameters = self._parameters[action.name].values()
        for parameter, value in zip(parameters, choice.arguments, strict=True):
            message.params.add(param_id=parameter.id, value=_data(value, parameter.strings))
        return message

    # --- entries

    def key(self, table: Table, message: p4r.TableEntry) -> TableEntry:
        """Return the engine's form of a table entry's key: matches and priority."""
        return TableEntry(self.matches(table, message.match), None, message.priority)

    def entry(self, table: Table, message: p4r.TableEntry) -> TableEntry:
        """Return the engine's form of a table entry with an action, a member or a group."""
        owner, fields = self._table_fields[table.name]
        action, member, group = None, None, None
        table_action = message.action
        kind = table_action.WhichOneof("type")
        if kind == "action":
            if table.implementation is not None:
                raise bad(f"{owner} has an action profile: expected a member or group")
            action = self.choice(owner, table.actions, table_action.action)
        elif kind == "action_profile_member_id":
            member = table_action.action_profile_member_id
        elif kind == "action_profile_group_id":
            group = table_action.action_profile_group_id
        else:
            raise bad(f"{owner}: the entry has no action")
        matches = _matches(owner, fields, message.match)
        self.restrictions.check_entry(table, matches, message.priority)
        return TableEntry(
            matches,
            action,
            message.priority,
            member,
            group,
            idle_timeout_ns=message.idle_timeout_ns,
        )

    def entry_message(self, table: Table, entry: TableEntry) -> p4r.TableEntry:
        """Return the message form of a table entry."""
        message = p4r.TableEntry(
            table_id=self.table_id(table),
            match=self.match_messages(table, entry.matches),
            priority=entry.priority,
            idle_timeout_ns=entry.idle_timeout_ns,
            is_const=entry.constant,
        )
        if entry.member is not None:
            message.action.action_profile_member_id = entry.member
        elif entry.group is not None and entry.group < HIDDEN_IDS:
            message.action.action_profile_group_id = entry.group
        elif entry.action is not None:
            message.action.action.CopyFrom(self.action_message(table.actions, entry.action))
        return message


def _parameters(action: Callable, strings: StringTypes) -> dict[int, Parameter]:
    return {
        param_id: Parameter(
            param_id,
            width := scalar_width(parameter.variable.type),
            f"action {action.name!r} parameter {parameter.name!r}",
            strings.of(parameter.type_name, width),
        )
        for param_id, parameter in zip(field_ids(action.data), action.data, strict=True)
    }


def _table_fields(table: Table, strings: StringTypes) -> Fields:
    keys = match_keys(table)
    return {
        number: Field(
            number,
            key.name,
            key.match_kind,
            key.width,
            f"table {table.name!r} key {key.name!r}",
            strings.of(key.type_name, key.width),
        )
        for number, key in zip(field_ids(keys), keys, strict=True)
    }


def _value_set_fields(value_set: ValueSet, strings: StringTypes) -> Fields:
    widths = value_set_widths(value_set)
    names = value_set.field_names or ("",) * len(widths)
    type_names = value_set.type_names or (TypeName(),) * len(widths)
    return {
        number: Field(
            number,
            name,
            kind,
            width,
            f"value set {value_set.name!r} key {name!r}",
            strings.of(type_name, width),
        )
        for number, name, kind, width, type_name in zip(
            value_set_ids(value_set),
            names,
            value_set.match_kinds,
            widths,
            type_names,
            strict=True,
        )
    }


def _number(data: bytes, width: int, what: str, strings: StringType | None) -> int:
    return decode(data, width, what) if strings is None else strings.number(data)


def _data(value: int, strings: StringType | None) -> bytes:
    return encode(value) if strings is None else strings.string(value)


def _matches(owner: str, known: Fields, messages: Iterable[p4r.FieldMatch]) -> tuple[KeyMatch, ...]:
    found: dict[int, KeyMatch] = {}
    for message in messages:
        field_id = message.field_id
        field = known.get(field_id)
        if field is None:
            raise bad(f"{owner} has no match field {field_id}")
        if field_id in found:
            raise bad(f"{owner}: match field {field_id} is given twice")
        found[field_id] = _match(message, field)
    if len(found) == len(known):
        return tuple([found[field_id] for field_id in known])
    for field in known.values():
        if field.match_kind == "exact" and field.id not in found:
            raise bad(f"{owner}: exact key {field.name!r} is not given")
    return tuple([found.get(field_id, ANY) for field_id in known])


def _match(message: p4r.FieldMatch, field: Field) -> KeyMatch:
    kind = message.WhichOneof("field_match_type")
    _, _, expected, width, what, strings = field
    if kind != expected:
        raise bad(f"{what}: expected a match of kind {expected}, not {kind}")
    if kind == "exact":
        return KeyMatch(_number(message.exact.value, width, what, strings))
    if kind == "optional":
        return KeyMatch(_number(message.optional.value, width, what, strings))
    if strings is not None:
        raise bad(f"{what}: its values are strings, which have no {kind} matches")
    if kind == "lpm":
        length = message.lpm.prefix_len
        if not 0 < length <= width:
            raise bad(f"{what}: prefix length {length}: expected 1..{width} (or no field)")
        return KeyMatch(decode(message.lpm.value, width, what), prefix_length=length)
    if kind == "ternary":
        mask = decode(message.ternary.mask, width, what)
        if mask == 0:
            raise bad(f"{what}: a mask of 0 is don't-care: leave the field out")
        return KeyMatch(decode(message.ternary.value, width, what), mask=mask)
    low = decode(message.range.low, width, what)
    high = decode(message.range.high, width, what)
    if low == 0 and high == (1 << width) - 1:
        raise bad(f"{what}: a range of all values is don't-care: leave the field out")
    return KeyMatch(low, high=high)


def _match_messages(known: Fields, matches: Sequence[KeyMatch]) -> list[p4r.FieldMatch]:
    messages = []
    for field, match in zip(known.values(), matches, strict=True):
        if match.any:
            continue
        message = p4r.FieldMatch(field_id=field.id)
        value = _data(match.value, field.strings)
        if field.match_kind == "exact":
            message.exact.value = value
        elif field.match_kind == "lpm":
            message.lpm.value = encode(match.value & prefix_mask(match.prefix_length, field.width))
            message.lpm.prefix_len = match.prefix_length
        elif field.match_kind == "ternary":
            message.ternary.value = value
            message.ternary.mask = encode(match.mask)
        elif field.match_kind == "range":
            message.range.low = value
            message.range.high = encode(match.high)
        else:
            message.optional.value = value
        messages.append(message)
    return messages
