"""Install the controller's rules in an engine directly, without a P4Runtime connection."""

from __future__ import annotations

from collections.abc import Iterable

from controller.dataplane.rules import MatchValue, SwitchRules, TableEntry
from p4switch.ir import ActionChoice, Program, Table
from p4switch.targets.v1model import engine as v1model
from p4switch.targets.v1model.engine import Engine, KeyMatch, Replica
from p4switch.targets.v1model.matches import match_keys
from protocol.errors import OperationError
from protocol.outcomes import Outcome


class InstallError(OperationError):
    """The program has no such table, key, action or counter; the message names it."""


def by_suffix(names: Iterable[str], wanted: str, what: str) -> str:
    """Return the one dotted name that ends in `wanted`.

    InstallError if there is none, or more than one.
    """
    found = [name for name in names if name == wanted or name.endswith("." + wanted)]
    if len(found) != 1:
        raise InstallError(f"{what} {wanted!r}: {len(found)} in the program; expected one")
    return found[0]


def install(engine: Engine, rules: SwitchRules) -> None:
    """Add all entries, groups and clone sessions of `rules` to a fresh engine."""
    for session, port in rules.clones.items():
        engine.set_clone_session(session, v1model.CloneSession((Replica(port),)))
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
        engine.set_clone_session(session, v1model.CloneSession((Replica(port),)))
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


def engine_entry(table: Table, entry: TableEntry) -> v1model.TableEntry:
    """Return the engine's form of an entry given by names."""
    wanted = dict(entry.match)
    matches = []
    for key in match_keys(table):
        name = key.name.rpartition(".")[2]
        if name not in wanted:
            raise InstallError(f"table {table.name!r}: key {key.name!r} is not given")
        matches.append(_match(key.match_kind, wanted.pop(name)))
    if wanted:
        raise InstallError(f"table {table.name!r} has no keys {sorted(wanted)}")
    names = [item.action.name for item in table.actions]
    index = names.index(by_suffix(names, entry.action, f"table {table.name!r}: action"))
    given = dict(entry.params)
    arguments = tuple(given[parameter.name] for parameter in table.actions[index].action.data)
    return v1model.TableEntry(tuple(matches), ActionChoice(index, arguments))


def _match(match_kind: str, value: MatchValue) -> KeyMatch:
    if isinstance(value, tuple):
        return KeyMatch(value[0], prefix_length=value[1])
    return KeyMatch(value)


def outcome_counter(program: Program) -> str:
    """Return the name of the counter of outcomes."""
    names = (item.name for item in program.externs if item.extern == "counter")
    return by_suffix(names, "outcomes", "counter")


def read_outcomes(engine: Engine) -> dict[str, int]:
    """Return the counts of outcomes, by lower-case name."""
    name = outcome_counter(engine.program)
    return {outcome.name.lower(): engine.read_counter(name, outcome).packets for outcome in Outcome}
