"""Parts of P4Info that BMv2 JSON lacks: ids, and hidden objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from p4switch import ir
from p4switch.position import P4Error, Position

HIDDEN = ir.Annotation("hidden")

PACKETS_AND_BYTES = 2
COUNTER_TYPES = {1: 1, 2: 0, 3: PACKETS_AND_BYTES}
"""CounterSpec.Unit (bytes, packets, both) to v1model's CounterType."""
SCOPES = {1: "tableonly", 2: "defaultonly"}
"""ActionRef.Scope to annotations."""

KINDS = (
    "tables",
    "actions",
    "action_profiles",
    "counters",
    "direct_counters",
    "meters",
    "direct_meters",
    "registers",
    "value_sets",
)


class ControlPlane:
    """The P4Info of a program; without one, p4c's internal tables are hidden."""

    def __init__(self, text: str) -> None:
        """`text`: the P4Info in protobuf's text form, empty if there is none. Raises P4Error."""
        self.text = text
        self._known: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
        self._headers: list[Any] = []
        if not text:
            return
        from google.protobuf import text_format

        from p4switch.proto import p4i

        try:
            info = text_format.Parse(text, p4i.P4Info())
        except text_format.ParseError as error:
            raise P4Error(Position("<P4Info>", 1, 1), f"no P4Info in text form: {error}") from error
        for kind, known in self._known.items():
            known.update({item.preamble.name: item for item in getattr(info, kind)})
        self._headers = list(info.controller_packet_metadata)
        self._optional = p4i.MatchField.OPTIONAL

    def __bool__(self) -> bool:
        return bool(self.text)

    def annotations(self, kind: str, name: str) -> tuple[ir.Annotation, ...]:
        """Return an object's `@id` annotation, or `@hidden`; none if there is no P4Info."""
        if not self.text:
            return ()
        item = self._known[kind].get(name)
        return (HIDDEN,) if item is None else (_id(item.preamble.id),)

    def direct_name(self, kind: str, table: str) -> str | None:
        """Return the name of a table's direct counter or meter, which differs in older JSON."""
        owner = self._known["tables"].get(table)
        if owner is None:
            return None
        return next(
            (
                name
                for name, item in self._known[kind].items()
                if item.direct_table_id == owner.preamble.id
            ),
            None,
        )

    def counter_unit(self, kind: str, name: str) -> int:
        """Return the CounterType of a counter; BMv2's count both."""
        item = self._known[kind].get(name)
        return PACKETS_AND_BYTES if item is None else COUNTER_TYPES[item.spec.unit]

    def names(self, kind: str) -> Iterable[str]:
        """Return the names of the P4Info's objects of a kind."""
        return self._known[kind]

    def actions(self, table: str) -> set[str] | None:
        """Return the names of a table's actions; None for an unknown table."""
        item = self._known["tables"].get(table)
        if item is None:
            return None
        names = self._action_names()
        return {names[reference.id] for reference in item.action_refs if reference.id in names}

    def _action_names(self) -> dict[int, str]:
        return {action.preamble.id: name for name, action in self._known["actions"].items()}

    def data(self, action: str) -> dict[str, tuple[ir.Annotation, ...]]:
        """Return the ids of an action's parameters by name."""
        item = self._known["actions"].get(action)
        return {} if item is None else {p.name: (_id(p.id),) for p in item.params}

    def keys(self, table: str) -> list[tuple[str, bool, int, tuple[ir.Annotation, ...]]]:
        """Return a table's keys in order: name, whether it is optional, width, and id."""
        item = self._known["tables"].get(table)
        if item is None:
            return []
        return [
            (
                field.name,
                field.match_type == self._optional,
                field.bitwidth,
                (_id(field.id),),
            )
            for field in item.match_fields
        ]

    def action_scopes(self, table: str) -> dict[str, tuple[ir.Annotation, ...]]:
        """Return each action's restriction in a table: `@defaultonly`, `@tableonly` or neither."""
        item = self._known["tables"].get(table)
        if item is None:
            return {}
        names = self._action_names()
        return {
            names[reference.id]: (ir.Annotation(SCOPES[reference.scope]),)
            for reference in item.action_refs
            if reference.scope in SCOPES and reference.id in names
        }

    def is_const(self, table: str) -> bool:
        """Return whether a table's entries are const, as far as is known."""
        item = self._known["tables"].get(table)
        return item is None or item.is_const_table

    def value_set(self, name: str) -> tuple[int, list[tuple[str, int]]] | None:
        """Return size, and names and widths of the members of a value set."""
        item = self._known["value_sets"].get(name)
        return None if item is None else (item.size, [(f.name, f.bitwidth) for f in item.match])

    def controller_headers(self) -> dict[str, ir.Header]:
        """Return the headers of packet-ins and packet-outs as separate types."""
        return {
            f"{item.preamble.name} controller_header": ir.Header(
                item.preamble.name,
                tuple(
                    ir.FieldType(field.name, ir.Bits(field.bitwidth), (_id(field.id),))
                    for field in item.metadata
                ),
                (
                    ir.Annotation("controller_header", (item.preamble.name,)),
                    _id(item.preamble.id),
                ),
            )
            for item in self._headers
        }


def _id(number: int) -> ir.Annotation:
    return ir.Annotation("id", (number,))
