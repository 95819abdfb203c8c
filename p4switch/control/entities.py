"""P4Runtime entities of tables, and the engine's entries: the way there and back."""

from __future__ import annotations

from collections.abc import Sequence

from finsy.proto import p4r

from p4switch.control.bytestrings import ByteStringError, decode, encode
from p4switch.control.ids import IdKind
from p4switch.control.p4info import EXTERN_KINDS, Names, field_ids
from p4switch.ir import ActionChoice, Callable, ExternInstance, Program, Table, TableAction
from p4switch.v1model.engine import ControlError, KeyMatch, TableEntry
from p4switch.v1model.matches import match_keys, prefix_mask, scalar_width

ANY = KeyMatch(any=True)


def bad(message: str) -> ControlError:
    """An INVALID_ARGUMENT error."""
    return ControlError("INVALID_ARGUMENT", message)


def number(data: bytes, width: int, what: str) -> int:
    """The number in a byte string; INVALID_ARGUMENT or OUT_OF_RANGE if it is none that fits."""
    try:
        return decode(data, width, what)
    except ByteStringError as error:
        raise ControlError("INVALID_ARGUMENT" if not data else "OUT_OF_RANGE", str(error)) from None


class Entities:
    """Conversions for one program."""

    def __init__(self, program: Program) -> None:
        self.names = names = Names(program)
        self.tables = {names.id(IdKind.TABLE, t.name): t for t in names.tables}
        self.actions = {names.id(IdKind.ACTION, a.name): a for a in names.actions}
        self.externs = {names.id(EXTERN_KINDS[e.extern], e.name): e for e in names.externs}
        self.value_sets = {names.id(IdKind.VALUE_SET, v.name): v for v in names.value_sets}
        self.digests = {names.id(IdKind.DIGEST, d.name): d for d in names.digests}
        self._fields = {
            table.name: dict(zip(field_ids(keys), range(len(keys)), strict=True))
            for table in names.tables
            for keys in [match_keys(table)]
        }

    # --- look-ups by id

    def table(self, table_id: int) -> Table:
        """The table of an id; NOT_FOUND if there is none."""
        try:
            return self.tables[table_id]
        except KeyError:
            raise ControlError("NOT_FOUND", f"no table has id {table_id:#010x}") from None

    def extern(self, extern_id: int, kind: IdKind) -> ExternInstance:
        """The extern instance of an id; NOT_FOUND if there is none of that kind."""
        instance = self.externs.get(extern_id)
        if instance is None or EXTERN_KINDS[instance.extern] != kind:
            what = kind.name.lower().replace("_", " ")
            raise ControlError("NOT_FOUND", f"no {what} has id {extern_id:#010x}")
        return instance

    def of_kind(self, kind: IdKind, wanted: int = 0) -> list[ExternInstance]:
        """The instances of a kind; the one of id `wanted` unless that is 0 (a wildcard)."""
        if wanted:
            return [self.extern(wanted, kind)]
        return [e for e in self.externs.values() if EXTERN_KINDS[e.extern] == kind]

    def table_id(self, table: Table) -> int:
        """The id of a table."""
        return self.names.id(IdKind.TABLE, table.name)

    # --- matches

    def matches(self, table: Table, fields: Sequence[p4r.FieldMatch]) -> tuple[KeyMatch, ...]:
        """The engine's matches of a message's fields; an absent field is don't-care."""
        keys = match_keys(table)
        positions = self._fields[table.name]
        found: dict[int, KeyMatch] = {}
        for field in fields:
            position = positions.get(field.field_id)
            if position is None:
                raise bad(f"table {table.name!r} has no match field {field.field_id}")
            if position in found:
                raise bad(f"table {table.name!r}: match field {field.field_id} is given twice")
            key = keys[position]
            what = f"table {table.name!r} key {key.name!r}"
            found[position] = self._match(field, key.match_kind, key.width, what)
        for position, key in enumerate(keys):
            if position not in found and key.match_kind == "exact":
                raise bad(f"table {table.name!r}: exact key {key.name!r} is not given")
        return tuple(found.get(position, ANY) for position in range(len(keys)))

    @staticmethod
    def _match(field: p4r.FieldMatch, match_kind: str, width: int, what: str) -> KeyMatch:
        kind = field.WhichOneof("field_match_type")
        if kind != match_kind:
            raise bad(f"{what}: expected a match of kind {match_kind}, not {kind}")
        if kind == "exact":
            return KeyMatch(number(field.exact.value, width, what))
        if kind == "lpm":
            length = field.lpm.prefix_len
            if not 0 < length <= width:
                raise bad(f"{what}: prefix length {length}: expected 1..{width} (or no field)")
            return KeyMatch(number(field.lpm.value, width, what), prefix_length=length)
        if kind == "ternary":
            mask = number(field.ternary.mask, width, what)
            if mask == 0:
                raise bad(f"{what}: a mask of 0 is don't-care: leave the field out")
            return KeyMatch(number(field.ternary.value, width, what), mask=mask)
        if kind == "range":
            return KeyMatch(
                number(field.range.low, width, what), high=number(field.range.high, width, what)
            )
        return KeyMatch(number(field.optional.value, width, what))

    def match_messages(self, table: Table, matches: Sequence[KeyMatch]) -> list[p4r.FieldMatch]:
        """The message form of an entry's matches; don't-care fields are left out."""
        keys = match_keys(table)
        messages = []
        for field_id, position in self._fields[table.name].items():
            key, match = keys[position], matches[position]
            if match.any:
                continue
            field = p4r.FieldMatch(field_id=field_id)
            value = encode(match.value)
            if key.match_kind == "exact":
                field.exact.value = value
            elif key.match_kind == "lpm":
                field.lpm.value = encode(match.value & prefix_mask(match.prefix_length, key.width))
                field.lpm.prefix_len = match.prefix_length
            elif key.match_kind == "ternary":
                field.ternary.value = value
                field.ternary.mask = encode(match.mask)
            elif key.match_kind == "range":
                field.range.low = value
                field.range.high = encode(match.high)
            else:
                field.optional.value = value
            messages.append(field)
        return messages

    # --- actions

    def choice(
        self, owner: str, actions: Sequence[TableAction], action: p4r.Action
    ) -> ActionChoice:
        """The engine's form of an action with its parameters."""
        wanted = self.actions.get(action.action_id)
        if wanted is None:
            raise ControlError("NOT_FOUND", f"no action has id {action.action_id:#010x}")
        for index, item in enumerate(actions):
            if item.action.name == wanted.name:
                return ActionChoice(index, self._arguments(wanted, action))
        raise bad(f"{owner} does not list action {wanted.name!r}")

    @staticmethod
    def _arguments(action: Callable, message: p4r.Action) -> tuple[int, ...]:
        data = action.data
        given = {parameter.param_id: parameter.value for parameter in message.params}
        ids = field_ids(data)
        if len(given) != len(message.params) or set(given) != set(ids):
            raise bad(
                f"action {action.name!r}: parameters {sorted(p.param_id for p in message.params)} "
                f"are given; expected {ids}, each once"
            )
        return tuple(
            number(
                given[param_id],
                scalar_width(parameter.variable.type),
                f"action {action.name!r} parameter {parameter.name!r}",
            )
            for param_id, parameter in zip(ids, data, strict=True)
        )

    def action_message(self, actions: Sequence[TableAction], choice: ActionChoice) -> p4r.Action:
        """The message form of an action with its parameters."""
        action = actions[choice.index].action
        message = p4r.Action(action_id=self.names.id(IdKind.ACTION, action.name))
        for param_id, value in zip(field_ids(action.data), choice.arguments, strict=True):
            message.params.add(param_id=param_id, value=encode(value))
        return message

    # --- entries

    def entry(self, table: Table, message: p4r.TableEntry, *, with_action: bool) -> TableEntry:
        """The engine's form of a table entry; without an action where only its key counts."""
        matches = self.matches(table, message.match)
        action, member, group = None, None, None
        if with_action:
            kind = message.action.WhichOneof("type")
            if kind == "action":
                if table.implementation is not None:
                    raise bad(
                        f"table {table.name!r} has an action profile: expected a member or group"
                    )
                action = self.choice(f"table {table.name!r}", table.actions, message.action.action)
            elif kind == "action_profile_member_id":
                member = message.action.action_profile_member_id
            elif kind == "action_profile_group_id":
                group = message.action.action_profile_group_id
            elif kind is None:
                raise bad(f"table {table.name!r}: the entry has no action")
            else:
                raise ControlError(
                    "UNIMPLEMENTED",
                    f"table {table.name!r}: one-shot action sets are not supported; create members "
                    "and a group",
                )
        return TableEntry(
            matches,
            action,
            message.priority,
            member,
            group,
            idle_timeout_ns=message.idle_timeout_ns,
        )

    def entry_message(self, table: Table, entry: TableEntry) -> p4r.TableEntry:
        """The message form of a table entry."""
        message = p4r.TableEntry(
            table_id=self.table_id(table),
            match=self.match_messages(table, entry.matches),
            priority=entry.priority,
            idle_timeout_ns=entry.idle_timeout_ns,
            is_const=entry.constant,
        )
        if entry.member is not None:
            message.action.action_profile_member_id = entry.member
        elif entry.group is not None:
            message.action.action_profile_group_id = entry.group
        elif entry.action is not None:
            message.action.action.CopyFrom(self.action_message(table.actions, entry.action))
        return message
