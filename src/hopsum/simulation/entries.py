"""The engine's form of table entries that are given by names."""

from __future__ import annotations

from collections.abc import Iterable

from hopsum.controller.dataplane.rules import MatchValue, TableEntry
from hopsum.protocol.errors import OperationError
from p4switch.ir import ActionChoice, Table
from p4switch.targets.v1model import engine as v1model
from p4switch.targets.v1model.engine import KeyMatch
from p4switch.targets.v1model.matches import match_keys


class EntryError(OperationError):
    """The program has no such table, key or action; the message names it."""


def by_suffix(names: Iterable[str], wanted: str, what: str) -> str:
    """Return the one dotted name that ends in `wanted`.

    EntryError if there is none, or more than one.
    """
    found = [name for name in names if name == wanted or name.endswith("." + wanted)]
    if len(found) != 1:
        raise EntryError(f"{what} {wanted!r}: {len(found)} in the program; expected one")
    return found[0]


def engine_entry(table: Table, entry: TableEntry) -> v1model.TableEntry:
    """Return the engine's form of an entry given by names."""
    wanted = dict(entry.match)
    matches = []
    for key in match_keys(table):
        name = key.name.rpartition(".")[2]
        if name not in wanted:
            raise EntryError(f"table {table.name!r}: key {key.name!r} is not given")
        matches.append(_match(key.match_kind, wanted.pop(name)))
    if wanted:
        raise EntryError(f"table {table.name!r} has no keys {sorted(wanted)}")
    names = [item.action.name for item in table.actions]
    index = names.index(by_suffix(names, entry.action, f"table {table.name!r}: action"))
    given = dict(entry.params)
    arguments = tuple(given[parameter.name] for parameter in table.actions[index].action.data)
    return v1model.TableEntry(tuple(matches), ActionChoice(index, arguments))


def _match(match_kind: str, value: MatchValue) -> KeyMatch:
    if isinstance(value, tuple):
        return KeyMatch(value[0], prefix_length=value[1])
    return KeyMatch(value)
