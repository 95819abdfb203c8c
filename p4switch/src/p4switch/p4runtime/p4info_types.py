"""Types in P4Info: descriptions of data and the named types to which they refer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from p4switch.ir import (
    Bits,
    Bool,
    FieldType,
    Header,
    Program,
    Struct,
    Type,
    TypeName,
    Varbit,
)
from p4switch.p4runtime.p4info_annotations import annotate
from p4switch.proto import p4i, p4t
from p4switch.targets.v1model.matches import scalar_width

PLAIN = TypeName()


def padded(value: int, width: int) -> bytes:
    """Return a value in all bytes of its width, as p4c writes it, not in canonical form."""
    return (value & (1 << width) - 1).to_bytes((width + 7) // 8, "big")


class TypeTable:
    """Adds types to the `type_info` of a P4Info as they occur."""

    def __init__(self, program: Program, info: p4i.P4Info) -> None:
        self._program = program
        self._info = info

    def note(self) -> None:
        """Create `type_info`, even if empty, as p4c does from the first typed item on."""
        self._info.type_info.SetInParent()

    def describe(self, message: Any, type_name: TypeName, kind: Type) -> None:
        """Set bit width and type name of a key, parameter or metadata field."""
        self.note()
        if type_name.kind == "enum":
            message.type_name.name = type_name.name
            self._enum(type_name.name)
            return
        message.bitwidth = scalar_width(kind)
        if type_name.kind == "serialisable_enum":
            self._serialisable_enum(type_name.name, scalar_width(kind))
        elif type_name.kind == "newtype":
            message.type_name.name = type_name.name
            self._new_type(type_name, kind)
            if type_name.translation is not None:
                message.bitwidth = type_name.translation[1] or 0

    def index(self, message: Any, type_name: TypeName, kind: Type) -> None:
        """Set the name of the type that indexes a counter, meter or register, if it has one."""
        self.note()
        if type_name.kind == "newtype":
            message.index_type_name.name = type_name.name
            self._new_type(type_name, kind)

    def specify(self, spec: p4t.P4DataTypeSpec, kind: Type, type_name: TypeName = PLAIN) -> None:
        """Describe the data of a register, a digest or a part of one."""
        self.note()
        if type_name.kind == "newtype":
            spec.new_type.name = type_name.name
            self._new_type(type_name, kind)
        elif type_name.kind == "serialisable_enum":
            spec.serializable_enum.name = type_name.name
            self._serialisable_enum(type_name.name, scalar_width(kind))
        elif type_name.kind == "enum":
            spec.enum.name = type_name.name
            self._enum(type_name.name)
        elif type_name.kind == "error":
            spec.error.SetInParent()
            if not self._info.type_info.error.members:
                self._info.type_info.error.members.extend(self._program.errors)
        else:
            self._specify_plain(spec, kind)

    def _specify_plain(self, spec: p4t.P4DataTypeSpec, kind: Type) -> None:
        if isinstance(kind, Bits):
            sign = spec.bitstring.int if kind.signed else spec.bitstring.bit
            sign.bitwidth = kind.width
        elif isinstance(kind, Bool):
            spec.bool.SetInParent()
        elif isinstance(kind, Varbit):
            spec.bitstring.varbit.max_bitwidth = kind.max_width
        elif isinstance(kind, Struct) and is_tuple(kind):
            spec.tuple.SetInParent()
            for field in kind.fields:
                self.specify(spec.tuple.members.add(), field.type, field.type_name)
        elif isinstance(kind, Struct):
            spec.struct.name = kind.name
            known = self._info.type_info.structs[kind.name]
            if not known.members:
                for field in kind.fields:
                    member = known.members.add(name=field.name)
                    self.specify(member.type_spec, field.type, field.type_name)
        elif isinstance(kind, Header):
            spec.header.name = kind.name
            header = self._info.type_info.headers[kind.name]
            if not header.members:
                for field in flat(kind.fields):
                    part = p4t.P4DataTypeSpec()
                    self._specify_plain(part, field.type)
                    header.members.add(name=field.name, type_spec=part.bitstring)

    def _new_type(self, type_name: TypeName, kind: Type) -> None:
        known = type_name.name in self._info.type_info.new_types
        spec = self._info.type_info.new_types[type_name.name]
        if not known:
            annotate(spec, type_name.annotations, frozenset({"p4runtime_translation"}))
        if type_name.translation is None:
            self._specify_plain(spec.original_type, kind)
            return
        uri, bits = type_name.translation
        spec.translated_type.uri = uri
        if bits is None:
            spec.translated_type.sdn_string.SetInParent()
        else:
            spec.translated_type.sdn_bitwidth = bits

    def _enum(self, name: str) -> None:
        spec = self._info.type_info.enums[name]
        if not spec.members:
            for member, _ in self._program.enums[name]:
                spec.members.add(name=member)

    def _serialisable_enum(self, name: str, width: int) -> None:
        spec = self._info.type_info.serializable_enums[name]
        if spec.members:
            return
        spec.underlying_type.bitwidth = width
        for member, value in self._program.enums[name]:
            spec.members.add(name=member, value=padded(value, width))


def is_tuple(kind: Struct) -> bool:
    """Return whether a struct of the program is a tuple in the source."""
    return kind.name.startswith("tuple")


def flat(fields: Iterable[FieldType], prefix: str = "") -> Iterator[FieldType]:
    """Return the fields of a header, those of structs inside it as `outer.inner`."""
    for field in fields:
        if isinstance(field.type, Struct):
            yield from flat(field.type.fields, f"{prefix}{field.name}.")
        else:
            name = prefix + field.name
            yield FieldType(name, field.type, field.annotations, field.type_name)
