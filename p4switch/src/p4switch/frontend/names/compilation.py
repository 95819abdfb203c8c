"""The state of a compilation: what the whole program shares, and a body of code."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from p4switch import ir
from p4switch.frontend.names.scope import (
    BrokenEntity,
    Entity,
    FollowUpError,
    GenericEntity,
    Scope,
    Unit,
)
from p4switch.frontend.types import types
from p4switch.frontend.types.lower import Lowering, NoRuntimeTypeError
from p4switch.position import P4Error, P4Errors, Position, UnsupportedError

if TYPE_CHECKING:
    from p4switch.frontend.names.operands import EntityOperand
    from p4switch.frontend.names.scope import BlockEntity, BlockUnit, Candidate
    from p4switch.frontend.names.values import Operand
    from p4switch.frontend.syntax import ast

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_]+")


@dataclass(slots=True, eq=False)
class FieldUse:
    """A field of a header, struct or union, and its type."""

    owner: types.StructLike
    type: types.Type


@dataclass(slots=True, eq=False)
class Symbols:
    """What the names of a program mean: a table for tools, and for warnings."""

    top: Scope
    declared: list[tuple[str, Entity]] = field(default_factory=list)
    """Names with their meanings: of each instance of a control or parser anew."""
    uses: dict[Position, tuple[str, Entity | FieldUse]] = field(default_factory=dict)
    """The meaning of a name that begins at a place."""
    scopes: list[tuple[Position, Scope]] = field(default_factory=list)
    """The names that are visible from a place on, up to the next one of these."""


@dataclass(slots=True, eq=False)
class FunctionUnit:
    """A function specialised: its callable and what a call needs to know."""

    callable: ir.Callable
    parameter_types: tuple[types.Type, ...]
    returns: types.Type


class Rules(Protocol):
    """Interface of the layers to those above them.

    The language is recursive: a type may hold an expression (`bit<W>`), an expression a call, whose
    function has statements. Modules are not: what goes upwards goes through here.
    """

    def expression(self, body: Body, node: ast.Expression) -> Operand:
        """Check an expression; its side effects become statements of the body."""

    def statement(self, body: Body, item: ast.Statement | ast.Declaration) -> None:
        """Lower a statement, or a declaration among statements."""

    def function(
        self,
        compiler: Compiler,
        candidate: Candidate,
        declaration: ast.FunctionDeclaration,
        type_arguments: tuple[types.Type, ...],
        objects: dict[str, Entity],
        position: Position,
    ) -> FunctionUnit:
        """Lower a function for some type arguments and extern objects; each such form once."""

    def block(
        self,
        compiler: Compiler,
        entity: BlockEntity,
        objects: dict[str, Entity],
        position: Position,
    ) -> BlockUnit:
        """Lower an instance of a parser or control for some extern objects."""

    def anonymous(self, body: Body, kind: types.Type, position: Position) -> BlockEntity:
        """Make the instance of a parser or control that is applied by its type's name."""

    def construct(
        self,
        body: Body,
        node: ast.Call,
        name: str | None = None,
        annotations: tuple[ir.Annotation, ...] = (),
    ) -> EntityOperand:
        """Make an object by a constructor call in an expression."""

    def instantiation(self, body: Body, node: ast.Instantiation) -> Entity:
        """Make the object an instantiation declares, and enter its name."""


class Compiler:
    """State shared by the whole program."""

    def __init__(self, lines: dict[str, list[str]], rules: Rules) -> None:
        self.lines = lines
        self.rules = rules
        self.lowering = Lowering()
        self.globals = Scope()
        self.top = Unit("")
        self.errors: dict[str, int] = {}
        self.match_kinds: set[str] = set()
        self.enums: dict[str, types.Enum] = {}
        self.generics: dict[object, GenericEntity] = {}
        self.functions: dict[tuple[object, ...], FunctionUnit] = {}
        self.extern_scopes: dict[types.Extern, Scope] = {}
        self.signatures: dict[tuple[object, ...], object] = {}
        self.temporaries: set[ir.Variable] = set()
        self.directionless: set[ir.Variable] = set()
        """Variables of parameters without a direction, whose values never change."""
        self.running: set[object] = set()
        """Declarations of functions that are being lowered, to find recursion."""
        self.used_declarations: set[object] = set()
        """Declarations of controls, parsers and functions that were lowered."""
        self.symbols = Symbols(self.globals)
        self.without_value: dict[ir.Variable, str] = {}
        """Names of scalar variables that are declared without a value."""
        self._taken: dict[str, int] = {}
        self._errors: dict[tuple[Position, str], P4Error] = {}
        self._warnings: dict[tuple[Position, str], None] = {}

    @contextmanager
    def recovering(self, names: Scope | None = None, name: str = "") -> Iterator[None]:
        """Note an error in the block, and go on after it.

        `name` in `names`: what the block declares. Errors that only follow from its absence are not
        noted.
        """
        try:
            yield
        except P4Error as error:
            if not isinstance(error, FollowUpError):
                for each in error.errors:
                    self._errors.setdefault((each.position, each.message), each)
            if names is not None and name not in names.names:
                names.names[name] = BrokenEntity(position=error.position)

    @property
    def errors_noted(self) -> int:
        """Return how many errors have been noted so far."""
        return len(self._errors)

    def check(self) -> None:
        """Raise the errors that have been noted."""
        errors = sorted(self._errors.values(), key=lambda e: (e.position.line, e.position.column))
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise P4Errors(errors)

    def warn(self, position: Position, message: str) -> None:
        """Note what is legal, but probably not meant."""
        self._warnings[position, message] = None

    @property
    def warnings(self) -> list[tuple[Position, str]]:
        """Return the warnings so far, in the order of their places."""
        return sorted(self._warnings, key=lambda each: (each[0].file, each[0].line, each[0].column))

    def error(self, position: Position, message: str) -> P4Error:
        """Make an error at a position in the source."""
        return P4Error(position, message, source_line=self.source_line(position))

    def unsupported(self, position: Position, message: str) -> UnsupportedError:
        """Make an error for an unsupported feature."""
        return UnsupportedError(position, message, source_line=self.source_line(position))

    def source_line(self, position: Position) -> str | None:
        """Return the text of the line a position points to, if it is known."""
        lines = self.lines.get(position.file)
        if lines is None or not 0 < position.line <= len(lines):
            return None
        return lines[position.line - 1]

    def variable(self, name: str, kind: ir.Type) -> ir.Variable:
        """Make a variable with a unique name."""
        base = _NOT_IN_A_NAME.sub("_", name).strip("_") or "v"
        if base[0].isdigit():
            base = f"v{base}"
        number = self._taken.get(base, -1) + 1
        self._taken[base] = number
        unique = base
        while number and (unique := f"{base}_{number}") in self._taken:
            number += 1
        if number:
            self._taken[base] = number
            self._taken[unique] = 0
        return ir.Variable(unique, kind)

    def lower(self, kind: types.Type, position: Position) -> ir.Type:
        """Lower a type, or say why a value of it cannot exist at run time."""
        try:
            return self.lowering.type(kind)
        except NoRuntimeTypeError as problem:
            if isinstance(problem.kind, types.Int):
                raise self.error(
                    position,
                    "the width of this integer is not known; write one, as in '32w5' or "
                    "'(bit<32>) x'",
                ) from None
            raise self.error(
                position, f"a value of type '{problem.kind}' cannot exist at run time"
            ) from None


class Body:
    """Code that is being lowered: the scope it sees and the statements made so far.

    `kind`: `control`, `parser`, `action`, `function`, `table` or `constant` (no code may come out).
    """

    __slots__ = (
        "code",
        "compiler",
        "kind",
        "local_names",
        "loops",
        "result",
        "result_type",
        "scope",
        "unit",
    )

    def __init__(
        self, compiler: Compiler, unit: Unit, scope: Scope, kind: str, local_names: str = ""
    ) -> None:
        self.compiler = compiler
        self.unit = unit
        self.scope = scope
        self.kind = kind
        self.code: list[ir.Statement] = []
        self.loops = 0
        self.result: ir.Variable | None = None
        self.result_type: types.Type = types.VOID
        self.local_names = local_names or unit.name

    @contextmanager
    def capture(self) -> Iterator[list[ir.Statement]]:
        """Collect the statements made in the block in a separate list."""
        outer, self.code = self.code, []
        try:
            yield self.code
        finally:
            self.code = outer

    @contextmanager
    def nested_scope(self) -> Iterator[Scope]:
        """Open a scope inside the present one."""
        outer = self.scope
        self.scope = Scope(outer)
        try:
            yield self.scope
        finally:
            self.scope = outer

    def emit(self, statement: ir.Statement, position: Position) -> None:
        """Add a statement."""
        statement.position = position
        self.code.append(statement)

    def temporary(self, kind: ir.Type) -> ir.Variable:
        """Make a variable that is written once, before all its reads."""
        variable = self.compiler.variable("tmp", kind)
        self.compiler.temporaries.add(variable)
        return variable

    def lower(self, kind: types.Type, position: Position) -> ir.Type:
        """Lower a type."""
        return self.compiler.lower(kind, position)

    def error(self, position: Position, message: str) -> P4Error:
        """Make an error at a position in the source."""
        return self.compiler.error(position, message)


def declare(compiler: Compiler, scope: Scope, name: str, entity: Entity) -> None:
    """Enter a name into a scope; it must be new there.

    Inside blocks of statements it may not hide a parameter either, as in p4c; the locals of a
    parser or control (whose parameters are in the very next scope) may.
    """
    known = scope.names.get(name)
    if known is not None:
        raise compiler.error(
            entity.position, f"'{name}' is declared twice; first at {known.position}"
        )
    if not entity.parameter and scope.parent is not None:
        known = scope.parent.known(name)
        if known is not None and known.parameter and name not in scope.parent.names:
            raise compiler.error(
                entity.position, f"'{name}' would hide the parameter at {known.position}"
            )
        if known is not None and known.position.line:
            compiler.warn(entity.position, f"'{name}' hides the one at {known.position}")
    scope.names[name] = entity
    compiler.symbols.declared.append((name, entity))


def suggestion(name: str, names: Iterator[str]) -> str:
    """Offer a visible name that looks like the one that was not found."""
    close = difflib.get_close_matches(name, set(names), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""
