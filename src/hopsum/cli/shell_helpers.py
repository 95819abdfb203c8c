"""Helpers for hopsum's tables in p4runtime-shell: `trees`, `slots`, `outcomes`.

`hopsum.cli.shell` hands this file to the shell, which runs it at its start, in an environment that
has p4runtime-shell and nothing of hopsum. Names of outcomes come in the environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from p4runtime_sh.shell import CounterEntry, TableEntry

OUTCOMES = os.environ.get("HOPSUM_OUTCOMES", "").split(",")


class _Printable:
    """A function whose text the shell shows with or without calling it."""

    def __init__(self, look: Callable[[], str]) -> None:
        self._look = look
        self.__doc__ = look.__doc__

    def __call__(self) -> None:
        print(self._look())

    def __repr__(self) -> str:
        return self._look()


def _number(text: bytes) -> int:
    return int.from_bytes(text, "big")


def _admissions() -> Iterator[tuple[int, int, int, str, dict[str, int]]]:
    """Yield job, tree, port, action and its parameters, of every entry of `admission`."""
    entries: list[Any] = []
    TableEntry("admission").read(lambda entry: entries.append(entry.msg()))
    info = TableEntry("admission")._info
    keys = {field.id: field.name for field in info.match_fields}
    for message in entries:
        found = {keys[field.field_id]: _number(field.exact.value) for field in message.match}
        action = message.action.action
        known = ACTIONS[action.action_id]
        data = {known["parameters"][p.param_id]: _number(p.value) for p in action.params}
        yield found["job"], found["tree"], found["ingress_port"], known["name"], data


def _actions() -> dict[int, dict[str, Any]]:
    from p4runtime_sh.context import P4Type
    from p4runtime_sh.shell import context

    return {
        action.preamble.id: {
            "name": action.preamble.alias,
            "parameters": {p.id: p.name for p in action.params},
        }
        for _, action in context.get_objs(P4Type.action)
    }


ACTIONS = _actions()


def _trees() -> str:
    """Show the children admitted at each port, by job and tree."""
    lines = []
    for job, tree, port, action, data in sorted(_admissions(), key=lambda entry: entry[:3]):
        if action == "admit_children":
            children = [
                i for i in range(data["children"].bit_length()) if data["children"] >> i & 1
            ]
            who = f"children {', '.join(map(str, children))} of {data['fan_in']}"
            if not data["fan_in"]:
                who = "children, which pass unsummed"
        else:
            who = "results"
        lines.append(f"job {job}, tree {tree}: port {port}: {who}")
    return "\n".join(lines) or "no job aggregates here"


def _slots() -> str:
    """Show which slots belong to which tree of which job."""
    held = {
        (data["slot_base"], data["slot_base"] + data["window_mask"], job, tree)
        for job, tree, _, _, data in _admissions()
    }
    lines = [f"slots {a} to {b}: job {job}, tree {tree}" for a, b, job, tree in sorted(held)]
    return "\n".join(lines) or "no slot in use"


def _outcomes() -> str:
    """Show the outcomes of packets that are not zero."""
    lines: list[str] = []

    def show(entry: Any) -> None:
        if entry.data.packet_count and entry.index < len(OUTCOMES):
            lines.append(f"{OUTCOMES[entry.index]}: {entry.data.packet_count}")

    CounterEntry("outcomes").read(show)
    return "\n".join(lines) or "no packet received"


trees = _Printable(_trees)
slots = _Printable(_slots)
outcomes = _Printable(_outcomes)
print("hopsum: trees, slots and outcomes show what this switch has; call one of these functions")
