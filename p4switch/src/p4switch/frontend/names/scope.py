"""Names and their meanings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from p4switch import ir
from p4switch.frontend.names.values import Value
from p4switch.frontend.syntax import ast
from p4switch.position import NOWHERE, P4Error, Position

if TYPE_CHECKING:
    from collections.abc import Iterator

    from p4switch.frontend.names.values import Operand
    from p4switch.frontend.types import types


@dataclass(slots=True, eq=False, kw_only=True)
class Entity:
    """Meaning of a name."""

    position: Position = NOWHERE
    parameter: bool = False
    """A parameter, of a call or of a constructor."""
    used: bool = False
    """Whether something refers to it."""


@dataclass(slots=True, eq=False)
class BrokenEntity(Entity):
    """A name whose declaration has an error, which has been noted."""


class FollowUpError(P4Error):
    """An error that would not be there without another one, which has been noted."""


Content = ir.Table | ir.Callable | ir.ExternInstance | ir.ValueSet


@dataclass(slots=True, eq=False)
class Unit:
    """A place with a control-plane name: the top level or one block instance.

    `contents` are its tables, actions, extern objects, value sets and nested instances, in
    order of declaration. `actions` maps actions of the top level to this unit's use of them.
    """

    name: str
    contents: list[Content | Entity] = field(default_factory=list)

    def qualified(self, name: str, annotations: tuple[ir.Annotation, ...] = ()) -> str:
        """Give the control-plane name of something declared here (`@name`, absolute names)."""
        name = given_name(annotations) or name
        if name.startswith("."):
            return name[1:]
        return f"{self.name}.{name}" if self.name else name


def given_name(annotations: tuple[ir.Annotation, ...]) -> str | None:
    """Give the name that a `@name` annotation sets; the first one counts."""
    for annotation in annotations:
        if annotation.name == "name" and annotation.arguments:
            return str(annotation.arguments[0])
    return None


@dataclass(slots=True, eq=False)
class TypeEntity(Entity):
    """A type."""

    type: types.Type


@dataclass(slots=True, eq=False)
class GenericEntity(Entity):
    """A declaration with unbound type parameters, and its scope."""

    declaration: (
        ast.StructLike
        | ast.ExternDeclaration
        | ast.ParserDeclaration
        | ast.ControlDeclaration
        | ast.PackageDeclaration
    )
    scope: Scope
    made: dict[tuple[types.Type, ...], types.Type] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class ConstantEntity(Entity):
    """A constant, or a constructor parameter that is a value."""

    value: Operand


@dataclass(slots=True, eq=False)
class VariableEntity(Entity):
    """A variable or parameter. `read_only` says why it cannot be written, or is empty."""

    type: types.Type
    expression: ir.Expression
    read_only: str = ""


@dataclass(slots=True, eq=False)
class Candidate:
    """One of the functions of a name: `method` for an extern function."""

    declaration: ast.FunctionDeclaration | ast.MethodDeclaration
    scope: Scope
    unit: Unit


@dataclass(slots=True, eq=False)
class FunctionEntity(Entity):
    """All functions of one name in one scope."""

    candidates: list[Candidate]


@dataclass(slots=True, eq=False)
class ActionEntity(Entity):
    """An action of one block instance, or of the top level."""

    declaration: ast.ActionDeclaration
    callable: ir.Callable
    parameter_types: tuple[types.Type, ...]


@dataclass(slots=True, eq=False)
class TableEntity(Entity):
    """A table of one control instance."""

    declaration: ast.TableDeclaration
    table: ir.Table
    action_indices: dict[str, int]


@dataclass(slots=True, eq=False)
class ExternEntity(Entity):
    """An extern object. `instance` is None for the packet, which is implicit."""

    type: types.Extern
    instance: ir.ExternInstance | None


def identity(entity: Entity) -> object:
    """Separate what a lowered form depends on: objects (the packet is one) and integers."""
    if isinstance(entity, ConstantEntity):
        return entity.value.constant if isinstance(entity.value, Value) else entity
    return entity.instance if isinstance(entity, ExternEntity) else entity


@dataclass(slots=True, eq=False)
class BlockEntity(Entity):
    """An instance of a parser or control; `blocks` holds it lowered.

    The key of `blocks` are the extern objects given as arguments of `apply`.
    """

    type: types.BlockType
    scope: Scope
    name: str
    bindings: dict[str, Entity]
    annotations: tuple[ir.Annotation, ...] = ()
    blocks: dict[tuple[object, ...], BlockUnit] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class BlockUnit:
    """A block lowered, with what the lowering needs to know to call it."""

    block: ir.Block
    unit: Unit
    parameter_types: tuple[types.Type, ...]
    by_name: dict[str, ir.Parameter]


@dataclass(slots=True, eq=False)
class PackageEntity(Entity):
    """An instance of a package; blocks and nested packages by parameter name."""

    type: types.PackageType
    name: str
    arguments: dict[str, Entity]
    annotations: tuple[ir.Annotation, ...] = ()


@dataclass(slots=True, eq=False)
class ValueSetEntity(Entity):
    """A parser value set."""

    type: types.Type
    value_set: ir.ValueSet


class Scope:
    """Names of one scope; lookups continue in the enclosing ones."""

    __slots__ = ("names", "parent")

    def __init__(self, parent: Scope | None = None) -> None:
        self.names: dict[str, Entity] = {}
        self.parent = parent

    def find(self, name: str) -> Entity | None:
        """Find what a name refers to, here or further out; FollowUpError if that is broken."""
        entity = self.known(name)
        if entity is not None:
            entity.used = True
            if isinstance(entity, BrokenEntity):
                raise FollowUpError(entity.position, f"'{name}' has an error")
        return entity

    def known(self, name: str) -> Entity | None:
        """Find a name here or further out, without use of it."""
        scope: Scope | None = self
        while scope is not None:
            entity = scope.names.get(name)
            if entity is not None:
                return entity
            scope = scope.parent
        return None

    def outwards(self) -> Iterator[Scope]:
        """Yield this scope and the ones around it."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    @property
    def top(self) -> Scope:
        """The outermost scope."""
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope

    def visible(self) -> Iterator[str]:
        """Yield all names that can be seen from here."""
        for scope in self.outwards():
            yield from scope.names
