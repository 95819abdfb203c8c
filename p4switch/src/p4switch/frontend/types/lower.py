"""Types of the checker as types of the IR."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p4switch import ir
from p4switch.frontend.types import types
from p4switch.literals import decode_string

if TYPE_CHECKING:
    from collections.abc import Iterable


class NoRuntimeTypeError(Exception):
    """A type that no value at run time can have; `kind` is that type."""

    def __init__(self, kind: types.Type) -> None:
        self.kind = kind
        super().__init__(str(kind))


class Lowering:
    """Lowers types, making one IR object for each declared type and tuple."""

    def __init__(self) -> None:
        self.declared: dict[str, ir.Header | ir.Struct | ir.Union] = {}
        self._tuples: dict[tuple[types.Type, ...], ir.Struct] = {}
        self._bits: dict[types.Bits, ir.Bits] = {}

    def type(self, kind: types.Type) -> ir.Type:
        """Lower a type; raises NoRuntimeTypeError where there is nothing to lower it to."""
        if isinstance(kind, types.Bits):
            known = self._bits.get(kind)
            if known is None:
                known = self._bits[kind] = ir.Bits(kind.width, kind.signed)
            return known
        if isinstance(kind, types.StructLike):
            return kind.lowered if kind.lowered is not None else self._struct_like(kind)
        if kind is types.BOOL:
            return ir.BOOL
        if kind is types.ERROR:
            return ir.BIT32
        if kind is types.STRING or kind is types.MATCH_KIND:
            return ir.STRING
        if isinstance(kind, types.Enum):
            return ir.BIT32 if kind.underlying is None else self.type(kind.underlying)
        if isinstance(kind, types.NewType):
            return self.type(kind.base)
        if isinstance(kind, types.Varbit):
            return ir.Varbit(kind.width)
        if isinstance(kind, types.Stack):
            element = self.type(kind.element)
            assert isinstance(element, (ir.Header, ir.Union))
            return ir.Stack(element, kind.size)
        if isinstance(kind, types.Tuple):
            return self._tuple(kind.elements)
        if isinstance(kind, types.Unknown) and kind.bound is not None:
            return self.type(kind.bound)
        if isinstance(kind, types.Parameter):
            # Only code that is checked without being specialised has these; it never runs.
            return ir.Bits(0)
        raise NoRuntimeTypeError(kind)

    def _struct_like(self, kind: types.StructLike) -> ir.Type:
        fields = tuple(
            ir.FieldType(f.name, self.type(f.type), f.annotations, type_name(f.type))
            for f in kind.fields.values()
        )
        name = str(kind)
        if name in self.declared:
            name = self._fresh(name)
        lowered: ir.Header | ir.Struct | ir.Union
        if kind.kind == "header":
            lowered = ir.Header(name, fields, kind.annotations)
        elif kind.kind == "struct":
            lowered = ir.Struct(name, fields, kind.annotations)
        else:
            lowered = ir.Union(name, fields, kind.annotations)
        kind.lowered = lowered
        if not types.contains(kind, types.Parameter):
            self.declared[name] = lowered
        return lowered

    def _fresh(self, name: str) -> str:
        number = 1
        while f"{name}_{number}" in self.declared:
            number += 1
        return f"{name}_{number}"

    def _tuple(self, elements: tuple[types.Type, ...]) -> ir.Struct:
        known = self._tuples.get(elements)
        if known is None:
            fields = tuple(
                ir.FieldType(f"f{i}", self.type(element), (), type_name(element))
                for i, element in enumerate(elements)
            )
            known = self._tuples[elements] = ir.Struct(f"tuple_{len(self._tuples)}", fields)
        return known


def type_name(kind: types.Type) -> ir.TypeName:
    """Return a type's name in the source, for P4Info."""
    if isinstance(kind, types.NewType):
        annotations = tuple(kind.annotations)
        return ir.TypeName("newtype", kind.name, _translation(annotations), annotations)
    if isinstance(kind, types.Enum):
        return ir.TypeName("enum" if kind.underlying is None else "serialisable_enum", kind.name)
    if kind is types.ERROR:
        return ir.TypeName("error", "error")
    if kind is types.BOOL:
        return ir.TypeName("bool", "bool")
    return ir.TypeName()


def _translation(annotations: Iterable[ir.Annotation]) -> tuple[str, int | None] | None:
    for annotation in annotations:
        if annotation.name != "p4runtime_translation" or annotation.tokens[1:2] != (",",):
            continue
        # The second argument is a number, `string`, or `bit<32>`, which is no expression.
        digits = "".join(c for c in "".join(annotation.tokens[2:]) if c.isdigit())
        return decode_string(annotation.tokens[0]), int(digits) if digits else None
    return None
