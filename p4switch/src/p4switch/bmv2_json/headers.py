"""Headers and metadata: their types, and the places named by the rest of the file.

Headers, stacks and unions are fields of one struct, metadata of a second one, as v1model's blocks
take them. BMv2's own metadata become fields of `standard_metadata` even if the file has them in
another header: P4_14's `intrinsic_metadata` and `queueing_metadata`, and those in `field_aliases`.
"""

from __future__ import annotations

from p4switch import ir
from p4switch.bmv2_json.document import Document, Identifiers, Part
from p4switch.midend.field_lists import path_of

STANDARD = "standard_metadata"
ARCHITECTURE_METADATA = {
    "intrinsic_metadata": (
        "ingress_global_timestamp",
        "egress_global_timestamp",
        "mcast_grp",
        "egress_rid",
        "priority",
    ),
    "queueing_metadata": ("enq_timestamp", "enq_qdepth", "deq_timedelta", "deq_qdepth"),
}
"""Metadata other than standard_metadata that simple_switch sets (docs/simple_switch.md)."""


class Headers:
    """The headers and metadata of a file."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._type_parts = {part["name"]: part for part in document.parts("header_types")}
        self._header_types: dict[str, ir.Header] = {}
        self._fields: dict[str, dict[str, ir.FieldType]] = {}
        self._places: dict[str, ir.Expression] = {}
        self._parts: dict[str, Part] = {part["name"]: part for part in document.parts("headers")}
        self._names = {part["id"]: part["name"] for part in self._parts.values()}
        if STANDARD not in self._parts:
            raise document.unsupported(
                f"there is no header {STANDARD!r}: only programs for v1model (simple_switch) run"
            )
        self._aliases = self._alias_names()
        self.headers = ir.Variable("hdr", self._headers_type())
        self.standard = ir.Variable(STANDARD, self._standard_type())
        self.metadata = ir.Variable("meta", self._metadata_type())
        self._place_all()

    @property
    def types(self) -> dict[str, ir.Header | ir.Struct | ir.Union]:
        """Return the header types by name."""
        return dict(self._header_types)

    # --- places

    def header(self, name: str, part: Part | None = None) -> ir.Expression:
        """Return a header, or metadata, by name."""
        if name not in self._places:
            raise self._document.error(f"there is no header {name!r}", part)
        return self._places[name]

    stack = union = header
    """Stacks and unions share the names of headers."""

    def field(self, header: str, name: str, part: Part | None = None) -> ir.Expression:
        """Return a field of a header or of metadata; `$valid$` is one bit."""
        if name == "$valid$":
            return ir.Cast(ir.BIT, ir.IsValid(ir.BOOL, self.header(header, part)))
        if (header, name) in self._aliases:
            return self._standard_field(self._aliases[header, name])
        return self.field_of(self.header(header, part), name, part)

    def field_of(self, base: ir.Expression, name: str, part: Part | None = None) -> ir.Expression:
        """Return a field of a header expression by its name in the file."""
        assert isinstance(base.type, ir.Header | ir.Struct)
        known = self._fields[base.type.name]
        if name not in known:
            raise self._document.error(f"header {base.type.name!r} has no field {name!r}", part)
        return ir.Field(known[name].type, base, known[name].name)

    def field_at(self, base: ir.Expression, offset: int, part: Part) -> ir.Expression:
        """Return a field of a header expression by its number, from 0."""
        kind = base.type
        if not isinstance(kind, ir.Header | ir.Struct | ir.Union) or offset >= len(kind.fields):
            raise self._document.error(f"there is no member {offset}", part)
        found = kind.fields[offset]
        return ir.Field(found.type, base, found.name)

    def _standard_field(self, name: str) -> ir.Expression:
        return self.field_of(ir.Read(self.standard.type, self.standard), name)

    # --- types

    def header_type(self, name: str) -> ir.Header:
        """Return a header type by name."""
        if name not in self._header_types:
            made = ir.Header(name, self._field_types(name, name))
            self._header_types[name] = made
        return self._header_types[name]

    def _field_types(self, type_name: str, key: str) -> tuple[ir.FieldType, ...]:
        """Return the fields of a header type, known to `field_of` under `key`."""
        part = self._type_parts.get(type_name)
        if part is None:
            raise self._document.error(f"there is no header type {type_name!r}")
        identifiers = Identifiers()
        known = self._fields[key] = {}
        fixed = sum(item[1] for item in part["fields"] if item[1] != "*")
        for name, width, *flags in part["fields"]:
            signed, saturating = [*flags, False, False][:2]
            if saturating:
                raise self._document.unsupported(f"the saturating field {name!r}", part)
            kind: ir.Type
            if width == "*":
                kind = ir.Varbit(int(part.get("max_length") or 0) * 8 - fixed)
            else:
                kind = ir.Bits(self._document.width(width, part), bool(signed))
            known[name] = ir.FieldType(identifiers.of(name), kind)
        return tuple(known.values())

    def _headers_type(self) -> ir.Struct:
        document = self._document
        self._members = Identifiers()
        inside: set[str] = set()
        fields: list[ir.FieldType] = []
        unions: dict[str, ir.Union] = {}
        for part in document.parts("header_union_types"):
            kinds = [(name, self.header_type(kind)) for name, kind in part["headers"]]
            identifiers = Identifiers()
            members = tuple(ir.FieldType(identifiers.of(name), kind) for name, kind in kinds)
            unions[part["name"]] = ir.Union(part["name"], members)
        union_names = {part["id"]: part["name"] for part in document.parts("header_unions")}

        def add(name: str, kind: ir.Type) -> None:
            fields.append(ir.FieldType(self._members.of(name), kind))

        for part in document.parts("header_stacks"):
            inside.update(self._names[number] for number in part["header_ids"])
            size = len(part["header_ids"])
            add(part["name"], ir.Stack(self.header_type(part["header_type"]), size))
        stacked: set[str] = set()
        for part in document.parts("header_union_stacks"):
            stacked.update(union_names[number] for number in part["header_union_ids"])
            size = len(part["header_union_ids"])
            add(part["name"], ir.Stack(unions[part["union_type"]], size))
        for part in document.parts("header_unions"):
            inside.update(self._names[number] for number in part["header_ids"])
            if part["name"] not in stacked:
                add(part["name"], unions[part["union_type"]])
        for name, part in self._parts.items():
            if not part["metadata"] and name not in inside:
                add(name, self.header_type(part["header_type"]))
        return ir.Struct("headers", tuple(fields))

    def _standard_type(self) -> ir.Struct:
        fields = {f.name: f for f in self._field_types(self._parts[STANDARD]["header_type"], "")}
        for (header, name), own in self._aliases.items():
            if header != STANDARD and header in self._parts:
                for known, width, *_ in self._type_parts[self._parts[header]["header_type"]][
                    "fields"
                ]:
                    if known == name:
                        fields[own] = ir.FieldType(own, ir.Bits(self._document.width(width)))
        made = ir.Struct("standard_metadata_t", tuple(fields.values()))
        self._fields[made.name] = fields
        return made

    def _metadata_type(self) -> ir.Struct:
        members = Identifiers()
        fields: list[ir.FieldType] = []
        for name, part in self._parts.items():
            if not part["metadata"] or name == STANDARD:
                continue
            key = f"{name} metadata"
            plain = self._field_types(part["header_type"], key)
            fields.append(ir.FieldType(members.of(name), ir.Struct(key, plain)))
        return ir.Struct("metadata", tuple(fields))

    def _alias_names(self) -> dict[tuple[str, str], str]:
        """Return (header, field) of the file -> field of standard_metadata."""
        found = {
            (header, name): name
            for header, names in ARCHITECTURE_METADATA.items()
            for name in names
            if header in self._parts
        }
        for theirs, place in self._document.root.get("field_aliases") or []:
            found[place[0], place[1]] = str(theirs).rpartition(".")[2]
        return found

    def field_lists(self) -> dict[int, tuple[ir.FieldPath, ...]]:
        """Return the metadata in each field list; those of headers are not preserved."""
        variables = (self.metadata, self.standard)
        roots = dict(zip(variables, ir.FIELD_PATH_ROOTS, strict=True))
        return {
            part["id"]: tuple(
                path
                for item in part["elements"]
                if item["type"] == "field"
                and (path := path_of(self._listed(item), roots)) is not None
            )
            for part in self._document.parts("field_lists")
        }

    def _listed(self, item: Part) -> ir.Expression:
        header, name = item["value"]
        return self.field(header, name, item)

    # --- positions of headers

    def _place_all(self) -> None:
        document = self._document
        root = ir.Read(self.headers.type, self.headers)

        def member(base: ir.Expression, index: int) -> ir.Expression:
            kind = base.type
            assert isinstance(kind, ir.Struct | ir.Union)
            return ir.Field(kind.fields[index].type, base, kind.fields[index].name)

        assert isinstance(self.headers.type, ir.Struct)
        by_name = {field.name: index for index, field in enumerate(self.headers.type.fields)}

        def top(name: str) -> ir.Expression:
            return member(root, by_name[self._members.of(name)])

        def element(stack: ir.Expression, index: int) -> ir.Expression:
            assert isinstance(stack.type, ir.Stack)
            return ir.Element(stack.type.element, stack, ir.Const(ir.BIT32, index))

        places = self._places
        for part in document.parts("header_stacks"):
            places[part["name"]] = top(part["name"])
            for index, number in enumerate(part["header_ids"]):
                places[self._names[number]] = element(places[part["name"]], index)
        union_names = {part["id"]: part["name"] for part in document.parts("header_unions")}
        for part in document.parts("header_union_stacks"):
            places[part["name"]] = top(part["name"])
            for index, number in enumerate(part["header_union_ids"]):
                places[union_names[number]] = element(places[part["name"]], index)
        for part in document.parts("header_unions"):
            if part["name"] not in places:
                places[part["name"]] = top(part["name"])
            for index, number in enumerate(part["header_ids"]):
                places[self._names[number]] = member(places[part["name"]], index)
        assert isinstance(self.metadata.type, ir.Struct)
        metadata = ir.Read(self.metadata.type, self.metadata)
        for index, name in enumerate(
            name for name, part in self._parts.items() if part["metadata"] and name != STANDARD
        ):
            places[name] = member(metadata, index)
        places[STANDARD] = ir.Read(self.standard.type, self.standard)
        for name, part in self._parts.items():
            if name not in places and not part["metadata"]:
                places[name] = top(name)
