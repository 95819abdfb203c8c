"""A program in the form of BMv2's JSON, for tools that read such a file for what can be controlled.

The tables, actions and extern instances stand where p4c writes them (behavioral-model,
docs/JSON_format.md), so that simple_switch_CLI, p4-utils and p4lang's tutorials find them. The data
plane is not translated: the program itself is in the member `p4switch`, from which p4switch takes
it; BMv2 cannot run such a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from p4switch.bmv2_json.reader import NOTES, SOURCE
from p4switch.ir import ExternInstance, Program, Table
from p4switch.midend.architecture import packet_layout
from p4switch.p4runtime.names import hidden
from p4switch.p4runtime.p4info import p4info
from p4switch.programs import is_bmv2_json
from p4switch.targets.v1model.calculations import custom_calculations

if TYPE_CHECKING:
    from p4switch.proto import p4i

JSON_VERSION = (2, 24)
"""Of behavioral-model 1.15."""
MATCH_KINDS = {"exact": "exact", "lpm": "lpm", "range": "range"}
"""Match kinds in the JSON; the others are ternary there."""
RATES = 2
"""Of a two-rate meter."""


def bmv2_document(program: Program, config: bytes, file: str = "") -> bytes:
    """Return the JSON of a program with its bundle; BMv2's own JSON is returned as it is."""
    if is_bmv2_json(config):
        return config
    document = _Document(program).document()
    document["program"] = file
    document[NOTES] = {SOURCE: config.decode()}
    return json.dumps(document, indent=1).encode()


class _Document:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._info = p4info(program)
        self._actions = {a.preamble.id: (i, a) for i, a in enumerate(self._info.actions)}
        self._tables = {table.name: table for table in program.tables}
        self._headers: dict[str, dict[str, int]] = {}

    def document(self) -> dict[str, Any]:
        info = self._info
        pipelines = self._pipelines()  # Collects the headers of the keys.
        return {
            "__meta__": {"version": JSON_VERSION, "compiler": "p4switch"},
            "header_types": [
                {"name": f"{name}_t", "id": index, "fields": [[f, w, False] for f, w in f.items()]}
                for index, (name, f) in enumerate(self._headers.items())
            ],
            "headers": [
                {"name": name, "id": index, "header_type": f"{name}_t", "metadata": False}
                for index, name in enumerate(self._headers)
            ],
            "actions": [
                {
                    "name": action.preamble.name,
                    "id": index,
                    "runtime_data": [
                        {"name": p.name, "bitwidth": p.bitwidth} for p in action.params
                    ],
                    "primitives": [],
                }
                for index, action in self._actions.values()
            ],
            "pipelines": pipelines,
            "counter_arrays": [
                *(_array(i, c.preamble, c.size) for i, c in enumerate(info.counters)),
                *self._direct(len(info.counters), info.direct_counters),
            ],
            "meter_arrays": [
                *(
                    {**_array(i, m.preamble, m.size), **_metering(m.spec.unit)}
                    for i, m in enumerate(info.meters)
                ),
                *self._direct(len(info.meters), info.direct_meters, meters=True),
            ],
            "register_arrays": [
                {
                    **_array(i, register.preamble, register.size),
                    "bitwidth": register.type_spec.bitstring.bit.bitwidth
                    or register.type_spec.bitstring.int.bitwidth
                    or 1,
                }
                for i, register in enumerate(info.registers)
            ],
            "calculations": [
                {"name": each.name, "id": index, "algo": each.algorithm, "input": []}
                for index, each in enumerate(custom_calculations(self._program))
            ],
            "parse_vsets": [
                {
                    "name": each.preamble.name,
                    "id": index,
                    "compressed_bitwidth": sum(match.bitwidth for match in each.match),
                    "max_size": each.size,
                }
                for index, each in enumerate(info.value_sets)
            ],
            "learn_lists": [
                {"name": each.preamble.name, "id": index + 1, "elements": []}
                for index, each in enumerate(info.digests)
            ],
        }

    # --- pipelines

    def _pipelines(self) -> list[dict[str, Any]]:
        blocks = packet_layout(self._program).blocks
        egress = blocks["egress"].name
        tables: dict[str, list[p4i.Table]] = {"ingress": [], "egress": []}
        for table in self._info.tables:
            is_egress = table.preamble.name.startswith(f"{egress}.")
            tables["egress" if is_egress else "ingress"].append(table)
        ids = {t.preamble.name: index for index, t in enumerate(self._info.tables)}
        return [
            {
                "name": name,
                "id": index,
                "source_info": {"filename": "", "line": 1, "source_fragment": blocks[name].name},
                "init_table": None,
                "tables": [self._table(ids[t.preamble.name], t) for t in tables[name]],
                "action_profiles": self._profiles(tables[name]),
                "conditionals": [],
            }
            for index, name in enumerate(tables)
        ]

    def _table(self, number: int, table: p4i.Table) -> dict[str, Any]:
        declared = self._tables[table.preamble.name]
        references = [self._actions[r.id] for r in table.action_refs if r.id in self._actions]
        kind = "simple"
        if declared.implementation is not None:
            selects = declared.implementation.extern == "action_selector"
            kind = "indirect_ws" if selects else "indirect"
        keys = [self._key(field, _kind_of(declared, field.name)) for field in table.match_fields]
        kinds = {key["match_type"] for key in keys}
        made: dict[str, Any] = {
            "name": table.preamble.name,
            "id": number,
            "key": keys,
            "match_type": next((k for k in ("range", "ternary", "lpm") if k in kinds), "exact"),
            "type": kind,
            "max_size": table.size,
            "with_counters": bool(_shown(declared.counters)),
            "support_timeout": declared.support_timeout,
            "direct_meters": next((m.name for m in _shown(declared.meters)), None),
            "action_ids": [index for index, _ in references],
            "actions": [action.preamble.name for _, action in references],
            "base_default_next": None,
            "next_tables": {},
        }
        if declared.implementation is not None:
            made["action_profile"] = declared.implementation.name
        return made

    def _key(self, field: p4i.MatchField, kind: str) -> dict[str, Any]:
        header, _, name = field.name.rpartition(".")
        header = header or "scalars"
        self._headers.setdefault(header, {})[name] = field.bitwidth
        return {"match_type": kind, "name": field.name, "target": [header, name], "mask": None}

    def _profiles(self, tables: Iterable[p4i.Table]) -> list[dict[str, Any]]:
        used = {table.implementation_id for table in tables}
        found = []
        for index, profile in enumerate(self._info.action_profiles):
            if profile.preamble.id in used:
                made = {"name": profile.preamble.name, "id": index, "max_size": profile.size}
                if profile.with_selector:
                    made["selector"] = {"algo": "crc16", "input": []}
                found.append(made)
        return found

    def _direct(
        self, start: int, items: Iterable[Any], meters: bool = False
    ) -> Iterable[dict[str, Any]]:
        names = {table.preamble.id: table for table in self._info.tables}
        for index, item in enumerate(items):
            table = names[item.direct_table_id]
            made = {
                **_array(start + index, item.preamble, table.size),
                "is_direct": True,
                "binding": table.preamble.name,
            }
            yield {**made, **_metering(item.spec.unit)} if meters else made


def _array(number: int, preamble: p4i.Preamble, size: int) -> dict[str, Any]:
    return {"name": preamble.name, "id": number, "size": size, "is_direct": False}


def _metering(unit: int) -> dict[str, Any]:
    from p4switch.proto import p4i

    kind = "bytes" if unit == p4i.MeterSpec.BYTES else "packets"
    return {"rate_count": RATES, "type": kind}


def _kind_of(table: Table, key: str) -> str:
    """Return a key's match kind in the JSON."""
    for each in table.keys:
        if each.name == key:
            return MATCH_KINDS.get(each.match_kind, "ternary")
    return "exact"


def _shown(externs: Iterable[ExternInstance]) -> list[ExternInstance]:
    return [extern for extern in externs if not hidden(extern)]
