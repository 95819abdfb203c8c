"""Read requests for entities of a pipeline, with wildcards (P4Runtime specification 1.5, 11)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from p4switch.ir import ExternInstance, Table
from p4switch.p4runtime.entities import HIDDEN_IDS, bad
from p4switch.p4runtime.ids import IdKind
from p4switch.p4runtime.p4data import to_message
from p4switch.p4runtime.pipeline import EntryNote, Pipeline
from p4switch.p4runtime.writer import check_index
from p4switch.proto import p4r
from p4switch.targets.v1model.engine import ControlError, CounterValue, MeterConfig, TableEntry
from p4switch.targets.v1model.matches import needs_priority

Entities = Iterator[p4r.Entity]

NO_NOTE = EntryNote()


class Reader:
    """Answers read requests about one pipeline; `now_us` is the data plane's clock."""

    def __init__(self, pipeline: Pipeline, now_us: Callable[[], int]) -> None:
        self._pipeline = pipeline
        self._engine = pipeline.engine
        self._entities = pipeline.entities
        self._now_us = now_us
        self._read: dict[str, Callable[[Any], Entities]] = {
            "table_entry": self._table_entries,
            "action_profile_member": self._members,
            "action_profile_group": self._groups,
            "packet_replication_engine_entry": self._replication,
            "counter_entry": self._counters,
            "direct_counter_entry": self._direct_counters,
            "meter_entry": self._meters,
            "direct_meter_entry": self._direct_meters,
            "register_entry": self._registers,
            "value_set_entry": self._value_sets,
            "digest_entry": self._digests,
        }

    def read(self, request: p4r.Entity) -> Entities:
        """Return the entities that a request selects. Raises ControlError."""
        kind = request.WhichOneof("entity")
        if kind is None:
            raise bad("a read request must name a kind of entity")
        read = self._read.get(kind)
        if read is None:
            raise ControlError("UNIMPLEMENTED", f"entities of kind {kind} are not supported")
        return read(getattr(request, kind))

    # --- tables

    def _tables(self, table_id: int) -> list[Table]:
        if table_id:
            return [self._entities.table(table_id)]
        return list(self._entities.tables.values())

    def _table_entries(self, request: p4r.TableEntry) -> Entities:
        if not request.table_id and (request.match or request.priority):
            raise bad("a match or priority needs a table id")
        if request.HasField("meter_counter_data"):
            raise ControlError("UNIMPLEMENTED", "meters have no counters for each colour")
        timed = request.HasField("time_since_last_hit")
        if request.is_default_action and (
            request.match or request.priority or request.idle_timeout_ns or timed
        ):
            raise bad("a default entry has no match, no priority and no times")
        if timed and request.table_id and not self._tables(request.table_id)[0].support_timeout:
            raise bad(f"table {self._tables(request.table_id)[0].name!r} has no support_timeout")
        for table in self._tables(request.table_id):
            if request.is_default_action:
                yield p4r.Entity(table_entry=self._default_entry(table))
                continue
            for entry in self._selected(table, request):
                message = self._entry_message(table, entry, request)
                if message is not None:
                    yield p4r.Entity(table_entry=message)

    def _selected(self, table: Table, request: p4r.TableEntry) -> Iterator[TableEntry]:
        """Yield entries of a table selected by match and priority; an empty match selects all."""
        matches = self._entities.matches(table, request.match) if request.match else None
        if matches is not None and bool(request.priority) == needs_priority(table):
            found = self._engine.installed(table.name, matches, request.priority)
            if found is not None:
                yield found
            return
        for entry in self._engine.entries(table.name):
            if matches is not None and entry.matches != matches:
                continue
            if request.priority and entry.priority != request.priority:
                continue
            yield entry

    def _entry_message(
        self, table: Table, entry: TableEntry, request: p4r.TableEntry
    ) -> p4r.TableEntry | None:
        """Return an entry with the requested direct resources.

        None if the request filters it out.
        """
        message = self._pipeline.entry_message(table, entry)
        wanted = request.action.action.action_id
        if (
            (wanted and message.action.action.action_id != wanted)
            or (request.metadata and request.metadata != message.metadata)
            or request.controller_metadata not in (0, message.controller_metadata)
        ):
            return None
        if request.HasField("counter_data") and table.counters:
            count = self._engine.read_direct_counter(table.name, entry)
            message.counter_data.CopyFrom(counter_message(count))
        if request.HasField("meter_config") and table.meters:
            config = self._engine.direct_meter(table.name, entry)
            if config is not None:
                message.meter_config.CopyFrom(meter_message(config))
        if request.HasField("time_since_last_hit") and table.support_timeout:
            last = self._engine.last_hit_us(table.name, entry)
            message.time_since_last_hit.elapsed_ns = (self._now_us() - last) * 1000
        return message

    def _default_entry(self, table: Table) -> p4r.TableEntry:
        note = self._pipeline.notes.defaults.get(table.name, NO_NOTE)
        message = p4r.TableEntry(
            table_id=self._entities.table_id(table),
            is_default_action=True,
            is_const=table.default_constant,
            metadata=note.metadata,
            controller_metadata=note.controller_metadata,
        )
        choice = self._engine.default(table.name)
        message.action.action.CopyFrom(self._entities.action_message(table.actions, choice))
        return message

    def _direct(self, request: p4r.TableEntry, what: str) -> Iterator[tuple[Table, TableEntry]]:
        """Yield tables and entries with a direct counter or meter that a request selects."""
        for table in self._tables(request.table_id):
            if not (table.counters if what == "counter" else table.meters):
                if request.table_id:
                    raise bad(f"table {table.name!r} has no direct {what}")
                continue
            found = list(self._selected(table, request))
            if request.match and not found:
                raise ControlError("NOT_FOUND", f"table {table.name!r} has no such entry")
            for entry in found:
                yield table, entry

    def _direct_counters(self, request: p4r.DirectCounterEntry) -> Entities:
        for table, entry in self._direct(request.table_entry, "counter"):
            message = p4r.DirectCounterEntry(
                table_entry=self._key_message(table, entry),
                data=counter_message(self._engine.read_direct_counter(table.name, entry)),
            )
            yield p4r.Entity(direct_counter_entry=message)

    def _direct_meters(self, request: p4r.DirectMeterEntry) -> Entities:
        for table, entry in self._direct(request.table_entry, "meter"):
            message = p4r.DirectMeterEntry(table_entry=self._key_message(table, entry))
            config = self._engine.direct_meter(table.name, entry)
            if config is not None:
                message.config.CopyFrom(meter_message(config))
            yield p4r.Entity(direct_meter_entry=message)

    def _key_message(self, table: Table, entry: TableEntry) -> p4r.TableEntry:
        return p4r.TableEntry(
            table_id=self._entities.table_id(table),
            match=self._entities.match_messages(table, entry.matches),
            priority=entry.priority,
        )

    # --- action profiles

    def _members(self, request: p4r.ActionProfileMember) -> Entities:
        for profile in self._entities.of_kind(IdKind.ACTION_PROFILE, request.action_profile_id):
            actions = self._entities.profile_actions(profile)
            for number, choice in self._engine.members(profile.name).items():
                if number >= HIDDEN_IDS or request.member_id not in (0, number):
                    continue
                yield p4r.Entity(
                    action_profile_member=p4r.ActionProfileMember(
                        action_profile_id=self._entities.extern_id(profile),
                        member_id=number,
                        action=self._entities.action_message(actions, choice),
                    )
                )

    def _groups(self, request: p4r.ActionProfileGroup) -> Entities:
        for profile in self._entities.of_kind(IdKind.ACTION_PROFILE, request.action_profile_id):
            for (owner, number), message in self._pipeline.notes.groups.items():
                if owner == profile.name and request.group_id in (0, number):
                    yield p4r.Entity(action_profile_group=message)

    # --- replication

    def _replication(self, request: p4r.PacketReplicationEngineEntry) -> Entities:
        kind = request.WhichOneof("type")
        notes = self._pipeline.notes
        if kind != "clone_session_entry":
            wanted = request.multicast_group_entry.multicast_group_id
            for number, group in notes.multicast.items():
                if wanted in (0, number):
                    entry = p4r.PacketReplicationEngineEntry(multicast_group_entry=group)
                    yield p4r.Entity(packet_replication_engine_entry=entry)
        if kind != "multicast_group_entry":
            wanted = request.clone_session_entry.session_id
            for number, session in notes.clones.items():
                if wanted in (0, number):
                    entry = p4r.PacketReplicationEngineEntry(clone_session_entry=session)
                    yield p4r.Entity(packet_replication_engine_entry=entry)

    # --- counters, meters, registers

    def _cells(self, kind: IdKind, number: int, request: Any) -> Iterator[_Cell]:
        """Yield instance, id and index of each cell that a request selects."""
        for instance in self._entities.of_kind(kind, number):
            instance_id = self._entities.extern_id(instance)
            if number and request.HasField("index"):
                check_index(instance, request.index.index)
                yield instance, instance_id, request.index.index
                continue
            for index in range(instance.number(0)):
                yield instance, instance_id, index

    def _counters(self, request: p4r.CounterEntry) -> Entities:
        for counter, number, index in self._cells(IdKind.COUNTER, request.counter_id, request):
            message = p4r.CounterEntry(
                counter_id=number,
                index=p4r.Index(index=index),
                data=counter_message(self._engine.read_counter(counter.name, index)),
            )
            yield p4r.Entity(counter_entry=message)

    def _meters(self, request: p4r.MeterEntry) -> Entities:
        if request.HasField("counter_data"):
            raise ControlError("UNIMPLEMENTED", "meters have no counters for each colour")
        for meter, number, index in self._cells(IdKind.METER, request.meter_id, request):
            message = p4r.MeterEntry(meter_id=number, index=p4r.Index(index=index))
            config = self._engine.meter(meter.name, index)
            if config is not None:
                message.config.CopyFrom(meter_message(config))
            yield p4r.Entity(meter_entry=message)

    def _registers(self, request: p4r.RegisterEntry) -> Entities:
        for register, number, index in self._cells(IdKind.REGISTER, request.register_id, request):
            value = self._engine.read_register(register.name, index)
            message = p4r.RegisterEntry(
                register_id=number,
                index=p4r.Index(index=index),
                data=to_message(register.type_arguments[0], iter((value,))),
            )
            yield p4r.Entity(register_entry=message)

    # --- value sets and digests

    def _value_sets(self, request: p4r.ValueSetEntry) -> Entities:
        if request.value_set_id:
            self._entities.value_set(request.value_set_id)
        for number in self._entities.value_sets:
            if request.value_set_id in (0, number):
                kept = self._pipeline.notes.value_sets.get(number)
                empty = p4r.ValueSetEntry(value_set_id=number)
                yield p4r.Entity(value_set_entry=kept if kept is not None else empty)

    def _digests(self, request: p4r.DigestEntry) -> Entities:
        for entry in self._pipeline.digests.read(request.digest_id):
            yield p4r.Entity(digest_entry=entry)


_Cell = tuple[ExternInstance, int, int]


def counter_message(value: CounterValue) -> p4r.CounterData:
    """Return the message form of a counter's value."""
    return p4r.CounterData(byte_count=value.bytes, packet_count=value.packets)


def meter_message(config: MeterConfig) -> p4r.MeterConfig:
    """Return the message form of a meter's configuration."""
    return p4r.MeterConfig(
        cir=config.cir, cburst=config.cburst, pir=config.pir, pburst=config.pburst
    )
