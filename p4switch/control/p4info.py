"""P4Info of a program: what p4c's `--p4runtime-files` writes (P4Runtime specification 1.5, 6)."""

from __future__ import annotations

from collections.abc import Callable as Function
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Protocol

from finsy.proto import p4i, p4t
from google.protobuf import text_format

from p4switch.control.bytestrings import encode
from p4switch.control.ids import IdKind, aliases, assign_ids
from p4switch.control.walk import extern_calls
from p4switch.ir import (
    Annotation,
    Bits,
    Bool,
    Callable,
    ExternInstance,
    Header,
    Key,
    Parameter,
    Program,
    Struct,
    Table,
    Type,
    TypeName,
    ValueSet,
    Varbit,
)
from p4switch.v1model.matches import match_keys, scalar_width, table_size

EXTERN_KINDS = {
    "action_profile": IdKind.ACTION_PROFILE,
    "action_selector": IdKind.ACTION_PROFILE,
    "counter": IdKind.COUNTER,
    "direct_counter": IdKind.DIRECT_COUNTER,
    "meter": IdKind.METER,
    "direct_meter": IdKind.DIRECT_METER,
    "register": IdKind.REGISTER,
}
# The order of v1model's CounterType and MeterType.
COUNTER_UNITS = (p4i.CounterSpec.PACKETS, p4i.CounterSpec.BYTES, p4i.CounterSpec.BOTH)
METER_UNITS = (p4i.MeterSpec.PACKETS, p4i.MeterSpec.BYTES)
# Annotations that say what P4Info has fields for.
CONSUMED = frozenset({"name", "id", "hidden", "deprecated", "pkginfo", "brief", "description"})
MATCH_TYPES = {
    "exact": p4i.MatchField.EXACT,
    "lpm": p4i.MatchField.LPM,
    "ternary": p4i.MatchField.TERNARY,
    "range": p4i.MatchField.RANGE,
    "optional": p4i.MatchField.OPTIONAL,
}


class _Annotated(Protocol):
    @property
    def annotations(self) -> tuple[Annotation, ...]: ...


def annotation(item: _Annotated, name: str) -> Annotation | None:
    """The annotation of that name; None if there is none."""
    return next((a for a in item.annotations if a.name == name), None)


def hidden(item: _Annotated) -> bool:
    """Whether the control plane does not see it."""
    return annotation(item, "hidden") is not None


def _is_controller_header(header: Header) -> bool:
    return annotation(header, "controller_header") is not None and not hidden(header)


def controller_headers(program: Program) -> list[Header]:
    """The types of packet_in and packet_out headers."""
    return [t for t in program.types.values() if isinstance(t, Header) and _is_controller_header(t)]


def controller_name(header: Header) -> str:
    """`packet_in` or `packet_out`, as `@controller_header` says."""
    found = annotation(header, "controller_header")
    return str(found.arguments[0]) if found and found.arguments else header.name


def field_ids(items: Sequence[_Annotated]) -> list[int]:
    """Ids of keys or parameters: 1, 2, ... but where `@id` says another."""
    given: list[int | None] = []
    for item in items:
        found = annotation(item, "id")
        given.append(int(found.arguments[0]) if found is not None else None)
    taken = {value for value in given if value is not None}
    ids = []
    number = 1
    for value in given:
        if value is None:
            while number in taken:
                number += 1
            value = number
            number += 1
        ids.append(value)
    return ids


class Names:
    """Ids and aliases of everything in a program, by kind and fully qualified name."""

    def __init__(self, program: Program) -> None:
        self.tables = [t for t in program.tables if not hidden(t)]
        self.actions = [a for a in _unique(program.actions) if not hidden(a)]
        self.externs = [e for e in program.externs if e.extern in EXTERN_KINDS and not hidden(e)]
        self.value_sets = [v for v in program.value_sets if not hidden(v)]
        self.headers = controller_headers(program)
        self.digests = digest_types(program)
        by_kind: dict[IdKind, dict[str, tuple[Annotation, ...]]] = {kind: {} for kind in IdKind}
        for table in self.tables:
            by_kind[IdKind.TABLE][table.name] = table.annotations
        for action in self.actions:
            by_kind[IdKind.ACTION][action.name] = action.annotations
        for extern in self.externs:
            by_kind[EXTERN_KINDS[extern.extern]][extern.name] = extern.annotations
        for value_set in self.value_sets:
            by_kind[IdKind.VALUE_SET][value_set.name] = value_set.annotations
        for header in self.headers:
            by_kind[IdKind.CONTROLLER_HEADER][header.name] = header.annotations
        for digest in self.digests:
            by_kind[IdKind.DIGEST][digest.name] = digest.annotations
        self._ids = {kind: assign_ids(kind, names) for kind, names in by_kind.items()}
        self._aliases = aliases(dict.fromkeys(chain.from_iterable(by_kind.values())))

    def id(self, kind: IdKind, name: str) -> int:
        """The id of an object."""
        return self._ids[kind][name]

    def alias(self, name: str) -> str:
        """The shortest unique suffix of a name."""
        return self._aliases[name]


def _unique(actions: Iterable[Callable]) -> list[Callable]:
    """Actions by name, each once (an action has an instance for each control instance)."""
    return list({action.name: action for action in actions}.values())


def digest_types(program: Program) -> list[Struct]:
    """Struct types that the program sends as digests, in order of first use."""
    found: dict[str, Struct] = {}
    for call in extern_calls(program):
        if call.instance is None and call.method == "digest":
            for kind in call.type_arguments:
                if isinstance(kind, Struct):
                    found.setdefault(kind.name, kind)
    return list(found.values())


def p4info(program: Program) -> p4i.P4Info:
    """The P4Info of a program."""
    return _Builder(program).build()


def p4info_text(program: Program) -> str:
    """The P4Info in protobuf text form, headed as p4c's files are."""
    return (
        "# proto-file: p4/config/v1/p4info.proto\n"
        "# proto-message: p4.config.v1.P4Info\n\n" + text_format.MessageToString(p4info(program))
    )


def annotation_text(item: Annotation) -> str:
    """An annotation as P4Info has it: `@name(text)`."""
    if item.tokens:
        return f"@{item.name}({_joined(item.tokens)})"
    if item.arguments:
        return f"@{item.name}({', '.join(_literal(a) for a in item.arguments)})"
    return f"@{item.name}"


def _joined(tokens: Sequence[str]) -> str:
    return " ".join(tokens).replace(" ,", ",").replace(" . ", ".")


def _literal(value: int | str | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


class _Builder:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._names = Names(program)
        self._info = p4i.P4Info()

    def build(self) -> p4i.P4Info:
        self._package()
        for table in self._names.tables:
            self._table(table)
        for action in self._names.actions:
            self._action(action)
        for extern in self._names.externs:
            self._extern(extern)
        for header in self._names.headers:
            self._controller_header(header)
        for value_set in self._names.value_sets:
            self._value_set(value_set)
        for digest in self._names.digests:
            self._digest(digest)
        return self._info

    def _package(self) -> None:
        self._info.pkg_info.arch = "v1model"
        for item in self._program.annotations:
            if item.name == "pkginfo":
                for key, value in item.pairs:
                    if key in ("name", "version", "organization", "contact", "url", "arch"):
                        setattr(self._info.pkg_info, key, str(value))
            else:
                self._info.pkg_info.annotations.append(annotation_text(item))

    def _preamble(
        self,
        message: Any,
        kind: IdKind,
        item: Any,
        skip: Function[[str], bool] = CONSUMED.__contains__,
    ) -> None:
        preamble = message.preamble
        preamble.id = self._names.id(kind, item.name)
        preamble.name = item.name
        preamble.alias = self._names.alias(item.name)
        self._annotations(preamble, item.annotations, skip)

    @staticmethod
    def _annotations(
        message: Any,
        annotations: Iterable[Annotation],
        skip: Function[[str], bool] = CONSUMED.__contains__,
    ) -> None:
        message.annotations.extend(annotation_text(a) for a in annotations if not skip(a.name))

    def _typed(self, message: Any, type_name: TypeName, kind: Type) -> None:
        """Set bit width and type name of a key, parameter or metadata field."""
        if type_name.kind == "enum":
            message.type_name.name = type_name.name
            return
        message.bitwidth = scalar_width(kind)
        if not type_name.name or type_name.kind in ("bool", "error"):
            return
        message.type_name.name = type_name.name
        types = self._info.type_info
        if type_name.kind == "serialisable_enum":
            self._serialisable_enum(type_name.name, scalar_width(kind))
            return
        spec = types.new_types[type_name.name]
        if type_name.translation is None:
            spec.original_type.bitstring.bit.bitwidth = scalar_width(kind)
            return
        uri, bits = type_name.translation
        spec.translated_type.uri = uri
        if bits is None:
            spec.translated_type.sdn_string.SetInParent()
            message.ClearField("bitwidth")
        else:
            spec.translated_type.sdn_bitwidth = bits
            message.bitwidth = bits

    def _serialisable_enum(self, name: str, width: int) -> None:
        spec = self._info.type_info.serializable_enums[name]
        if spec.members:
            return
        spec.underlying_type.bitwidth = width
        for member, value in self._program.enums[name]:
            spec.members.add(name=member, value=encode(value & (1 << width) - 1))

    def _table(self, table: Table) -> None:
        message = self._info.tables.add()
        self._preamble(message, IdKind.TABLE, table)
        message.size = table_size(table)
        keys = match_keys(table)
        for key, number in zip(keys, field_ids(keys), strict=True):
            self._key(message, key, number)
        for item in table.actions:
            if hidden(item.action):
                continue
            reference = message.action_refs.add(id=self._names.id(IdKind.ACTION, item.action.name))
            self._annotations(reference, item.annotations)
            if item.table_only:
                reference.scope = p4i.ActionRef.TABLE_ONLY
            elif item.default_only:
                reference.scope = p4i.ActionRef.DEFAULT_ONLY
        self._default_action(message, table)
        message.is_const_table = bool(table.entries) and table.entries_constant
        message.has_initial_entries = bool(table.entries)
        if table.support_timeout:
            message.idle_timeout_behavior = p4i.Table.NOTIFY_CONTROL
        if table.implementation is not None:
            message.implementation_id = self._names.id(
                IdKind.ACTION_PROFILE, table.implementation.name
            )
        for extern in (*table.counters, *table.meters):
            if not hidden(extern):
                message.direct_resource_ids.append(
                    self._names.id(EXTERN_KINDS[extern.extern], extern.name)
                )

    def _default_action(self, message: p4i.Table, table: Table) -> None:
        action = table.actions[table.default_action.index].action
        number = self._names.id(IdKind.ACTION, action.name)
        if table.default_constant:
            message.const_default_action_id = number
        message.initial_default_action.action_id = number
        for param_id, value in zip(
            field_ids(action.data), table.default_action.arguments, strict=True
        ):
            message.initial_default_action.arguments.add(param_id=param_id, value=encode(value))

    def _key(self, message: p4i.Table, key: Key, number: int) -> None:
        field = message.match_fields.add(id=number, name=key.name)
        self._annotations(field, key.annotations)
        self._typed(field, key.type_name, key.expression.type)
        if key.match_kind in MATCH_TYPES:
            field.match_type = MATCH_TYPES[key.match_kind]
        else:
            field.other_match_type = key.match_kind

    def _action(self, action: Callable) -> None:
        message = self._info.actions.add()
        self._preamble(message, IdKind.ACTION, action)
        data: Sequence[Parameter] = action.data
        for parameter, number in zip(data, field_ids(data), strict=True):
            field = message.params.add(id=number, name=parameter.name)
            self._annotations(field, parameter.annotations)
            self._typed(field, parameter.type_name, parameter.variable.type)

    def _extern(self, extern: ExternInstance) -> None:
        kind = EXTERN_KINDS[extern.extern]
        if extern.extern in ("action_profile", "action_selector"):
            self._action_profile(extern)
            return
        message: Any
        if kind in (IdKind.COUNTER, IdKind.DIRECT_COUNTER):
            indirect = kind == IdKind.COUNTER
            message = (self._info.counters if indirect else self._info.direct_counters).add()
            message.spec.unit = COUNTER_UNITS[int(extern.arguments[-1])]
        elif kind in (IdKind.METER, IdKind.DIRECT_METER):
            indirect = kind == IdKind.METER
            message = (self._info.meters if indirect else self._info.direct_meters).add()
            message.spec.unit = METER_UNITS[int(extern.arguments[-1])]
        else:
            indirect = True
            message = self._info.registers.add()
            self._type_spec(message.type_spec, extern.type_arguments[0])
        self._preamble(message, kind, extern)
        if indirect:
            message.size = int(extern.arguments[0])
            return
        for table in self._names.tables:
            if extern in table.counters or extern in table.meters:
                message.direct_table_id = self._names.id(IdKind.TABLE, table.name)

    def _action_profile(self, extern: ExternInstance) -> None:
        message = self._info.action_profiles.add()
        own = ("max_group_size", "selector_size_semantics", "max_member_weight")
        self._preamble(
            message,
            IdKind.ACTION_PROFILE,
            extern,
            lambda name: name in CONSUMED or name in own,
        )
        message.with_selector = extern.extern == "action_selector"
        sizes = [a for a in extern.arguments if isinstance(a, int)]
        message.size = int(sizes[1] if message.with_selector else sizes[0])
        group_size = annotation(extern, "max_group_size")
        if group_size is not None and message.with_selector:
            message.max_group_size = int(group_size.arguments[0])
        message.table_ids.extend(
            self._names.id(IdKind.TABLE, table.name)
            for table in self._names.tables
            if table.implementation is extern
        )

    def _controller_header(self, header: Header) -> None:
        message = self._info.controller_packet_metadata.add()
        name = controller_name(header)
        message.preamble.id = self._names.id(IdKind.CONTROLLER_HEADER, header.name)
        message.preamble.name = message.preamble.alias = name
        self._annotations(message.preamble, header.annotations)
        fields = [field for field in header.fields if not hidden(field)]
        for field, number in zip(fields, field_ids(fields), strict=True):
            metadata = message.metadata.add(id=number, name=field.name)
            self._annotations(metadata, field.annotations)
            self._typed(metadata, field.type_name, field.type)

    def _value_set(self, value_set: ValueSet) -> None:
        message = self._info.value_sets.add()
        self._preamble(message, IdKind.VALUE_SET, value_set)
        message.size = value_set.size
        kinds = (
            [field.type for field in value_set.type.fields]
            if isinstance(value_set.type, Struct)
            else [value_set.type]
        )
        for number, (kind, match) in enumerate(zip(kinds, value_set.match_kinds, strict=True), 1):
            name = value_set.field_names[number - 1] if value_set.field_names else ""
            message.match.add(
                id=number, name=name, bitwidth=scalar_width(kind), match_type=MATCH_TYPES[match]
            )

    def _digest(self, digest: Struct) -> None:
        message = self._info.digests.add()
        self._preamble(message, IdKind.DIGEST, digest)
        self._type_spec(message.type_spec, digest)

    def _type_spec(self, spec: p4t.P4DataTypeSpec, kind: Type) -> None:
        """Describe a type; structs are entered into the type information."""
        if isinstance(kind, Bits):
            sign = spec.bitstring.int if kind.signed else spec.bitstring.bit
            sign.bitwidth = kind.width
        elif isinstance(kind, Bool):
            spec.bool.SetInParent()
        elif isinstance(kind, Varbit):
            spec.bitstring.varbit.max_bitwidth = kind.max_width
        elif isinstance(kind, Struct) and kind.name.startswith("tuple"):
            for field in kind.fields:
                self._type_spec(spec.tuple.members.add(), field.type)
        elif isinstance(kind, Struct):
            spec.struct.name = kind.name
            known = self._info.type_info.structs[kind.name]
            if not known.members:
                for field in kind.fields:
                    member = known.members.add(name=field.name)
                    self._type_spec(member.type_spec, field.type)
        elif isinstance(kind, Header):
            spec.header.name = kind.name
