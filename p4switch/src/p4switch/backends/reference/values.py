"""Values of P4 types, and the places of variables.

`bit<W>` and `int<W>` are int (the number, negative if signed), enums and errors the int that the
intermediate representation makes of them, `bool` is bool, `varbit` a pair (value, width in bits),
`string` is str. Headers, structs, unions and stacks are mutable objects; P4 has no references, so
an object is changed in place (`assign`) and never shared between two variables.

Sections are those of the P4_16 specification 1.2.5.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from p4switch.ir import Bits, Bool, Header, Stack, String, Struct, Type, Union, Varbit

Value = Any
"""A value of a P4 type, which the program's types determine."""

BitString = tuple[int, int]
"""(value, width in bits)."""


class ParserFault(Exception):
    """A parser goes to reject with the error of that name, e.g. `PacketTooShort` (13.8)."""


class Cell:
    """The place of a variable (11.2): `value` is replaced, an object in it is changed in place."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value


# --- Scalars -----------------------------------------------------------------------------------


def mask_of(width: int) -> int:
    """Return all ones in `width` bits."""
    return (1 << width) - 1


def is_object(kind: Type) -> bool:
    """Return whether values of the type are mutable objects."""
    return isinstance(kind, Header | Struct | Union | Stack)


def default_scalar(kind: Type) -> Value:
    """Return the default value of a type without parts (7.3)."""
    if isinstance(kind, Bool):
        return False
    if isinstance(kind, Varbit):
        return (0, 0)
    if isinstance(kind, String):
        return ""
    return 0


def wrap(kind: Bits, number: int) -> int:
    """Return the value of a type whose low bits are those of `number` (7.1.6.2, 7.1.6.3)."""
    if not kind.signed:
        return number & (1 << kind.width) - 1
    if kind.width == 0:
        return 0
    half = 1 << (kind.width - 1)
    return (number + half & (1 << kind.width) - 1) - half


def from_bits(kind: Type, bits: int) -> Value:
    """Return the scalar of an unsigned number of a given width."""
    if isinstance(kind, Bool):
        return bits != 0
    if isinstance(kind, Bits) and kind.signed:
        return wrap(kind, bits)
    return bits


def to_bits(kind: Type, value: Value) -> int:
    """Return a scalar's bits as an unsigned number; of a varbit, those it has now."""
    if isinstance(kind, Bits):
        return int(value) & (1 << kind.width) - 1 if kind.signed else int(value)
    if isinstance(kind, Varbit):
        return int(value[0])
    return int(value) if isinstance(kind, Bool) else 0


def bit_width(kind: Type) -> int:
    """Return the width in bits of a type of fixed width (section 9; varbits count as 0)."""
    if isinstance(kind, Bits):
        return kind.width
    if isinstance(kind, Bool):
        return 1
    if isinstance(kind, Header | Struct):
        return sum(bit_width(field.type) for field in kind.fields)
    if isinstance(kind, Stack):
        return kind.size * bit_width(kind.element)
    if isinstance(kind, Union):
        return max((bit_width(field.type) for field in kind.fields), default=0)
    return 0


# --- Objects -----------------------------------------------------------------------------------


class Shape:
    """Base of values of header, struct and union types."""

    def __init__(self, kind: Header | Struct | Union, shapes: Shapes) -> None:
        self.kind = kind
        self._shapes = shapes
        self.zeros = {f.name: default_scalar(f.type) for f in kind.fields if not is_object(f.type)}
        """Scalar fields with their default values."""
        self.objects = tuple((f.name, f.type) for f in kind.fields if is_object(f.type))
        self.layout = tuple((f.name, f.type, bit_width(f.type)) for f in kind.fields)
        """(name, type, width in bits) of every field, in order."""
        self.unsigned = all(isinstance(f.type, Bits) and not f.type.signed for f in kind.fields)
        """Whether all fields are `bit<W>`: their values are their bits."""

    @cached_property
    def width(self) -> int:
        """Return the width in bits, without a varbit's."""
        return bit_width(self.kind)

    @cached_property
    def max_varbit(self) -> int:
        """Return the maximum width of the varbit in bits; 0 if there is none (7.2.2)."""
        return max((k.max_width for _, k, _ in self.layout if isinstance(k, Varbit)), default=0)

    def made_of(self, fields: dict[str, Value]) -> StructValue:
        """Return a struct, or a valid header, with copies of these values as its fields."""
        for name, _ in self.objects:
            fields[name] = fields[name].copy()
        kind = HeaderValue if isinstance(self.kind, Header) else StructValue
        return kind(self, fields)

    def fresh_fields(self) -> dict[str, Value]:
        """Return default values of all fields (7.3), including new objects."""
        fields = dict(self.zeros)
        for name, kind in self.objects:
            fields[name] = self._shapes.fresh(kind)
        return fields


class Shapes:
    """Makes values of a program's types."""

    def __init__(self) -> None:
        self._shapes: dict[Header | Struct | Union, Shape] = {}

    def of(self, kind: Header | Struct | Union) -> Shape:
        """Return the shape of a type."""
        shape = self._shapes.get(kind)
        if shape is None:
            shape = self._shapes[kind] = Shape(kind, self)
        return shape

    def fresh(self, kind: Type) -> Value:
        """Return a new value of a type: its default (7.3); headers are invalid."""
        match kind:
            case Header():
                return HeaderValue(self.of(kind))
            case Struct():
                return StructValue(self.of(kind))
            case Union():
                return UnionValue(self.of(kind))
            case Stack():
                return StackValue(kind, self)
        return default_scalar(kind)


class StructValue:
    """A value of a struct or tuple (8.12, 8.16)."""

    __slots__ = ("fields", "shape")

    def __init__(self, shape: Shape, fields: dict[str, Value] | None = None) -> None:
        """Take over `fields`, which must not be shared, or use default values."""
        self.shape = shape
        self.fields = shape.fresh_fields() if fields is None else fields

    def clear(self) -> None:
        """Reset to the default value (7.3)."""
        self.fields.update(self.shape.zeros)
        for name, _ in self.shape.objects:
            self.fields[name].clear()

    def assign(self, other: StructValue) -> None:
        """Take over the other's fields (12.1)."""
        if not self.shape.objects:
            self.fields.update(other.fields)
            return
        for name in self.shape.zeros:
            self.fields[name] = other.fields[name]
        for name, _ in self.shape.objects:
            self.fields[name].assign(other.fields[name])

    def copy(self) -> StructValue:
        """Return an equal value that shares nothing with this one."""
        twin = type(self).__new__(type(self))
        twin.shape = self.shape
        twin.fields = dict(self.fields)
        for name, _ in self.shape.objects:
            twin.fields[name] = self.fields[name].copy()
        return twin

    def equals(self, other: StructValue) -> bool:
        """P4's `==`: all fields are equal (8.16)."""
        return all(self.fields[name] == other.fields[name] for name in self.shape.zeros) and all(
            self.fields[name].equals(other.fields[name]) for name, _ in self.shape.objects
        )

    def is_valid(self) -> bool:
        """Return False: only headers and unions can be valid."""
        return False

    def headers(self) -> Iterator[HeaderValue]:
        """Return the headers in it, in order."""
        for name, _ in self.shape.objects:
            yield from self.fields[name].headers()

    def bits(self) -> BitString:
        """Return the bits of all fields in order, headers that are not valid left out."""
        if self.shape.unsigned:
            number = 0
            for name, _, width in self.shape.layout:
                number = number << width | self.fields[name]
            return number, self.shape.width
        number = total = 0
        for name, kind, width in self.shape.layout:
            value = self.fields[name]
            if is_object(kind):
                more, width = value.bits()
            elif isinstance(kind, Varbit):
                more, width = value
            else:
                more = to_bits(kind, value)
            number = number << width | more
            total += width
        return number, total

    def fill(self, number: int, varbit_width: int = 0) -> None:
        """Set all fields from bits, the first one's highest, and make headers valid (13.8.1)."""
        for name, kind, width in reversed(self.shape.layout):
            if isinstance(kind, Varbit):
                self.fields[name] = (number & mask_of(varbit_width), varbit_width)
                number >>= varbit_width
                continue
            bits = number & (1 << width) - 1
            if is_object(kind):
                self.fields[name].fill(bits)
            else:
                self.fields[name] = from_bits(kind, bits)
            number >>= width

    def leaves(self) -> Iterator[int]:
        """Return the bits of all scalar fields, one number each, in order."""
        for name, kind, _ in self.shape.layout:
            if is_object(kind):
                yield from self.fields[name].leaves()
            else:
                yield to_bits(kind, self.fields[name])


class HeaderValue(StructValue):
    """A value of a header type: fields and a validity bit (7.2.2, 8.17)."""

    __slots__ = ("valid",)

    def __init__(self, shape: Shape, fields: dict[str, Value] | None = None) -> None:
        """Hold default values, invalid, or `fields`, valid."""
        super().__init__(shape, fields)
        self.valid = fields is not None

    def clear(self) -> None:
        """Reset to the default value: invalid (7.3), and its fields zero."""
        self.valid = False
        super().clear()

    def validate(self) -> None:
        """`setValid()`: fields of an invalid header become zero, as in BMv2 (8.17)."""
        if not self.valid:
            self.clear()
            self.valid = True

    def invalidate(self) -> None:
        """`setInvalid()`: the fields keep their values, as in BMv2 (8.17 leaves them open)."""
        self.valid = False

    def assign(self, other: StructValue) -> None:
        """Take over the other's fields and validity (8.17)."""
        assert isinstance(other, HeaderValue)
        self.valid = other.valid
        super().assign(other)

    def take(self, other: HeaderValue) -> None:
        """Take over a valid header; after an invalid one only the validity changes, as in BMv2."""
        if other.valid:
            self.assign(other)
        else:
            self.invalidate()

    def copy(self) -> StructValue:
        """Return an equal header."""
        twin = super().copy()
        assert isinstance(twin, HeaderValue)
        twin.valid = self.valid
        return twin

    def equals(self, other: StructValue) -> bool:
        """Both are invalid, or both valid and their fields equal (8.17)."""
        assert isinstance(other, HeaderValue)
        if not (self.valid and other.valid):
            return self.valid == other.valid
        return super().equals(other)

    def is_valid(self) -> bool:
        """`isValid()`."""
        return self.valid

    def full_width(self) -> int:
        """Return the width in bits with a varbit's present one, valid or not."""
        varbits = (v[1] for v in self.fields.values() if isinstance(v, tuple))
        return self.shape.width + sum(int(width) for width in varbits)

    def headers(self) -> Iterator[HeaderValue]:
        """Return itself."""
        yield self

    def bits(self) -> BitString:
        """Return the bits of a valid header's fields."""
        return super().bits() if self.valid else (0, 0)

    def fill(self, number: int, varbit_width: int = 0) -> None:
        """Set all fields, and valid (13.8.1)."""
        self.valid = True
        if not self.shape.unsigned:
            super().fill(number, varbit_width)
            return
        fields = self.fields
        for name, _, width in reversed(self.shape.layout):
            fields[name] = number & (1 << width) - 1
            number >>= width


class UnionValue(StructValue):
    """A value of a header union: at most one of its headers is valid (7.2.4, 8.19)."""

    __slots__ = ()

    def is_valid(self) -> bool:
        """Return whether one of the headers is valid."""
        return any(header.valid for header in self.fields.values())

    def only(self, member: str) -> None:
        """Make all members but this one invalid."""
        for name, header in self.fields.items():
            if name != member:
                header.invalidate()

    def invalidate(self) -> None:
        """Make all members invalid."""
        for header in self.fields.values():
            header.invalidate()

    def set_member(self, member: str, value: HeaderValue) -> None:
        """Assign a header to a member: a valid one becomes the only one, else none is valid."""
        if value.valid:
            self.fields[member].assign(value)
            self.only(member)
        else:
            self.invalidate()


class StackValue:
    """A stack of headers or unions, with its nextIndex (7.2.3, 8.18)."""

    __slots__ = ("_kind", "_shapes", "elements", "next_index")

    def __init__(self, kind: Stack, shapes: Shapes) -> None:
        self._kind = kind
        self._shapes = shapes
        self.elements: list[Value] = [self._fresh() for _ in range(kind.size)]
        self.next_index = 0

    def _fresh(self) -> Value:
        return self._shapes.fresh(self._kind.element)

    def at(self, index: int) -> Value:
        """Return element `index`; out of bounds, a dummy invalid one (8.18)."""
        if 0 <= index < len(self.elements):
            return self.elements[index]
        return self._fresh()

    def next_element(self) -> Value:
        """`stack.next` (8.18)."""
        if self.next_index >= len(self.elements):
            raise ParserFault("StackOutOfBounds")
        return self.elements[self.next_index]

    def last_element(self) -> Value:
        """`stack.last` (8.18)."""
        if not 1 <= self.next_index <= len(self.elements):
            raise ParserFault("StackOutOfBounds")
        return self.elements[self.next_index - 1]

    def push(self, count: int) -> None:
        """`push_front(count)`, or `pop_front(-count)` if `count` is negative (8.18).

        New elements are those pushed out, invalid, in the order of BMv2's swaps (stacks.cpp).
        """
        elements, size = self.elements, len(self.elements)
        moved = min(abs(count), size)
        if count > 0:
            pairs = [(i, i - moved) for i in range(size - 1, moved - 1, -1)]
        else:
            pairs = [(i, i + moved) for i in range(size - moved)]
        for i, j in pairs:
            elements[i], elements[j] = elements[j], elements[i]
        for element in elements[:moved] if count > 0 else elements[size - moved :]:
            element.invalidate()
        self.next_index = min(max(self.next_index + count, 0), size)

    def clear(self) -> None:
        """Make all elements invalid and reset the index."""
        for element in self.elements:
            element.clear()
        self.next_index = 0

    def assign(self, other: StackValue) -> None:
        """Take over the other's elements and nextIndex."""
        for mine, theirs in zip(self.elements, other.elements, strict=True):
            mine.assign(theirs)
        self.next_index = other.next_index

    def copy(self) -> StackValue:
        """Return an equal stack that shares nothing with this one."""
        twin = StackValue.__new__(StackValue)
        twin._kind, twin._shapes = self._kind, self._shapes
        twin.elements = [element.copy() for element in self.elements]
        twin.next_index = self.next_index
        return twin

    def equals(self, other: StackValue) -> bool:
        """P4's `==`: all elements are equal (8.18)."""
        return all(a.equals(b) for a, b in zip(self.elements, other.elements, strict=True))

    def is_valid(self) -> bool:
        """Return whether any element is valid."""
        return any(element.is_valid() for element in self.elements)

    def headers(self) -> Iterator[HeaderValue]:
        """Return the headers in it, in order."""
        for element in self.elements:
            yield from element.headers()

    def bits(self) -> BitString:
        """Return the bits of the valid elements, in order."""
        number = total = 0
        for element in self.elements:
            more, width = element.bits()
            number = number << width | more
            total += width
        return number, total

    def fill(self, number: int) -> None:
        """Set all elements from bits, and make them valid."""
        width = bit_width(self._kind.element)
        for element in reversed(self.elements):
            element.fill(number & mask_of(width))
            number >>= width

    def leaves(self) -> Iterator[int]:
        """Return the bits of all scalar fields, one number each, in order."""
        for element in self.elements:
            yield from element.leaves()
