"""BMv2 JSON for tests: a program around what a test is about."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from p4switch import ir
from p4switch.bmv2_json.reader import bundle, read

Part = dict[str, Any]

STANDARD_FIELDS = [
    ["ingress_port", 9, False],
    ["egress_spec", 9, False],
    ["egress_port", 9, False],
    ["instance_type", 32, False],
    ["packet_length", 32, False],
    ["mcast_grp", 16, False],
    ["egress_rid", 16, False],
    ["checksum_error", 1, False],
    ["parser_error", 32, False],
    ["_padding", 4, False],
]


def field(header: str, name: str) -> Part:
    """Return a reference to a field."""
    return {"type": "field", "value": [header, name]}


def hexstr(value: int) -> Part:
    """Return a constant."""
    return {"type": "hexstr", "value": hex(value)}


def operation(op: str, left: Part | None, right: Part | None, **more: Any) -> Part:
    """Return an expression."""
    return {"type": "expression", "value": {"op": op, "left": left, "right": right, **more}}


def primitive(op: str, *parameters: Part) -> Part:
    """Return a primitive of an action."""
    return {"op": op, "parameters": list(parameters)}


def assign(header: str, name: str, value: Part) -> Part:
    """Return an assignment to a field, its value wrapped as p4c does it."""
    if value["type"] == "expression":
        value = {"type": "expression", "value": value}
    return primitive("assign", field(header, name), value)


def action(number: int, name: str, *primitives: Part, data: Mapping[str, int] = {}) -> Part:
    """Return an action; `data`: names and widths of its parameters."""
    return {
        "name": name,
        "id": number,
        "runtime_data": [{"name": item, "bitwidth": width} for item, width in data.items()],
        "primitives": list(primitives),
    }


def table(
    number: int,
    name: str,
    actions: Sequence[Part],
    default: Part,
    following: str | Mapping[str, str | None] | None,
    **more: Any,
) -> Part:
    """Return a table without keys; what follows is one node, or one for each action."""
    after = following if isinstance(following, Mapping) else None
    return {
        "name": name,
        "id": number,
        "key": [],
        "match_type": "exact",
        "type": "simple",
        "max_size": 1024,
        "with_counters": False,
        "support_timeout": False,
        "direct_meters": None,
        "action_ids": [item["id"] for item in actions],
        "actions": [item["name"] for item in actions],
        "base_default_next": following if after is None else None,
        "next_tables": after or {item["name"]: following for item in actions},
        "default_entry": {"action_id": default["id"], "action_const": True, "action_data": []},
        **more,
    }


def document(
    fields: Mapping[str, int],
    actions: Sequence[Part] = (),
    *,
    tables: Sequence[Part] = (),
    conditionals: Sequence[Part] = (),
    init_table: str | None = None,
    **more: Any,
) -> Part:
    """Return a program: it extracts a header `h`, runs the ingress, and sends the header.

    `fields`: those of `h` by width, negative for signed ones. `meta` has the metadata field `m`.
    """
    listed = [[name, abs(width), width < 0] for name, width in fields.items()]
    state = {
        "name": "start",
        "id": 0,
        "parser_ops": [{"op": "extract", "parameters": [{"type": "regular", "value": "h"}]}],
        "transitions": [{"type": "default", "value": None, "mask": None, "next_state": None}],
        "transition_key": [],
    }
    ingress = {
        "name": "ingress",
        "id": 0,
        "init_table": init_table,
        "tables": list(tables),
        "action_profiles": [],
        "conditionals": list(conditionals),
    }
    egress = {"name": "egress", "id": 1, "init_table": None, "tables": [], "conditionals": []}
    return {
        "__meta__": {"version": [2, 23], "compiler": "by hand"},
        "header_types": [
            {"name": "standard_metadata", "id": 0, "fields": STANDARD_FIELDS},
            {"name": "h_t", "id": 1, "fields": listed},
            {"name": "meta_t", "id": 2, "fields": [["m", 32, False]]},
        ],
        "headers": [
            {"name": "standard_metadata", "id": 0, "header_type": "standard_metadata"}
            | {"metadata": True},
            {"name": "h", "id": 1, "header_type": "h_t", "metadata": False},
            {"name": "meta", "id": 2, "header_type": "meta_t", "metadata": True},
        ],
        "errors": [["NoError", 0], ["PacketTooShort", 1], ["NoMatch", 2]],
        "parsers": [{"name": "parser", "id": 0, "init_state": "start", "parse_states": [state]}],
        "deparsers": [{"name": "deparser", "id": 0, "order": ["h"]}],
        "actions": list(actions),
        "pipelines": [ingress, egress],
        **more,
    }


def one_action(fields: Mapping[str, int], *primitives: Part, **more: Any) -> Part:
    """Return a program whose ingress is one action."""
    only = action(0, "act", *primitives)
    tables = [table(0, "tbl_act", [only], only, None)]
    return document(fields, [only], tables=tables, init_table="tbl_act", **more)


def program(content: Part, p4info: str = "") -> ir.Program:
    """Return the program of a document."""
    data = json.dumps(content).encode()
    if p4info:
        data = bundle(data, "test.json", p4info)
    return read(data, "test.json")
