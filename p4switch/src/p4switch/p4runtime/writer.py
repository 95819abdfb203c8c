"""Write updates: table entries, and entities with a direct counterpart in the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from p4switch.ir import ActionChoice, ExternInstance, Table
from p4switch.p4runtime.entities import UpdateKind, bad
from p4switch.p4runtime.ids import IdKind
from p4switch.p4runtime.p4data import from_message
from p4switch.p4runtime.pipeline import EntryNote, Pipeline
from p4switch.p4runtime.profiles import ProfileWriter
from p4switch.p4runtime.replication import ReplicationWriter
from p4switch.proto import p4r
from p4switch.targets.v1model.engine import ControlError, CounterValue, MeterConfig, TableEntry
from p4switch.targets.v1model.matches import match_keys
from p4switch.targets.v1model.state import check_meter

INSERT = p4r.Update.INSERT
MODIFY = p4r.Update.MODIFY
DELETE = p4r.Update.DELETE


class Writer:
    """Applies updates to one pipeline."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._engine = pipeline.engine
        self._entities = pipeline.entities
        self._profiles = ProfileWriter(pipeline)
        replication = ReplicationWriter(pipeline)
        self._apply: dict[str, Callable[[UpdateKind, Any], None]] = {
            "table_entry": self._table_entry,
            "action_profile_member": self._profiles.member,
            "action_profile_group": self._profiles.group,
            "packet_replication_engine_entry": replication.entry,
            "counter_entry": self._counter,
            "direct_counter_entry": self._direct_counter,
            "meter_entry": self._meter,
            "direct_meter_entry": self._direct_meter,
            "register_entry": self._register,
            "value_set_entry": self._value_set,
            "digest_entry": self._digest,
        }

    def apply(self, update: p4r.Update) -> None:
        """Apply an update; ControlError, without any change, if that is not possible."""
        entity = update.entity
        kind = entity.WhichOneof("entity")
        if update.type not in (INSERT, MODIFY, DELETE):
            raise bad("the update's type must be INSERT, MODIFY or DELETE")
        if kind is None:
            raise bad("the update has no entity")
        apply = self._apply.get(kind)
        if apply is None:
            raise ControlError("UNIMPLEMENTED", f"entities of kind {kind} are not supported")
        apply(update.type, getattr(entity, kind))

    # --- table entries

    def _table_entry(self, kind: UpdateKind, message: p4r.TableEntry) -> None:
        table = self._entities.table(message.table_id)
        if message.is_default_action:
            self._default_entry(kind, table, message)
            return
        if kind != DELETE:
            self._check_entry(table, message)
        if kind == INSERT:
            self._insert_entry(table, message)
        elif kind == MODIFY:
            self._modify_entry(table, message)
        else:
            self._delete_entry(table, message)

    @staticmethod
    def _check_entry(table: Table, message: p4r.TableEntry) -> None:
        if message.is_const:
            raise bad("is_const is for replies: leave it out")
        if message.idle_timeout_ns < 0:
            raise bad(f"idle_timeout_ns {message.idle_timeout_ns}: expected 0 (none) or more")
        if message.HasField("time_since_last_hit"):
            raise bad("time_since_last_hit is for replies: leave it out")
        if message.HasField("meter_counter_data"):
            raise ControlError("UNIMPLEMENTED", "meters have no counters for each colour")
        if message.HasField("counter_data") and not table.counters:
            raise bad(f"table {table.name!r} has no direct counter")
        if message.HasField("meter_config") and not table.meters:
            raise bad(f"table {table.name!r} has no direct meter")

    def _insert_entry(self, table: Table, message: p4r.TableEntry) -> None:
        if not match_keys(table):
            raise bad(f"table {table.name!r} has no keys: only its default action can be set")
        if table.entries_constant:
            raise ControlError("PERMISSION_DENIED", f"table {table.name!r} has const entries")
        meter = meter_config(message, "meter_config") if table.meters else None
        count = counter_value(message, "counter_data") if table.counters else None
        entry, note = self._entry(table, message)
        try:
            self._engine.insert_entry(table.name, entry)
            try:
                self._set_direct(table, entry, meter, count)
            except ControlError:
                self._engine.delete_entry(table.name, entry)
                raise
        except ControlError:
            self._profiles.drop_one_shot(note)
            raise
        self._remember(table, entry, note)

    def _modify_entry(self, table: Table, message: p4r.TableEntry) -> None:
        meter = meter_config(message, "meter_config")
        count = counter_value(message, "counter_data")
        if message.HasField("action"):
            if table.entries_constant:
                raise ControlError("PERMISSION_DENIED", f"table {table.name!r} has const entries")
            entry, note = self._entry(table, message)
            try:
                self._engine.modify_entry(table.name, entry)
            except ControlError:
                self._profiles.drop_one_shot(note)
                raise
            notes = self._pipeline.notes.entries
            before = notes.get(self._pipeline.entry_key(table, entry)) if notes else None
            self._remember(table, entry, note)
            self._profiles.drop_one_shot(before)
        else:
            entry = self._installed(table, self._entities.key(table, message))
            if not entry.constant:
                raise bad(
                    f"table {table.name!r}: a MODIFY needs the entry's action; only direct "
                    "counters and meters of const entries go without"
                )
        self._set_direct(table, entry, meter, count, modify=True)

    def _delete_entry(self, table: Table, message: p4r.TableEntry) -> None:
        entry = self._entities.key(table, message)
        self._engine.delete_entry(table.name, entry)
        notes = self._pipeline.notes.entries
        if notes:
            key = self._pipeline.entry_key(table, entry)
            self._profiles.drop_one_shot(notes.pop(key, None))

    def _entry(self, table: Table, message: p4r.TableEntry) -> tuple[TableEntry, EntryNote | None]:
        """Return the engine's entry and its note, if there is something to note.

        Members and group of a one-shot entry have been created.
        """
        metadata, number = message.metadata, message.controller_metadata
        note = EntryNote(metadata, number) if metadata or number else None
        if message.action.WhichOneof("type") != "action_profile_action_set":
            entry = self._entities.entry(table, message)
            if entry.action is not None and table.actions[entry.action.index].default_only:
                name = table.actions[entry.action.index].action.name
                raise ControlError(
                    "PERMISSION_DENIED", f"action {name!r} of table {table.name!r} is @defaultonly"
                )
            if table.implementation is not None:
                self._profiles.check_style(table.implementation, one_shot=False)
            return entry, note
        key = self._entities.key(table, message)
        self._entities.restrictions.check_entry(table, key.matches, key.priority)
        made = self._profiles.make_one_shot(table, message.action.action_profile_action_set)
        return (
            TableEntry(
                key.matches,
                None,
                key.priority,
                group=made.group,
                idle_timeout_ns=message.idle_timeout_ns,
            ),
            EntryNote(metadata, number, made),
        )

    def _remember(self, table: Table, entry: TableEntry, note: EntryNote | None) -> None:
        notes = self._pipeline.notes.entries
        if note is not None:
            notes[self._pipeline.entry_key(table, entry)] = note
        elif notes:
            notes.pop(self._pipeline.entry_key(table, entry), None)

    def port_changed(self, port: int) -> None:
        """Notify groups that watch a port that its link went up or down."""
        self._profiles.port_changed(port)

    def _installed(self, table: Table, entry: TableEntry) -> TableEntry:
        found = self._pipeline.find(table, entry)
        if found is None:
            raise ControlError("NOT_FOUND", f"table {table.name!r} has no such entry")
        return found

    def _set_direct(
        self,
        table: Table,
        entry: TableEntry,
        meter: MeterConfig | None,
        count: CounterValue | None,
        *,
        modify: bool = False,
    ) -> None:
        """Set an entry's direct resources; MODIFY without a meter's configuration resets it."""
        if table.meters and (meter is not None or modify):
            self._engine.set_direct_meter(table.name, entry, meter)
        if count is not None:
            self._engine.write_direct_counter(table.name, entry, count)

    def _default_entry(self, kind: UpdateKind, table: Table, message: p4r.TableEntry) -> None:
        if kind != MODIFY:
            raise bad(f"the default entry of table {table.name!r} can only be modified")
        if message.match or message.priority:
            raise bad(f"the default entry of table {table.name!r} has no match and no priority")
        if message.idle_timeout_ns:
            raise bad(f"the default entry of table {table.name!r} has no idle timeout")
        self._check_entry(table, message)
        if message.HasField("counter_data") or message.HasField("meter_config"):
            raise ControlError(
                "UNIMPLEMENTED", "direct counters and meters do not act on default entries"
            )
        if table.implementation is not None:
            raise bad(f"table {table.name!r} has an action profile: its default action stays")
        if table.default_constant:
            raise ControlError(
                "PERMISSION_DENIED", f"the default action of table {table.name!r} is constant"
            )
        choice: ActionChoice | None = None
        if message.HasField("action"):
            if message.action.WhichOneof("type") != "action":
                raise bad(f"the default entry of table {table.name!r} takes an action")
            owner = f"table {table.name!r}"
            choice = self._entities.choice(owner, table.actions, message.action.action)
            item = table.actions[choice.index]
            if item.table_only:
                raise ControlError(
                    "PERMISSION_DENIED",
                    f"action {item.action.name!r} of {owner} is @tableonly: not for the default",
                )
        self._engine.set_default(table.name, choice)
        note = EntryNote(message.metadata, message.controller_metadata)
        self._pipeline.notes.defaults[table.name] = note if choice is not None else EntryNote()

    # --- counters, meters, registers

    def _cells(self, kind: UpdateKind, wanted: IdKind, number: int, message: Any) -> _Cells:
        """Return the instance and the cells a message names; only MODIFY is legal."""
        instance = self._entities.extern(number, wanted)
        if kind != MODIFY:
            raise bad(f"{instance.extern} {instance.name!r} can only be modified")
        size = instance.number(0)
        if not message.HasField("index"):
            return instance, range(size)
        check_index(instance, message.index.index)
        return instance, (message.index.index,)

    def _counter(self, kind: UpdateKind, message: p4r.CounterEntry) -> None:
        instance, cells = self._cells(kind, IdKind.COUNTER, message.counter_id, message)
        value = counter_value(message, "data")
        if value is not None:
            for index in cells:
                self._engine.write_counter(instance.name, index, value)

    def _meter(self, kind: UpdateKind, message: p4r.MeterEntry) -> None:
        instance, cells = self._cells(kind, IdKind.METER, message.meter_id, message)
        if message.HasField("counter_data"):
            raise ControlError("UNIMPLEMENTED", "meters have no counters for each colour")
        config = meter_config(message, "config")
        for index in cells:
            self._engine.set_meter(instance.name, index, config)

    def _register(self, kind: UpdateKind, message: p4r.RegisterEntry) -> None:
        instance, cells = self._cells(kind, IdKind.REGISTER, message.register_id, message)
        what = f"register {instance.name!r}"
        value = from_message(instance.type_arguments[0], message.data, what)
        for index in cells:
            self._engine.write_register(instance.name, index, value)

    def _direct_entry(self, kind: UpdateKind, message: p4r.TableEntry) -> tuple[Table, TableEntry]:
        table = self._entities.table(message.table_id)
        if kind != MODIFY:
            raise bad("a direct counter or meter can only be modified")
        if message.is_default_action:
            raise ControlError(
                "UNIMPLEMENTED", "direct counters and meters do not act on default entries"
            )
        return table, self._entities.key(table, message)

    def _direct_counter(self, kind: UpdateKind, message: p4r.DirectCounterEntry) -> None:
        table, entry = self._direct_entry(kind, message.table_entry)
        value = counter_value(message, "data")
        if value is None:
            self._engine.read_direct_counter(table.name, entry)
        else:
            self._engine.write_direct_counter(table.name, entry, value)

    def _direct_meter(self, kind: UpdateKind, message: p4r.DirectMeterEntry) -> None:
        table, entry = self._direct_entry(kind, message.table_entry)
        if message.HasField("counter_data"):
            raise ControlError("UNIMPLEMENTED", "meters have no counters for each colour")
        self._engine.set_direct_meter(table.name, entry, meter_config(message, "config"))

    # --- value sets and digests

    def _value_set(self, kind: UpdateKind, message: p4r.ValueSetEntry) -> None:
        value_set = self._entities.value_set(message.value_set_id)
        if kind != MODIFY:
            raise bad(f"value set {value_set.name!r} can only be modified")
        members = [self._entities.value_set_member(value_set, m.match) for m in message.members]
        if len(set(members)) != len(members):
            raise ControlError(
                "ALREADY_EXISTS", f"value set {value_set.name!r}: a member is given twice"
            )
        self._engine.set_value_set(value_set.name, members)
        kept = p4r.ValueSetEntry(value_set_id=message.value_set_id)
        for member in members:
            kept.members.add(match=self._entities.value_set_messages(value_set, member))
        self._pipeline.notes.value_sets[message.value_set_id] = kept

    def _digest(self, kind: UpdateKind, message: p4r.DigestEntry) -> None:
        digests = self._pipeline.digests
        if kind == INSERT:
            digests.insert(message)
        elif kind == MODIFY:
            digests.modify(message)
        else:
            digests.delete(message)


_Cells = tuple[ExternInstance, Sequence[int]]


def check_index(instance: ExternInstance, index: int) -> None:
    """Raise INVALID_ARGUMENT or OUT_OF_RANGE for a cell that an instance does not have."""
    if index < 0:
        raise bad(f"{instance.extern} {instance.name!r}: index {index} is negative")
    size = instance.number(0)
    if index >= size:
        raise ControlError(
            "OUT_OF_RANGE",
            f"{instance.extern} {instance.name!r} has {size} cells, there is no cell {index}",
        )


def counter_value(message: Any, field: str) -> CounterValue | None:
    """Return the counter data in a field of a message; None if it is not set."""
    if not message.HasField(field):
        return None
    data: p4r.CounterData = getattr(message, field)
    if data.packet_count < 0 or data.byte_count < 0:
        raise bad("counter data: a count is negative")
    return CounterValue(data.packet_count, data.byte_count)


def meter_config(message: Any, field: str) -> MeterConfig | None:
    """Return the meter configuration in a field of a message, checked.

    None (always green) if it is not set.
    """
    if not message.HasField(field):
        return None
    config: p4r.MeterConfig = getattr(message, field)
    if config.eburst:
        raise bad("meter configuration: eburst is not for two-rate three-colour meters")
    made = MeterConfig(config.cir, config.cburst, config.pir, config.pburst)
    check_meter("meter configuration", made)
    return made
