"""A batch of updates, in the atomicity modes of P4Runtime 1.5, section 10.2."""

from __future__ import annotations

from collections.abc import Sequence

from p4switch.ir import Bits, Bool
from p4switch.p4runtime.entities import HIDDEN_IDS
from p4switch.p4runtime.ids import IdKind
from p4switch.p4runtime.pipeline import Pipeline
from p4switch.p4runtime.reader import Reader
from p4switch.p4runtime.writer import DELETE, INSERT, MODIFY, Writer
from p4switch.proto import p4r
from p4switch.targets.v1model.engine import ControlError

Outcome = list[ControlError | None]
"""Result of each update."""


def write_all(writer: Writer, updates: Sequence[p4r.Update]) -> Outcome:
    """CONTINUE_ON_ERROR: attempt every update."""
    outcome: Outcome = []
    for update in updates:
        try:
            writer.apply(update)
        except ControlError as error:
            outcome.append(error)
        else:
            outcome.append(None)
    return outcome


def write_or_roll_back(
    pipeline: Pipeline, writer: Writer, reader: Reader, updates: Sequence[p4r.Update]
) -> Outcome:
    """ROLLBACK_ON_ERROR: all updates, or none after an error."""
    inverses: list[list[p4r.Update]] = []
    for position, update in enumerate(updates):
        try:
            inverse = _inverse(pipeline, reader, update)
            writer.apply(update)
        except ControlError as error:
            for undo in reversed(inverses):
                for step in undo:
                    writer.apply(step)
            rest = ControlError("ABORTED", f"rolled back because update {position} failed")
            return [error if i == position else rest for i in range(len(updates))]
        inverses.append(inverse)
    return [None] * len(updates)


def _inverse(pipeline: Pipeline, reader: Reader, update: p4r.Update) -> list[p4r.Update]:
    """Return the updates that undo one, computed from the state before it."""
    if update.type == INSERT:
        return [p4r.Update(type=DELETE, entity=update.entity)]
    request = p4r.Entity()
    request.CopyFrom(update.entity)
    if request.WhichOneof("entity") == "table_entry":
        _select_one(request.table_entry)
    kind = INSERT if update.type == DELETE else MODIFY
    return [
        p4r.Update(type=kind, entity=_writable(entity))
        for entity in reader.read(request)
        if _same_entry(pipeline, entity, request)
    ]


def _select_one(request: p4r.TableEntry) -> None:
    """Reduce an entry to its key, and request its direct resources."""
    for name in ("action", "metadata", "controller_metadata", "time_since_last_hit"):
        request.ClearField(name)
    request.counter_data.SetInParent()
    request.meter_config.SetInParent()


def _same_entry(pipeline: Pipeline, entity: p4r.Entity, request: p4r.Entity) -> bool:
    """Return whether a table entry is the requested one: an empty match selects the whole table."""
    if not entity.HasField("table_entry") or request.table_entry.is_default_action:
        return True
    table = pipeline.entities.table(request.table_entry.table_id)
    matches = pipeline.entities.key(table, request.table_entry)
    return pipeline.entities.key(table, entity.table_entry) == matches


def _writable(entity: p4r.Entity) -> p4r.Entity:
    """Return an entity that was read in a form that can be written."""
    if entity.HasField("table_entry") and entity.table_entry.is_const:
        entity.table_entry.ClearField("is_const")
        entity.table_entry.ClearField("action")
    return entity


def state_updates(pipeline: Pipeline, reader: Reader) -> list[p4r.Update]:
    """Return updates that make a fresh pipeline's forwarding state like this one's.

    After `keep_unnoted`. Direct counters are reset; counters and registers are left to
    `keep_cells`.
    """
    inserts = [
        p4r.Entity(action_profile_group=p4r.ActionProfileGroup()),
        p4r.Entity(table_entry=p4r.TableEntry(meter_config=p4r.MeterConfig())),
        p4r.Entity(packet_replication_engine_entry=p4r.PacketReplicationEngineEntry()),
        p4r.Entity(digest_entry=p4r.DigestEntry()),
    ]
    updates = [
        p4r.Update(type=INSERT, entity=entity)
        for request in inserts
        for entity in reader.read(request)
        if not entity.table_entry.is_const
    ]
    for table in pipeline.program.tables:
        if pipeline.engine.default(table.name) != table.default_action:
            table_id = pipeline.entities.table_id(table)
            request = p4r.TableEntry(table_id=table_id, is_default_action=True)
            updates += [
                p4r.Update(type=MODIFY, entity=entity)
                for entity in reader.read(p4r.Entity(table_entry=request))
            ]
    modifies = [
        p4r.Entity(meter_entry=p4r.MeterEntry()),
        p4r.Entity(value_set_entry=p4r.ValueSetEntry()),
    ]
    return updates + [
        p4r.Update(type=MODIFY, entity=entity)
        for request in modifies
        for entity in reader.read(request)
    ]


def keep_unnoted(before: Pipeline, after: Pipeline) -> None:
    """Copy members, and the groups and sessions that BMv2's run-time interface has made.

    That interface counts from 0, which P4Runtime does not write, and leaves no notes of groups.
    Raises ControlError for a member that does not fit.
    """
    old, new, notes = before.engine, after.engine, before.notes
    for profile in before.entities.of_kind(IdKind.ACTION_PROFILE):
        name, actions = profile.name, before.entities.profile_actions(profile)
        for member, choice in old.members(name).items():
            if member >= HIDDEN_IDS:
                continue
            same = after.entities.extern(before.entities.extern_id(profile), IdKind.ACTION_PROFILE)
            message = before.entities.action_message(actions, choice)
            known = after.entities.profile_actions(same)
            new.set_member(same.name, member, after.entities.choice(f"{name!r}", known, message))
        for group, members in old.groups(name).items():
            if group < HIDDEN_IDS and (name, group) not in notes.groups:
                new.set_group(name, group, members)
    for group, replicas in old.multicast_groups().items():
        if group not in notes.multicast:
            new.set_multicast_group(group, replicas)
    for number, session in old.clone_sessions().items():
        if number not in notes.clones:
            new.set_clone_session(number, session)


def keep_cells(before: Pipeline, after: Pipeline) -> None:
    """Copy registers and counters that both programs have: of one name, kind and type."""
    known = {instance.name: instance for instance in before.program.externs}
    old, new = before.engine, after.engine
    for instance in after.program.externs:
        same = known.get(instance.name)
        if same is None or same.extern != instance.extern:
            continue
        if instance.extern == "register":
            kind = instance.type_arguments[0]
            # The control plane writes no structs.
            if kind != same.type_arguments[0] or not isinstance(kind, Bits | Bool):
                continue
            for index in range(min(same.number(0), instance.number(0))):
                # Writing every cell, most of which are 0, would hold the packets up.
                value = old.read_register(same.name, index)
                if value:
                    new.write_register(instance.name, index, value)
        elif instance.extern == "counter":
            for index in range(min(same.number(0), instance.number(0))):
                count = old.read_counter(same.name, index)
                if count.packets:
                    new.write_counter(instance.name, index, count)


def clear_entries(pipeline: Pipeline) -> None:
    """Remove the non-const table entries of the program itself."""
    engine = pipeline.engine
    for table in pipeline.program.tables:
        for entry in engine.entries(table.name):
            if not entry.constant:
                engine.delete_entry(table.name, entry)
