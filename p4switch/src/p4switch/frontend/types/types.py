"""The checker's types, what may be done with them, and how they are lowered to the IR's.

Types without a name compare by structure, declared ones by identity: the checker makes one object
for each declaration, and one for each specialisation of a generic one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from p4switch import ir

if TYPE_CHECKING:
    from collections.abc import Iterator

    from p4switch.frontend.syntax import ast


class Type:
    """A type of the language."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Int(Type):
    """`int`, of arbitrary precision."""

    def __str__(self) -> str:
        return "int"


@dataclass(frozen=True, slots=True)
class Bits(Type):
    """`bit<width>` or `int<width>`."""

    width: int
    signed: bool = False

    def __str__(self) -> str:
        return f"{'int' if self.signed else 'bit'}<{self.width}>"


@dataclass(frozen=True, slots=True)
class Varbit(Type):
    """`varbit<width>`."""

    width: int

    def __str__(self) -> str:
        return f"varbit<{self.width}>"


@dataclass(frozen=True, slots=True)
class Simple(Type):
    """`bool`, `string`, `void`, `error`, `match_kind`; also what `_` and `{#}` have."""

    name: str

    def __str__(self) -> str:
        return self.name


INT = Int()
BOOL = Simple("bool")
STRING = Simple("string")
VOID = Simple("void")
ERROR = Simple("error")
MATCH_KIND = Simple("match_kind")
DONT_CARE = Simple("_")
INVALID = Simple("{#}")
BIT1 = Bits(1)
BIT32 = Bits(32)


@dataclass(slots=True, eq=False)
class Enum(Type):
    """An enum; `underlying` is None unless it is serialisable. `members` maps to values."""

    name: str
    members: dict[str, int]
    underlying: Bits | None

    def __str__(self) -> str:
        return self.name


@dataclass(slots=True, eq=False)
class NewType(Type):
    """`type base name`."""

    name: str
    base: Type
    annotations: tuple[ir.Annotation, ...]

    def __str__(self) -> str:
        return self.name


@dataclass(slots=True, eq=False)
class FieldInfo:
    """A field of a struct, header or union."""

    name: str
    type: Type
    annotations: tuple[ir.Annotation, ...] = ()


@dataclass(slots=True, eq=False)
class StructLike(Type):
    """A header, struct or header_union (`kind`); `arguments` of a generic one.

    `declaration` is None for the struct that a record expression without a type makes.
    """

    kind: str
    name: str
    declaration: ast.StructLike | None
    arguments: tuple[Type, ...] = ()
    fields: dict[str, FieldInfo] = field(default_factory=dict)
    annotations: tuple[ir.Annotation, ...] = ()
    lowered: ir.Header | ir.Struct | ir.Union | None = None

    def __str__(self) -> str:
        if not self.arguments:
            return self.name
        return f"{self.name}<{', '.join(map(str, self.arguments))}>"


@dataclass(frozen=True, slots=True)
class Stack(Type):
    """`element[size]`."""

    element: Type
    size: int

    def __str__(self) -> str:
        return f"{self.element}[{self.size}]"


@dataclass(frozen=True, slots=True)
class Tuple(Type):
    """`tuple<elements>`."""

    elements: tuple[Type, ...]

    def __str__(self) -> str:
        return f"tuple<{', '.join(map(str, self.elements))}>"


@dataclass(frozen=True, slots=True)
class ListOf(Type):
    """`list<element>`."""

    element: Type

    def __str__(self) -> str:
        return f"list<{self.element}>"


@dataclass(slots=True, eq=False)
class Parameter(Type):
    """A type parameter of something that is checked without being specialised."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(slots=True, eq=False)
class Unknown(Type):
    """A type parameter while its argument is being inferred; `bound` is what was found."""

    name: str
    bound: Type | None = None

    def __str__(self) -> str:
        return self.name if self.bound is None else str(self.bound)


@dataclass(slots=True, eq=False)
class Extern(Type):
    """An extern object type with its type arguments."""

    declaration: ast.ExternDeclaration
    arguments: tuple[Type, ...]

    @property
    def name(self) -> str:
        """The extern's name."""
        return self.declaration.name

    def __str__(self) -> str:
        if not self.arguments:
            return self.name
        return f"{self.name}<{', '.join(map(str, self.arguments))}>"


@dataclass(slots=True, eq=False)
class BlockType(Type):
    """A parser or control, or the type of one, with its type arguments."""

    declaration: ast.ParserDeclaration | ast.ControlDeclaration
    arguments: tuple[Type, ...]

    @property
    def name(self) -> str:
        """The declared name."""
        return self.declaration.name

    def __str__(self) -> str:
        if not self.arguments:
            return self.name
        return f"{self.name}<{', '.join(map(str, self.arguments))}>"


@dataclass(slots=True, eq=False)
class PackageType(Type):
    """A package with its type arguments."""

    declaration: ast.PackageDeclaration
    arguments: tuple[Type, ...]

    @property
    def name(self) -> str:
        """The declared name."""
        return self.declaration.name

    def __str__(self) -> str:
        return self.name


def resolved(kind: Type) -> Type:
    """Look through an inference variable that is already bound."""
    while isinstance(kind, Unknown) and kind.bound is not None:
        kind = kind.bound
    return kind


def is_numeric(kind: Type) -> bool:
    """Return whether the type is `int`, `bit<>` or `int<>`."""
    return isinstance(kind, (Int, Bits))


def is_header(kind: Type) -> bool:
    """Return whether the type is a header."""
    return isinstance(kind, StructLike) and kind.kind == "header"


def is_union(kind: Type) -> bool:
    """Return whether the type is a header union."""
    return isinstance(kind, StructLike) and kind.kind == "header_union"


def is_struct(kind: Type) -> bool:
    """Return whether the type is a struct."""
    return isinstance(kind, StructLike) and kind.kind == "struct"


def parts(kind: Type) -> Iterator[tuple[str, Type]]:
    """Yield names and types of the fields of a struct, header, union or tuple."""
    if isinstance(kind, StructLike):
        for item in kind.fields.values():
            yield item.name, item.type
    elif isinstance(kind, Tuple):
        for index, element in enumerate(kind.elements):
            yield f"f{index}", element


def underlying(kind: Type) -> Type:
    """Strip newtypes and take a serialisable enum's bits."""
    while True:
        if isinstance(kind, NewType):
            kind = kind.base
        elif isinstance(kind, Enum) and kind.underlying is not None:
            kind = kind.underlying
        else:
            return kind


def contains(kind: Type, kinds: type[Type] | tuple[type[Type], ...]) -> bool:
    """Return whether a type is, or has inside, one of the given classes of types."""
    kind = resolved(kind)
    if isinstance(kind, kinds):
        return True
    if isinstance(kind, NewType):
        return contains(kind.base, kinds)
    if isinstance(kind, StructLike):
        return any(contains(a, kinds) for a in kind.arguments) or any(
            contains(item.type, kinds) for item in kind.fields.values()
        )
    if isinstance(kind, (Extern, BlockType, PackageType)):
        return any(contains(a, kinds) for a in kind.arguments)
    if isinstance(kind, (Stack, ListOf)):
        return contains(kind.element, kinds)
    if isinstance(kind, Tuple):
        return any(contains(element, kinds) for element in kind.elements)
    return False


def same(left: Type, right: Type) -> bool:
    """Return whether two types are equal, looking through bound inference variables."""
    left, right = resolved(left), resolved(right)
    if left is right or left == right:
        return True
    if isinstance(left, Stack) and isinstance(right, Stack):
        return left.size == right.size and same(left.element, right.element)
    if isinstance(left, Tuple) and isinstance(right, Tuple):
        return len(left.elements) == len(right.elements) and all(
            same(a, b) for a, b in zip(left.elements, right.elements, strict=True)
        )
    if isinstance(left, ListOf) and isinstance(right, ListOf):
        return same(left.element, right.element)
    if isinstance(left, (StructLike, Extern, BlockType)) and type(left) is type(right):
        assert isinstance(right, (StructLike, Extern, BlockType))
        return (
            left.declaration is not None
            and left.declaration is right.declaration
            and len(left.arguments) == len(right.arguments)
            and all(same(a, b) for a, b in zip(left.arguments, right.arguments, strict=True))
        )
    return False


def bit_sizes(kind: Type) -> tuple[int, int]:
    """Smallest and largest size in bits (specification 1.2.5, section 9.1 and following).

    Raises ValueError for a type that has no size.
    """
    kind = underlying(resolved(kind))
    if isinstance(kind, Bits):
        return kind.width, kind.width
    if kind is BOOL:
        return 1, 1
    if isinstance(kind, Varbit):
        return 0, kind.width
    if isinstance(kind, Stack):
        low, high = bit_sizes(kind.element)
        return low * kind.size, high * kind.size
    if isinstance(kind, (StructLike, Tuple)):
        sizes = [bit_sizes(part) for _, part in parts(kind)]
        if is_union(kind):
            return (
                min((low for low, _ in sizes), default=0),
                max((high for _, high in sizes), default=0),
            )
        return sum(low for low, _ in sizes), sum(high for _, high in sizes)
    raise ValueError(str(kind))
