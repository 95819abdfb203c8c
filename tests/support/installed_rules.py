"""Install the controller's rules in an engine directly, without a P4Runtime connection."""

from __future__ import annotations

from hopsum.controller.dataplane.rules import SwitchRules, TableEntry
from hopsum.protocol.outcomes import Outcome
from hopsum.simulation.entries import by_suffix, engine_entry
from p4switch.ir import Table
from p4switch.targets.v1model.engine import CloneSession, Engine, Replica


def install(engine: Engine, rules: SwitchRules) -> None:
    """Add all entries, groups and clone sessions of `rules` to a fresh engine."""
    for session, port in rules.clones.items():
        engine.set_clone_session(session, CloneSession((Replica(port),)))
    for group, ports in rules.groups.items():
        engine.set_multicast_group(group, [Replica(port) for port in ports])
    tables: dict[str, Table] = {}
    for entry in rules.entries:
        table = tables.get(entry.table)
        if table is None:
            table = engine.table(by_suffix(engine.table_names(), entry.table, "table"))
            tables[entry.table] = table
        engine.insert_entry(table.name, engine_entry(table, entry))


def update(engine: Engine, before: SwitchRules, after: SwitchRules) -> None:
    """Change a running engine from one set of rules to another; its registers stay."""
    for group in before.groups.keys() - after.groups.keys():
        engine.set_multicast_group(group, None)
    for session, port in after.clones.items():
        engine.set_clone_session(session, CloneSession((Replica(port),)))
    for group, ports in after.groups.items():
        engine.set_multicast_group(group, [Replica(port) for port in ports])
    old = {entry.key: entry for entry in before.entries}
    new = {entry.key: entry for entry in after.entries}
    for key, entry in old.items():
        if key not in new:
            table = _table(engine, entry)
            engine.delete_entry(table.name, engine_entry(table, entry))
    for key, entry in new.items():
        if old.get(key) != entry:
            table = _table(engine, entry)
            change = engine.modify_entry if key in old else engine.insert_entry
            change(table.name, engine_entry(table, entry))


def _table(engine: Engine, entry: TableEntry) -> Table:
    return engine.table(by_suffix(engine.table_names(), entry.table, "table"))


def read_outcomes(engine: Engine) -> dict[str, int]:
    """Return the counts of outcomes, by lower-case name."""
    names = (item.name for item in engine.program.externs if item.extern == "counter")
    name = by_suffix(names, "outcomes", "counter")
    return {outcome.name.lower(): engine.read_counter(name, outcome).packets for outcome in Outcome}
