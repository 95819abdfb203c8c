"""C types of a program's types: names, declarations and equality; layout of fields on the wire."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from p4switch.ir import (
    Bits,
    Bool,
    FieldType,
    Header,
    Stack,
    String,
    Struct,
    Type,
    Union,
    Varbit,
)
from p4switch.position import NOWHERE, UnsupportedError

NARROW = 64
"""Integers up to this width are C integers, wider ones arrays of 64-bit words."""

WIDEST = 65536
"""Integers beyond this width are not supported."""


def words(width: int) -> int:
    """Return the number of 64-bit words that hold `width` bits; at least one."""
    return max(1, (width + 63) // 64)


def mask_of(width: int) -> int:
    """Return all ones in `width` bits."""
    return (1 << width) - 1


def is_wide(kind: Type) -> bool:
    """Return whether the type is an integer of several words."""
    return isinstance(kind, Bits) and kind.width > NARROW


def is_scalar(kind: Type) -> bool:
    """Return whether the type is a C integer."""
    return isinstance(kind, Bool) or (isinstance(kind, Bits) and kind.width <= NARROW)


def is_composite(kind: Type) -> bool:
    """Return whether the type has fields or elements."""
    return isinstance(kind, Header | Struct | Union | Stack)


def scalar_width(kind: Type) -> int:
    """Return the width in bits of a Bits or Bool."""
    return kind.width if isinstance(kind, Bits) else 1


def storage(width: int) -> str:
    """Return the C integer type that stores values of `width` bits."""
    for size in (8, 16, 32, 64):
        if width <= size:
            return f"u{size}"
    raise AssertionError(f"{width} bits are not narrow")


def value_type(width: int) -> str:
    """Return the C type in which values of `width` bits are computed."""
    return "u32" if width <= 32 else "u64"


def literal(value: int, width: int) -> str:
    """Return a C constant."""
    value &= mask_of(width)
    text = str(value) if value < 10 else hex(value)
    return f"{text}u" if width <= 32 else f"{text}ull"


def is_signed(kind: Type) -> bool:
    """Return whether the type is `int<>`."""
    return isinstance(kind, Bits) and kind.signed


@dataclass(frozen=True, slots=True)
class Leaf:
    """A scalar, wide or varbit field inside a header or struct.

    `path` is the C path with a leading dot; `offset` counts bits from the start, with an earlier
    varbit as 0.
    """

    path: str
    type: Bits | Bool | Varbit
    offset: int
    parent: str

    @property
    def width(self) -> int:
        """Return the width in bits; of a varbit, the maximum."""
        return self.type.max_width if isinstance(self.type, Varbit) else scalar_width(self.type)


def leaves(kind: Type) -> list[Leaf]:
    """Yield all leaves of a header, struct or stack (or of a plain value, with an empty path)."""
    found: list[Leaf] = []
    offset = 0

    def visit(inner: Type, path: str, parent: str) -> None:
        nonlocal offset
        if isinstance(inner, Header | Struct):
            for member in inner.fields:
                visit(member.type, f"{path}.f_{member.name}", path)
        elif isinstance(inner, Stack):
            for index in range(inner.size):
                element = f"{path}.e[{index}]"
                visit(inner.element, element, element)
        elif isinstance(inner, Bits | Bool | Varbit):
            found.append(Leaf(path, inner, offset, parent))
            if not isinstance(inner, Varbit):
                offset += scalar_width(inner)
        else:
            raise UnsupportedError(NOWHERE, f"a {type(inner).__name__.lower()} on the wire")

    visit(kind, "", "")
    return found


def has_stack(kind: Type) -> bool:
    """Return whether the type is or contains a stack."""
    if isinstance(kind, Header | Struct | Union):
        return any(has_stack(member.type) for member in kind.fields)
    return isinstance(kind, Stack)


def wire_width(kind: Type) -> int:
    """Return the bits on the wire, without varbits."""
    return sum(leaf.width for leaf in leaves(kind) if not isinstance(leaf.type, Varbit))


def varbit_of(kind: Type) -> Leaf | None:
    """Return the varbit of a header, if it has one."""
    found = [leaf for leaf in leaves(kind) if isinstance(leaf.type, Varbit)]
    if len(found) > 1:
        raise UnsupportedError(NOWHERE, "a header with more than one varbit")
    return found[0] if found else None


class CTypes:
    """Names and declarations of C types, made on demand."""

    def __init__(self) -> None:
        self.declarations: list[str] = []
        self._composites: dict[int, str] = {}
        self._stacks: dict[tuple[int, int], str] = {}
        self._arrays: set[str] = set()
        self._equals: dict[str, str] = {}
        self._kept: list[Type] = []
        self.functions: list[str] = []
        self.zeros: dict[str, str] = {}

    def name(self, kind: Type) -> str:
        """Return the C type that stores a value of the type."""
        match kind:
            case Bool():
                return "u8"
            case Bits(width=width) if width <= NARROW:
                return storage(width)
            case Bits(width=width):
                if width > WIDEST:
                    raise UnsupportedError(NOWHERE, f"an integer of {width} bits")
                return self._array(f"wide{words(width)}", f"u64 w[{words(width)}];")
            case Varbit(max_width=width):
                size = max(1, (width + 7) // 8)
                return self._array(f"varbit{size}", f"u32 width; u8 bytes[{size}];")
            case Stack():
                return self._stack(kind)
            case Header() | Struct() | Union():
                return self._composite(kind)
            case String():
                raise UnsupportedError(NOWHERE, "a variable of type string")

    def _array(self, name: str, body: str) -> str:
        if name not in self._arrays:
            self._arrays.add(name)
            self.declarations.append(f"typedef struct {{ {body} }} {name};")
        return name

    def _stack(self, kind: Stack) -> str:
        key = (id(kind.element), kind.size)
        name = self._stacks.get(key)
        if name is None:
            element = self.name(kind.element)
            name = f"stack{len(self._stacks)}_{element}"
            self._stacks[key] = name
            self.declarations.append(
                f"typedef struct {{ u32 next; {element} e[{max(kind.size, 1)}]; }} {name};"
            )
        return name

    def _composite(self, kind: Header | Struct | Union) -> str:
        name = self._composites.get(id(kind))
        if name is None:
            fields = [f"    {self.name(f.type)} f_{f.name};" for f in kind.fields]
            clean = "".join(c if c.isalnum() else "_" for c in kind.name)
            name = f"t{len(self._composites)}_{clean}"
            self._composites[id(kind)] = name
            self._kept.append(kind)  # Keeps id(kind) in use.
            if isinstance(kind, Header):
                fields.append("    u8 valid;")
            self.declarations.append(
                "\n".join(["typedef struct {", *(fields or ["    u8 nothing;"]), f"}} {name};"])
            )
        return name

    def zero(self, kind: Type) -> str:
        """Return the name of a constant with the type's initial value."""
        name = self.name(kind)
        if name not in self.zeros:
            self.zeros[name] = f"zero_{name}"
            self.functions.append(f"static const {name} zero_{name};")
        return self.zeros[name]

    def equals(self, kind: Type) -> str:
        """Return the name of a function that compares two values (by pointer) as P4's `==` does."""
        name = self.name(kind)
        known = self._equals.get(name)
        if known is None:
            known = self._equals[name] = f"equal_{name}"
            lines = [f"UNUSED static int {known}(const {name} *a, const {name} *b) {{"]
            lines += [f"    {line}" for line in self._equals_lines(kind)]
            self.functions.append("\n".join([*lines, "}"]))
        return known

    def _equals_lines(self, kind: Type) -> Iterator[str]:
        if isinstance(kind, Varbit):
            yield "return a->width == b->width && !memcmp(a->bytes, b->bytes, sizeof a->bytes);"
            return
        if isinstance(kind, Stack):
            yield f"for (u32 i = 0; i < {kind.size}; i++)"
            yield f"    if (!{self.equals(kind.element)}(&a->e[i], &b->e[i])) return 0;"
            yield "return 1;"
            return
        assert isinstance(kind, Header | Struct | Union)
        if isinstance(kind, Header):
            yield "if (!(a->valid && b->valid)) return a->valid == b->valid;"
        for member in kind.fields:
            yield f"if (!({self._field_equals(member)})) return 0;"
        yield "return 1;"

    def _field_equals(self, member: FieldType) -> str:
        a, b = f"a->f_{member.name}", f"b->f_{member.name}"
        if is_scalar(member.type):
            return f"{a} == {b}"
        if is_wide(member.type):
            return f"!memcmp(&{a}, &{b}, sizeof {a})"
        return f"{self.equals(member.type)}(&{a}, &{b})"
