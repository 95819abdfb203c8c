"""Rules as P4Runtime entities and back, and the updates that lead from one state to another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Network
from typing import SupportsInt

import finsy as fy
from finsy import P4Schema
from finsy.p4entity import P4Entity, P4Replica

from hopsum.controller.dataplane.rule_text import describe
from hopsum.controller.dataplane.rules import MatchValue, SwitchRules, TableEntry

Entity = fy.P4TableEntry | fy.P4MulticastGroupEntry | fy.P4CloneSessionEntry


class Change(Enum):
    """Kind of update."""

    INSERT = "insert"
    MODIFY = "modify"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Update:
    """One update, with a description."""

    change: Change
    entity: Entity
    what: str

    def encoded(self) -> object:
        """Return the update for finsy."""
        match self.change:
            case Change.INSERT:
                return +self.entity
            case Change.MODIFY:
                return ~self.entity
            case Change.DELETE:
                return -self.entity


def table_entity(entry: TableEntry) -> fy.P4TableEntry:
    """Return the P4Runtime entity of an entry."""
    match: dict[str, object] = {}
    for name, value in entry.match:
        match[name] = f"{value[0]:#x}/{value[1]}" if isinstance(value, tuple) else value
    return fy.P4TableEntry(
        entry.table,
        match=fy.P4TableMatch(match),
        action=fy.P4TableAction(entry.action, **dict(entry.params)),
    )


def table_rule(entity: fy.P4TableEntry, schema: P4Schema) -> TableEntry:
    """Return the entry of an entity read from a switch; fields in the order of the program."""
    table = schema.tables[entity.table_id]
    match: list[tuple[str, MatchValue]] = []
    fields: Mapping[str, object] = entity.match or {}
    for field in table.match_fields:
        value = fields.get(field.alias)
        if isinstance(value, tuple):
            match.append((field.alias, (int(value[0]), int(value[1]))))
        elif isinstance(value, IPv4Network):
            match.append((field.alias, (int(value.network_address), value.prefixlen)))
        elif isinstance(value, SupportsInt):
            match.append((field.alias, int(value)))
    action = entity.action
    if not isinstance(action, fy.P4TableAction):
        return TableEntry(table.alias, tuple(match), "", ())
    names = [param.name for param in schema.actions[action.name].params]
    return TableEntry(
        table.alias,
        tuple(match),
        action.name,
        tuple((name, int(action.args[name])) for name in names if name in action.args),
    )


def group_entity(group: int, ports: Iterable[int]) -> fy.P4MulticastGroupEntry:
    """Return the P4Runtime entity of a multicast group."""
    return fy.P4MulticastGroupEntry(group, replicas=list(ports))


def clone_entity(session: int, port: int) -> fy.P4CloneSessionEntry:
    """Return the P4Runtime entity of a clone session."""
    return fy.P4CloneSessionEntry(session, replicas=[port])


def group_rule(entity: fy.P4MulticastGroupEntry) -> tuple[int, tuple[int, ...]]:
    """Return the group number and egress ports of an entity read from a switch."""
    return entity.multicast_group_id, _ports(entity)


def _ports(entity: fy.P4MulticastGroupEntry | fy.P4CloneSessionEntry) -> tuple[int, ...]:
    ports = []
    for replica in entity.replicas:
        if isinstance(replica, P4Replica):
            ports.append(int(replica.port))
        else:
            ports.append(replica[0] if isinstance(replica, tuple) else replica)
    return tuple(ports)


def updates(have: SwitchRules, want: SwitchRules) -> list[Update]:
    """Return the updates, ordered so that entries never name missing groups."""
    old = {entry.key: entry for entry in have.entries}
    new = {entry.key: entry for entry in want.entries}
    steps = [
        Update(Change.DELETE, table_entity(entry), describe(entry))
        for key, entry in old.items()
        if key not in new
    ]
    for group, ports in want.groups.items():
        if group not in have.groups or sorted(have.groups[group]) != sorted(ports):
            change = Change.MODIFY if group in have.groups else Change.INSERT
            steps.append(Update(change, group_entity(group, ports), f"multicast group {group}"))
    for session, port in want.clones.items():
        if have.clones.get(session) != port:
            change = Change.MODIFY if session in have.clones else Change.INSERT
            steps.append(Update(change, clone_entity(session, port), f"clone session {session}"))
    for key, entry in new.items():
        if old.get(key) != entry:
            change = Change.MODIFY if key in old else Change.INSERT
            steps.append(Update(change, table_entity(entry), describe(entry)))
    steps += [
        Update(Change.DELETE, group_entity(group, ()), f"multicast group {group}")
        for group in have.groups
        if group not in want.groups
    ]
    steps += [
        Update(Change.DELETE, clone_entity(session, port), f"clone session {session}")
        for session, port in have.clones.items()
        if session not in want.clones
    ]
    return steps


def managed_tables(schema: P4Schema) -> set[str]:
    """Return the tables that the controller fills: all without constant entries."""
    return {table.alias for table in schema.tables if not table.is_const}


def rules_read(entities: Iterable[P4Entity], schema: P4Schema) -> SwitchRules:
    """Return the state of a switch from what was read of it."""
    tables = managed_tables(schema)
    entries: list[TableEntry] = []
    groups: dict[int, tuple[int, ...]] = {}
    clones: dict[int, int] = {}
    for entity in entities:
        if isinstance(entity, fy.P4TableEntry):
            if not entity.is_default_action and schema.tables[entity.table_id].alias in tables:
                entries.append(table_rule(entity, schema))
        elif isinstance(entity, fy.P4MulticastGroupEntry):
            number, ports = group_rule(entity)
            groups[number] = ports
        elif isinstance(entity, fy.P4CloneSessionEntry):
            [clones[entity.session_id]] = _ports(entity)
    return SwitchRules(tuple(entries), groups, clones)


def in_program_order(rules: SwitchRules, schema: P4Schema) -> SwitchRules:
    """Return the same rules with match fields and parameters in the order of the program.

    Raises ValueError for a table, action, field or parameter that the program does not have.
    """
    return SwitchRules(
        tuple(_ordered(entry, schema) for entry in rules.entries),
        dict(rules.groups),
        dict(rules.clones),
    )


def _ordered(entry: TableEntry, schema: P4Schema) -> TableEntry:
    table = schema.tables[entry.table]
    match: Mapping[str, MatchValue] = dict(entry.match)
    params = dict(entry.params)
    fields = [field.alias for field in table.match_fields]
    names = [param.name for param in schema.actions[entry.action].params]
    for given, known, what in ((match, fields, "match field"), (params, names, "parameter")):
        for name in given:
            if name not in known:
                raise ValueError(
                    f"{describe(entry)}: the program has no {what} {name!r} there; "
                    f"it has {', '.join(known)}"
                )
    return TableEntry(
        entry.table,
        tuple((name, match[name]) for name in fields if name in match),
        entry.action,
        tuple((name, params[name]) for name in names if name in params),
    )
