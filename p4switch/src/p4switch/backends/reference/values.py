"""Python classes for the headers, structs, unions and stacks of one program.

Values of P4 are Python values: `bit` and `int` are int, `bool` is bool, varbit is a pair (value,
width in bits), a string is str. Headers, structs, unions and stacks are mutable objects of
classes written here, one class a type; P4 has no references, so an object is changed
in place (`assign`) and never shared between two variables. Fields carry the prefix `f_`, so that
no name of a program meets one of Python's or ours.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from p4switch.ir import Bits, Bool, FieldType, Header, Stack, String, Struct, Type, Union, Varbit

STRUCT_CODES = {8: "B", 16: "H", 32: "I", 64: "Q"}

Object = Any
"""An object of a generated class; which one, only the translated program knows."""


class ParserFault(Exception):
    """A parser goes to reject with the error of that name, e.g. `PacketTooShort`."""


class HeaderStack:
    """A header stack (or stack of unions): its elements and nextIndex."""

    __slots__ = ("element", "elements", "next_index")

    def __init__(self, element: type[Object], size: int) -> None:
        self.element = element
        self.elements = [element() for _ in range(size)]
        self.next_index = 0

    def at(self, index: int) -> Object:
        """Element `index`; out of bounds an invalid one of no consequence."""
        if 0 <= index < len(self.elements):
            return self.elements[index]
        return self.element()

    def next_element(self) -> Object:
        """`stack.next`."""
        if self.next_index >= len(self.elements):
            raise ParserFault("StackOutOfBounds")
        return self.elements[self.next_index]

    def last_element(self) -> Object:
        """`stack.last`."""
        if not 1 <= self.next_index <= len(self.elements):
            raise ParserFault("StackOutOfBounds")
        return self.elements[self.next_index - 1]

    def push(self, count: int) -> None:
        """`push_front(count)`, or `pop_front(-count)` if `count` is negative."""
        size = len(self.elements)
        moved = min(abs(count), size)
        fresh = [self.element() for _ in range(moved)]
        if count > 0:
            self.elements = fresh + self.elements[: size - moved]
        else:
            self.elements = self.elements[moved:] + fresh
        self.next_index = min(max(self.next_index + count, 0), size)

    def clear(self) -> None:
        """Make all elements invalid and start anew."""
        for element in self.elements:
            element.clear()
        self.next_index = 0

    def assign(self, other: HeaderStack) -> None:
        """Take over the other's elements and nextIndex."""
        for mine, theirs in zip(self.elements, other.elements, strict=True):
            mine.assign(theirs)
        self.next_index = other.next_index

    def copy(self) -> HeaderStack:
        """Return a stack of its own with the same contents."""
        twin = HeaderStack(self.element, len(self.elements))
        twin.assign(self)
        return twin

    def equals(self, other: HeaderStack) -> bool:
        """P4's `==`: all elements are equal."""
        return all(a.equals(b) for a, b in zip(self.elements, other.elements, strict=True))

    def is_valid(self) -> bool:
        """Whether any element is valid."""
        return any(element.is_valid() for element in self.elements)

    def emit(self, out: Object) -> None:
        """Emit the valid elements in order."""
        for element in self.elements:
            element.emit(out)

    def bits(self) -> tuple[int, int]:
        """All valid elements' bits: (value, width)."""
        value = width = 0
        for element in self.elements:
            more, count = element.bits()
            value = value << count | more
            width += count
        return value, width

    def leaves(self) -> Iterator[int]:
        """Values of all scalar fields, in order, unsigned."""
        for element in self.elements:
            yield from element.leaves()


def mask_of(width: int) -> int:
    """All ones in `width` bits."""
    return (1 << width) - 1


def signed_text(text: str, width: int) -> str:
    """Source of the two's complement value of an integer's low `width` bits."""
    if width == 0:
        return "0"
    half = 1 << (width - 1)
    return f"(({text}) + {half} & {mask_of(width)}) - {half}"


def from_bits_text(kind: Type, text: str) -> str:
    """Source of a scalar made from its unsigned bits."""
    if isinstance(kind, Bool):
        return f"{text} != 0"
    if isinstance(kind, Bits) and kind.signed:
        return signed_text(text, kind.width)
    return text


def to_bits_text(kind: Type, text: str) -> str:
    """Source of a scalar's unsigned bits; not for varbits."""
    if isinstance(kind, Bool):
        return f"int({text})"
    if isinstance(kind, Bits) and kind.signed:
        return f"{text} & {mask_of(kind.width)}"
    return text


def bit_width(kind: Type) -> int:
    """Width of a type of fixed width, in bits (a varbit's counts as 0)."""
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


def is_object(kind: Type) -> bool:
    """Whether values of the type are mutable objects."""
    return isinstance(kind, Header | Struct | Union | Stack)


def zero_text(kind: Type) -> str:
    """Source of a scalar type's initial value."""
    if isinstance(kind, Bool):
        return "False"
    if isinstance(kind, Varbit):
        return "(0, 0)"
    if isinstance(kind, String):
        return "''"
    return "0"


def flat_fields(fields: Sequence[FieldType], prefix: str = "") -> Iterator[tuple[str, Type]]:
    """(path, scalar type) of every field, those of inner structs and headers included.

    Unions, which have no fixed layout, stand as they are.
    """
    for field in fields:
        for path, inner in _parts(f"{prefix}f_{field.name}", field.type):
            if isinstance(inner, Struct | Header):
                yield from flat_fields(inner.fields, path + ".")
            else:
                yield path, inner


def _parts(path: str, kind: Type) -> Iterator[tuple[str, Type]]:
    """Return a field itself, or the elements of a stack."""
    if isinstance(kind, Stack):
        for index in range(kind.size):
            yield f"{path}.elements[{index}]", kind.element
    else:
        yield path, kind


class ClassWriter:
    """Writes and compiles the classes of a program's types into a namespace, when asked."""

    def __init__(self, namespace: dict[str, Object]) -> None:
        self.namespace = namespace
        self._names: dict[int, str] = {}
        self._kept: list[Type] = []
        namespace["HeaderStack"] = HeaderStack

    def new_text(self, kind: Type) -> str:
        """Source that makes a fresh value of the type."""
        if isinstance(kind, Stack):
            return f"HeaderStack({self.class_name(kind.element)}, {kind.size})"
        if is_object(kind):
            return f"{self.class_name(kind)}()"
        return zero_text(kind)

    def maker(self, kind: Type) -> Callable[[], Object]:
        """Return a function that makes a fresh object of a header, struct or union type."""
        made: Callable[[], Object] = self.namespace[self.class_name(kind)]
        return made

    def class_name(self, kind: Type) -> str:
        """Name of the type's class; writes the class the first time."""
        assert isinstance(kind, Header | Struct | Union)
        name = self._names.get(id(kind))
        if name is None:
            clean = "".join(c if c.isalnum() else "_" for c in kind.name)
            name = f"T{len(self._names)}_{clean}"
            self._names[id(kind)] = name
            self._kept.append(kind)  # keeps id(kind) taken
            for field in kind.fields:
                self.new_text(field.type)
            source = "\n".join(self._class_lines(name, kind))
            exec(compile(source, f"<class {kind.name}>", "exec"), self.namespace)
        return name

    def _class_lines(self, name: str, kind: Header | Struct | Union) -> Iterator[str]:
        fields = [(f"f_{field.name}", field.type) for field in kind.fields]
        header = isinstance(kind, Header)
        slots = [field for field, _ in fields] + (["valid"] if header else [])
        yield f"class {name}:"
        yield f"    __slots__ = {tuple(slots)!r}"
        yield "    def __init__(self):"
        if header:
            yield "        self.valid = False"
        for field, inner in fields:
            yield f"        self.{field} = {self.new_text(inner)}"
        yield "        return"

        yield "    def clear(self):"
        if header:
            yield "        self.valid = False"
        for field, inner in fields:
            clear = ".clear()" if is_object(inner) else f" = {zero_text(inner)}"
            yield f"        self.{field}{clear}"
        yield "        return"

        yield "    def assign(self, other):"
        if header:
            yield "        self.valid = other.valid"
        for field, inner in fields:
            if is_object(inner):
                yield f"        self.{field}.assign(other.{field})"
            else:
                yield f"        self.{field} = other.{field}"
        yield "        return"

        yield "    def copy(self):"
        yield f"        twin = {name}.__new__({name})"
        if header:
            yield "        twin.valid = self.valid"
        for field, inner in fields:
            copy = ".copy()" if is_object(inner) else ""
            yield f"        twin.{field} = self.{field}{copy}"
        yield "        return twin"

        same = [
            f"self.{field}.equals(other.{field})"
            if is_object(inner)
            else f"self.{field} == other.{field}"
            for field, inner in fields
        ]
        yield "    def equals(self, other):"
        if header:
            yield "        if not (self.valid and other.valid):"
            yield "            return self.valid == other.valid"
        yield f"        return {' and '.join(same) or 'True'}"

        yield "    def is_valid(self):"
        if header:
            yield "        return self.valid"
        elif isinstance(kind, Union):
            yield f"        return {' or '.join(f'self.{f}.valid' for f, _ in fields) or 'False'}"
        else:
            yield "        return False"

        yield "    def emit(self, out):"
        if header:
            yield "        if self.valid: out.emit(self)"
        else:
            for field, inner in fields:
                if is_object(inner):
                    yield f"        self.{field}.emit(out)"
        yield "        return"

        yield "    def bits(self):"
        if header:
            yield "        if not self.valid: return 0, 0"
        yield from self._bits_lines(fields)
        yield "    def leaves(self):"
        yield "        yield from ()"
        for field, inner in fields:
            if is_object(inner):
                yield f"        yield from self.{field}.leaves()"
            elif isinstance(inner, Varbit):
                yield f"        yield self.{field}[0]"
            else:
                yield f"        yield {to_bits_text(inner, f'self.{field}')}"

        if isinstance(kind, Union):
            yield from self._union_lines(fields)
        else:
            yield from self._build_lines(name, kind, fields)
            yield from _pack_lines(name, kind)

    def _bits_lines(self, fields: list[tuple[str, Type]]) -> Iterator[str]:
        yield "        value = width = 0"
        for field, inner in fields:
            if is_object(inner) or isinstance(inner, Varbit):
                call = ".bits()" if is_object(inner) else ""
                yield f"        more, count = self.{field}{call}"
                yield "        value = value << count | more"
                yield "        width += count"
            elif bit_width(inner):
                text = to_bits_text(inner, f"self.{field}")
                yield f"        value = value << {bit_width(inner)} | ({text})"
                yield f"        width += {bit_width(inner)}"
        yield "        return value, width"

    def _union_lines(self, fields: list[tuple[str, Type]]) -> Iterator[str]:
        yield "    def only(self, member):"
        for field, _ in fields:
            yield f"        if member != {field!r}: self.{field}.clear()"
        yield "        return getattr(self, member)"
        yield "    def set_member(self, member, value):"
        yield "        if value.valid:"
        yield "            getattr(self, member).assign(value)"
        yield "            self.only(member)"
        yield "        else:"
        yield "            self.clear()"

    def _build_lines(
        self, name: str, kind: Header | Struct, fields: list[tuple[str, Type]]
    ) -> Iterator[str]:
        names = ", ".join(f"v{i}" for i in range(len(fields)))
        yield "    @staticmethod"
        yield f"    def build({names}):"
        yield f"        made = {name}.__new__({name})"
        if isinstance(kind, Header):
            yield "        made.valid = True"
        for index, (field, inner) in enumerate(fields):
            copy = ".copy()" if is_object(inner) else ""
            yield f"        made.{field} = v{index}{copy}"
        yield "        return made"


# --- Bytes on the wire -------------------------------------------------------------------------


def _chunks(leaves: list[tuple[str, Type]]) -> Iterator[tuple[list[tuple[str, Type]], int, int]]:
    """Return runs of fields between byte boundaries: (fields, bytes, bits of padding)."""
    run: list[tuple[str, Type]] = []
    bits = 0
    for leaf in leaves:
        run.append(leaf)
        bits += bit_width(leaf[1])
        if bits % 8 == 0:
            yield run, bits // 8, 0
            run, bits = [], 0
    if run:
        yield run, (bits + 7) // 8, -bits % 8


def _pack_lines(name: str, kind: Header | Struct) -> Iterator[str]:
    """Methods `unpack(data, offset)` and `pack()`; with a varbit `unpack_bits(value, width)`.

    All make the headers inside valid. Bits are most significant first; a last byte is padded
    with zeros.
    """
    leaves = list(flat_fields(kind.fields))
    varbit = any(isinstance(inner, Varbit) for _, inner in leaves)
    yield f"    WIDTH = {bit_width(kind)}"
    yield f"    WHOLE_BYTES = {bit_width(kind) % 8 == 0 and not varbit}"
    if varbit:
        yield from _varbit_lines(leaves)
        return
    if any(is_object(inner) for _, inner in leaves):
        return  # a struct with unions is never on the wire as a whole
    codes, getters, setters = [], [], []
    for number, (run, size, padding) in enumerate(_chunks(leaves)):
        whole = f"c{number}"
        code = STRUCT_CODES.get(size * 8)
        codes.append(code or f"{size}s")
        raw = whole if code else f"int.from_bytes({whole}, 'big')"
        parts = []
        shift = size * 8
        for path, inner in run:
            width = bit_width(inner)
            shift -= width
            parts.append(f"({to_bits_text(inner, f'self.{path}')}) << {shift}")
            text = f"({raw} >> {shift} & {mask_of(width)})" if len(run) > 1 or padding else raw
            setters.append(f"        self.{path} = {from_bits_text(inner, text)}")
        packed = " | ".join(parts)
        if len(run) == 1 and not padding:
            packed = to_bits_text(run[0][1], f"self.{run[0][0]}")
        getters.append(packed if code else f"({packed}).to_bytes({size}, 'big')")
    yield f"    FORM = Struct({'>' + ''.join(codes)!r})"
    yield "    def unpack(self, data, offset):"
    targets = "".join(f"c{i}, " for i in range(len(codes)))
    if codes:
        yield f"        {targets}= {name}.FORM.unpack_from(data, offset)"
    yield from setters
    yield from (f"        self{path}.valid = True" for path in _header_paths(kind))
    yield "        return"
    yield "    def pack(self):"
    yield f"        return {name}.FORM.pack({', '.join(getters)})"


def _header_paths(kind: Header | Struct, prefix: str = "") -> Iterator[str]:
    """Paths (each with a leading dot, or empty) to the headers in a value."""
    if isinstance(kind, Header):
        yield prefix
    for field in kind.fields:
        for path, inner in _parts(f"{prefix}.f_{field.name}", field.type):
            if isinstance(inner, Struct | Header):
                yield from _header_paths(inner, path)


def _varbit_lines(leaves: list[tuple[str, Type]]) -> Iterator[str]:
    place = next(i for i, (_, inner) in enumerate(leaves) if isinstance(inner, Varbit))
    maximum = leaves[place][1]
    assert isinstance(maximum, Varbit)
    yield f"    MAX_VARBIT = {maximum.max_width}"
    yield "    def unpack_bits(self, value, width):"
    shift = 0
    for path, inner in reversed(leaves[place + 1 :]):
        text = f"(value >> {shift} & {mask_of(bit_width(inner))})"
        yield f"        self.{path} = {from_bits_text(inner, text)}"
        shift += bit_width(inner)
    yield f"        self.{leaves[place][0]} = (value >> {shift} & (1 << width) - 1, width)"
    yield f"        value >>= width + {shift}"
    shift = 0
    for path, inner in reversed(leaves[:place]):
        text = f"(value >> {shift} & {mask_of(bit_width(inner))})"
        yield f"        self.{path} = {from_bits_text(inner, text)}"
        shift += bit_width(inner)
    yield "        self.valid = True"


def new_namespace() -> dict[str, Object]:
    """Return a namespace that generated classes can live in."""
    return {"Struct": struct.Struct}
