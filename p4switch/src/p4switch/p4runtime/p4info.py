"""P4Info of a program, as p4c's `--p4runtime-files` writes it (P4Runtime specification 1.5, 6)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from google.protobuf import json_format, text_format

from p4switch.ir import (
    Callable,
    ExternInstance,
    Header,
    Key,
    Program,
    Struct,
    Table,
    ValueSet,
)
from p4switch.midend.architecture import V1MODEL, architecture_of
from p4switch.midend.walk import extern_calls
from p4switch.p4runtime.ids import IdKind
from p4switch.p4runtime.names import (
    EXTERN_KINDS,
    DigestType,
    Names,
    annotation,
    controller_name,
    field_ids,
    header_fields,
    hidden,
    shown_name,
    value_set_ids,
)
from p4switch.p4runtime.p4info_annotations import annotate
from p4switch.p4runtime.p4info_types import PLAIN, TypeTable, padded
from p4switch.position import NOWHERE, P4Error, Position
from p4switch.proto import p4i
from p4switch.targets.v1model.matches import match_keys, scalar_width, table_size
from p4switch.targets.v1model.state import value_set_widths

# The order of v1model's CounterType and MeterType.
COUNTER_UNITS = (p4i.CounterSpec.PACKETS, p4i.CounterSpec.BYTES, p4i.CounterSpec.BOTH)
METER_UNITS = (p4i.MeterSpec.PACKETS, p4i.MeterSpec.BYTES)
MATCH_TYPES = {
    "exact": p4i.MatchField.EXACT,
    "lpm": p4i.MatchField.LPM,
    "ternary": p4i.MatchField.TERNARY,
    "range": p4i.MatchField.RANGE,
    "optional": p4i.MatchField.OPTIONAL,
}
ENGINES = ("PacketReplicationEngine", "BufferingQueueingEngine")
# Annotations for which P4Info has fields.

PROFILE_ANNOTATIONS = frozenset({"max_group_size", "selector_size_semantics", "max_member_weight"})
PACKAGE_ANNOTATIONS = frozenset({"pkginfo", "platform_property"})
PACKAGE_KEYS = frozenset({"name", "version", "organization", "contact", "url", "arch"})


def p4info(program: Program) -> p4i.P4Info:
    """Return the P4Info of a program: the one that came with it, if any."""
    if program.p4info:
        return text_format.Parse(program.p4info, p4i.P4Info())
    return _Builder(program).build()


def p4info_text(program: Program) -> str:
    """Return the P4Info in protobuf text form, with the header of p4c's files."""
    return (
        "# proto-file: p4/config/v1/p4info.proto\n"
        "# proto-message: p4.config.v1.P4Info\n\n" + text_format.MessageToString(p4info(program))
    )


def p4info_file(program: Program, suffix: str) -> bytes:
    """Return the contents of a file for a P4Info: `.json`, `.bin` (binary), or else text."""
    if suffix == ".json":
        return json_format.MessageToJson(p4info(program)).encode()
    if suffix == ".bin":
        return p4info(program).SerializeToString()
    return p4info_text(program).encode()


@contextmanager
def expressing(name: str, position: Position = NOWHERE) -> Iterator[None]:
    """Build a part of the P4Info; P4Error if one of its numbers does not fit."""
    try:
        yield
    except ValueError as error:
        raise P4Error(position, f"{name}: P4Info cannot express it: {error}") from None


class _Builder:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._names = Names(program)
        self._info = p4i.P4Info()
        self._types = TypeTable(program, self._info)

    def build(self) -> p4i.P4Info:
        with expressing("main"):
            self._package()
        for table in self._names.tables:
            with expressing(table.name, table.position):
                self._table(table)
        for action in self._names.actions:
            with expressing(action.name, action.position):
                self._action(action)
        for extern in self._names.externs:
            with expressing(extern.name, extern.position):
                self._extern(extern)
        for header in self._names.headers:
            self._controller_header(header)
        for value_set in self._names.value_sets:
            with expressing(value_set.name):
                self._value_set(value_set)
        for digest in self._names.digests:
            self._digest(digest)
        calls = extern_calls(self._program)
        is_v1model = architecture_of(self._program.package) is V1MODEL
        if any(extern.extern not in ENGINES for extern in self._program.externs) or (
            is_v1model and any(call.instance is None for call in calls)
        ):
            self._types.note()
        return self._info

    def _package(self) -> None:
        package = self._info.pkg_info
        package.arch = architecture_of(self._program.package).name
        for item in self._program.annotations:
            for key, value in item.pairs:
                if item.name == "pkginfo" and key in PACKAGE_KEYS:
                    setattr(package, key, str(value))
                elif item.name == "platform_property" and hasattr(package.platform_properties, key):
                    setattr(package.platform_properties, key, value)
        others = [a for a in self._program.annotations if a.name not in PACKAGE_ANNOTATIONS]
        annotate(package, others)

    def _preamble(
        self, message: Any, kind: IdKind, item: Any, skip: frozenset[str] = frozenset()
    ) -> None:
        preamble = message.preamble
        preamble.id = self._names.id(kind, item.name)
        preamble.name = item.name
        preamble.alias = self._names.alias(item.name)
        annotate(preamble, item.annotations, skip)

    # --- tables and actions

    def _table(self, table: Table) -> None:
        self._types.note()
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
            annotate(reference, item.annotations)
            if item.table_only:
                reference.scope = p4i.ActionRef.TABLE_ONLY
            elif item.default_only:
                reference.scope = p4i.ActionRef.DEFAULT_ONLY
        self._default_action(message, table)
        message.is_const_table = table.entries_constant
        message.has_initial_entries = bool(table.entries)
        if table.support_timeout:
            message.idle_timeout_behavior = p4i.Table.NOTIFY_CONTROL
        if table.implementation is not None:
            message.implementation_id = self._names.extern_id(table.implementation)
        for extern in (*table.counters, *table.meters):
            if not hidden(extern):
                message.direct_resource_ids.append(self._names.extern_id(extern))

    def _default_action(self, message: p4i.Table, table: Table) -> None:
        action = table.actions[table.default_action.index].action
        if hidden(action):
            return
        number = self._names.id(IdKind.ACTION, action.name)
        if table.default_constant:
            message.const_default_action_id = number
        message.initial_default_action.action_id = number
        for param_id, parameter, value in zip(
            field_ids(action.data), action.data, table.default_action.arguments, strict=True
        ):
            message.initial_default_action.arguments.add(
                param_id=param_id, value=padded(value, scalar_width(parameter.variable.type))
            )

    def _key(self, message: p4i.Table, key: Key, number: int) -> None:
        field = message.match_fields.add(id=number, name=key.name)
        annotate(field, key.annotations)
        self._types.describe(field, key.type_name, key.expression.type)
        if key.match_kind in MATCH_TYPES:
            field.match_type = MATCH_TYPES[key.match_kind]
        else:
            field.other_match_type = key.match_kind

    def _action(self, action: Callable) -> None:
        message = self._info.actions.add()
        self._preamble(message, IdKind.ACTION, action)
        for parameter, number in zip(action.data, field_ids(action.data), strict=True):
            field = message.params.add(id=number, name=shown_name(parameter))
            annotate(field, parameter.annotations)
            self._types.describe(field, parameter.type_name, parameter.variable.type)

    # --- externs

    def _extern(self, extern: ExternInstance) -> None:
        kind = EXTERN_KINDS[extern.extern]
        if kind == IdKind.ACTION_PROFILE:
            self._action_profile(extern)
        elif kind in (IdKind.DIRECT_COUNTER, IdKind.DIRECT_METER):
            self._direct(kind, extern)
        else:
            self._cells(kind, extern)

    def _direct(self, kind: IdKind, extern: ExternInstance) -> None:
        """Return a direct counter or meter; None if no table uses it."""
        for table in self._names.tables:
            if extern not in table.counters and extern not in table.meters:
                continue
            message: Any
            if kind == IdKind.DIRECT_COUNTER:
                message = self._info.direct_counters.add()
                message.spec.unit = COUNTER_UNITS[extern.number(-1)]
            else:
                message = self._info.direct_meters.add()
                message.spec.unit = METER_UNITS[extern.number(-1)]
            self._preamble(message, kind, extern)
            message.direct_table_id = self._names.id(IdKind.TABLE, table.name)

    def _cells(self, kind: IdKind, extern: ExternInstance) -> None:
        """Return a counter, meter or register: an array."""
        message: Any
        if kind == IdKind.COUNTER:
            message = self._info.counters.add()
            message.spec.unit = COUNTER_UNITS[extern.number(-1)]
        elif kind == IdKind.METER:
            message = self._info.meters.add()
            message.spec.unit = METER_UNITS[extern.number(-1)]
        else:
            message = self._info.registers.add()
            names = extern.type_names or (PLAIN,)
            self._types.specify(message.type_spec, extern.type_arguments[0], names[0])
        self._preamble(message, kind, extern)
        message.size = extern.number(0)
        for index in extern.type_names[1:] if kind == IdKind.REGISTER else extern.type_names[-1:]:
            self._types.index(message, index, extern.type_arguments[-1])

    def _action_profile(self, extern: ExternInstance) -> None:
        message = self._info.action_profiles.add()
        self._preamble(message, IdKind.ACTION_PROFILE, extern, PROFILE_ANNOTATIONS)
        message.with_selector = extern.extern == "action_selector"
        sizes = [a for a in extern.arguments if isinstance(a, int)]
        message.size = int(sizes[1] if message.with_selector else sizes[0])
        if message.with_selector:
            _group_sizes(message, extern)
        message.table_ids.extend(
            self._names.id(IdKind.TABLE, table.name)
            for table in self._names.tables
            if table.implementation is extern
        )

    # --- headers, value sets, digests

    def _controller_header(self, header: Header) -> None:
        message = self._info.controller_packet_metadata.add()
        name = controller_name(header)
        message.preamble.id = self._names.id(IdKind.CONTROLLER_HEADER, header.name)
        message.preamble.name = message.preamble.alias = name
        annotate(message.preamble, header.annotations)
        for item in header_fields(header):
            if item.id is not None:
                metadata = message.metadata.add(id=item.id, name=shown_name(item.field))
                annotate(metadata, item.field.annotations)
                self._types.describe(metadata, item.field.type_name, item.field.type)

    def _value_set(self, value_set: ValueSet) -> None:
        message = self._info.value_sets.add()
        self._preamble(message, IdKind.VALUE_SET, value_set)
        message.size = value_set.size
        fields = value_set.type.fields if isinstance(value_set.type, Struct) else ()
        for position, (number, width, match_kind) in enumerate(
            zip(
                value_set_ids(value_set),
                value_set_widths(value_set),
                value_set.match_kinds,
                strict=True,
            )
        ):
            match = message.match.add(id=number, bitwidth=width, match_type=MATCH_TYPES[match_kind])
            if fields:
                match.name = shown_name(fields[position])
                annotate(match, fields[position].annotations, frozenset({"match"}))

    def _digest(self, digest: DigestType) -> None:
        message = self._info.digests.add()
        self._preamble(message, IdKind.DIGEST, digest)
        self._types.specify(message.type_spec, digest.type)


def _group_sizes(message: p4i.ActionProfile, extern: ExternInstance) -> None:
    """Return the maximum and total group sizes of a selector from annotations."""
    group_size = annotation(extern, "max_group_size")
    if group_size is not None:
        message.max_group_size = int(group_size.arguments[0])
    semantics = annotation(extern, "selector_size_semantics")
    if semantics is None:
        return
    if str(semantics.arguments[0]).lower() == "sum_of_weights":
        message.sum_of_weights.SetInParent()
        return
    message.sum_of_members.SetInParent()
    weight = annotation(extern, "max_member_weight")
    if weight is not None:
        message.sum_of_members.max_member_weight = int(weight.arguments[0])
