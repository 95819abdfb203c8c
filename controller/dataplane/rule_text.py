"""Rules of switches for people and programs: lines, p4runtime-shell's commands, plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hopsum.controller.dataplane.rules import MatchValue, SwitchRules, TableEntry


def describe(entry: TableEntry) -> str:
    """Return an entry in one line."""
    match = ", ".join(f"{name}={_value(value)}" for name, value in entry.match)
    params = ", ".join(f"{name}={value}" for name, value in entry.params)
    return f"{entry.table}[{match}] -> {entry.action}({params})"


def rule_lines(rules: SwitchRules) -> list[str]:
    """Return a line for each group, clone session and entry of a switch."""
    return [
        *(f"multicast group {group}: {_ports(ports)}" for group, ports in rules.groups.items()),
        *(f"clone session {session}: {_ports([port])}" for session, port in rules.clones.items()),
        *map(describe, rules.entries),
    ]


def shell_commands(rules: SwitchRules) -> list[str]:
    """Return the commands by which p4runtime-shell (`hopsum shell`) installs the same.

    Groups come before the entries that name them.
    """
    return [
        *(
            f"g = multicast_group_entry({group}); "
            + "".join(f"g.add({port}); " for port in ports)
            + "g.insert()"
            for group, ports in rules.groups.items()
        ),
        *(
            f"c = clone_session_entry({session}); c.add({port}); c.insert()"
            for session, port in rules.clones.items()
        ),
        *map(_shell_entry, rules.entries),
    ]


def rules_dict(rules: Mapping[str, SwitchRules]) -> dict[str, Any]:
    """Return the rules of all switches as plain data for JSON; prefixes as `VALUE/LENGTH`."""
    return {
        switch: {
            "groups": {str(group): list(ports) for group, ports in each.groups.items()},
            "clones": {str(session): port for session, port in each.clones.items()},
            "entries": [
                {
                    "table": entry.table,
                    "match": {
                        name: value if isinstance(value, int) else _value(value)
                        for name, value in entry.match
                    },
                    "action": entry.action,
                    # The children of a sum are a number of 512 bits: beyond what JSON's readers
                    # take as a whole number.
                    "params": {
                        name: hex(value) if name == "children" else value
                        for name, value in entry.params
                    },
                }
                for entry in each.entries
            ],
        }
        for switch, each in rules.items()
    }


def _shell_entry(entry: TableEntry) -> str:
    match = ", ".join(f'{name}="{_value(value)}"' for name, value in entry.match)
    params = ", ".join(f'{name}="{value:#x}"' for name, value in entry.params)
    return (
        f'e = table_entry["{entry.table}"](action="{entry.action}"); e.match.set({match}); '
        f"{f'e.action.set({params}); ' if params else ''}e.insert()"
    )


def _value(value: MatchValue) -> str:
    return f"{value[0]:#x}/{value[1]}" if isinstance(value, tuple) else str(value)


def _ports(ports: Iterable[int]) -> str:
    text = ", ".join(map(str, ports))
    return f"ports {text}" if text else "no ports"
