"""The syntax tree of P4_16 (specification 1.2.5, appendix G), as the parser builds it.

Nothing is resolved here: names are strings, types are written as in the source. Every node
carries the position of its first token; an annotated declaration that of the first token
after its annotations, a parenthesised expression that of what the parentheses hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from p4switch.position import NOWHERE, Position


class Direction(Enum):
    """Direction of a parameter; NONE is a directionless one."""

    NONE = ""
    IN = "in"
    OUT = "out"
    INOUT = "inout"


@dataclass(slots=True, eq=False)
class Node:
    """Anything with a position."""

    position: Position


@dataclass(slots=True, eq=False)
class Annotation(Node):
    """`@name`, `@name(...)` or `@name[...]`.

    `arguments` holds parsed expressions of `@name(expression list)`; `pairs` those of a
    key-value list; `tokens` the raw token texts between the brackets.
    When the text between the brackets does not parse as expressions, `arguments` is empty.
    """

    name: str
    arguments: list[Expression] = field(default_factory=list)
    pairs: dict[str, Expression] = field(default_factory=dict)
    tokens: list[str] = field(default_factory=list)
    structured: bool = False
    """Whether it is `@name[...]`."""


# --- Types as written ------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class TypeRef(Node):
    """A type as written."""


@dataclass(slots=True, eq=False)
class NamedType(TypeRef):
    """`name` or `.name`."""

    name: str
    absolute: bool = False


@dataclass(slots=True, eq=False)
class SpecializedType(TypeRef):
    """`base<arguments>`."""

    base: NamedType
    arguments: list[TypeRef]


@dataclass(slots=True, eq=False)
class BitType(TypeRef):
    """`bit<width>`, `int<width>`; `bit` alone has width 1; `width` None and signed: `int`."""

    signed: bool
    width: Expression | None


@dataclass(slots=True, eq=False)
class VarbitType(TypeRef):
    """`varbit<width>`."""

    width: Expression


@dataclass(slots=True, eq=False)
class SimpleType(TypeRef):
    """`bool`, `error`, `string`, `void` or `match_kind`."""

    name: str


@dataclass(slots=True, eq=False)
class StackType(TypeRef):
    """`element[size]`."""

    element: TypeRef
    size: Expression


@dataclass(slots=True, eq=False)
class TupleType(TypeRef):
    """`tuple<elements>`."""

    elements: list[TypeRef]


@dataclass(slots=True, eq=False)
class ListType(TypeRef):
    """`list<element>`."""

    element: TypeRef


@dataclass(slots=True, eq=False)
class DontCareType(TypeRef):
    """`_` as a type argument."""


# --- Expressions -----------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Expression(Node):
    """An expression."""


@dataclass(slots=True, eq=False)
class IntLiteral(Expression):
    """`8w0xFF` (width 8), `4s7` (signed), `12` (width None: arbitrary precision)."""

    value: int
    width: int | None = None
    signed: bool = False


@dataclass(slots=True, eq=False)
class BoolLiteral(Expression):
    """`true` or `false`."""

    value: bool


@dataclass(slots=True, eq=False)
class StringLiteral(Expression):
    """A string, escapes resolved."""

    value: str


@dataclass(slots=True, eq=False)
class Name(Expression):
    """`name` or `.name`."""

    name: str
    absolute: bool = False


@dataclass(slots=True, eq=False)
class This(Expression):
    """`this`."""


@dataclass(slots=True, eq=False)
class TypeExpression(Expression):
    """A type in the place of an expression, as in `Enum.member`, `error.X`, `bit<8>.f`."""

    type: TypeRef


@dataclass(slots=True, eq=False)
class Member(Expression):
    """`base.name`; `at` is the place of the name."""

    base: Expression
    name: str
    at: Position = NOWHERE


@dataclass(slots=True, eq=False)
class Index(Expression):
    """`base[index]`."""

    base: Expression
    index: Expression


@dataclass(slots=True, eq=False)
class Slice(Expression):
    """`base[high:low]`."""

    base: Expression
    high: Expression
    low: Expression


@dataclass(slots=True, eq=False)
class PlusSlice(Expression):
    """`base[low +: width]`."""

    base: Expression
    low: Expression
    width: Expression


@dataclass(slots=True, eq=False)
class Unary(Expression):
    """`-`, `+`, `!`, `~`."""

    operator: str
    operand: Expression


@dataclass(slots=True, eq=False)
class Binary(Expression):
    """`* / % + - |+| |-| << >> < > <= >= == != & ^ | ++ && ||`."""

    operator: str
    left: Expression
    right: Expression


@dataclass(slots=True, eq=False)
class Ternary(Expression):
    """`condition ? then : other`."""

    condition: Expression
    then: Expression
    other: Expression


@dataclass(slots=True, eq=False)
class Cast(Expression):
    """`(type) operand`."""

    type: TypeRef
    operand: Expression


@dataclass(slots=True, eq=False)
class Argument(Node):
    """A call argument: `value`, `name = value`; `value` is DontCare for `_`."""

    value: Expression
    name: str | None = None


@dataclass(slots=True, eq=False)
class Call(Expression):
    """`function<type_arguments>(arguments)`; a constructor call when `function` is a type."""

    function: Expression
    type_arguments: list[TypeRef]
    arguments: list[Argument]


@dataclass(slots=True, eq=False)
class ListExpression(Expression):
    """`{ a, b, ... }` ; `defaults`: it ends in `...`."""

    elements: list[Expression]
    defaults: bool = False


@dataclass(slots=True, eq=False)
class RecordExpression(Expression):
    """`{ name = value, ... }`; `defaults`: it ends in `...`."""

    fields: dict[str, Expression]
    defaults: bool = False


@dataclass(slots=True, eq=False)
class InvalidHeader(Expression):
    """`{#}`."""


@dataclass(slots=True, eq=False)
class Dots(Expression):
    """`...` as an initializer of its own: the default value of the type."""


@dataclass(slots=True, eq=False)
class DontCare(Expression):
    """`_` as an argument or in a key set."""


@dataclass(slots=True, eq=False)
class DefaultKeyset(Expression):
    """`default` in a key set."""


@dataclass(slots=True, eq=False)
class MaskKeyset(Expression):
    """`value &&& mask`."""

    value: Expression
    mask: Expression


@dataclass(slots=True, eq=False)
class RangeKeyset(Expression):
    """`low .. high`."""

    low: Expression
    high: Expression


@dataclass(slots=True, eq=False)
class TupleKeyset(Expression):
    """`(a, b, ...)` in a select case or a table entry."""

    elements: list[Expression]


# --- Statements ------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Statement(Node):
    """A statement (a block may also contain declarations)."""


@dataclass(slots=True, eq=False)
class Assignment(Statement):
    """`target operator value`, operator `=` or `+=`, `|+|=`, ..."""

    target: Expression
    operator: str
    value: Expression


@dataclass(slots=True, eq=False)
class CallStatement(Statement):
    """A call for its effect."""

    call: Call


@dataclass(slots=True, eq=False)
class Block(Statement):
    """`{ ... }`."""

    annotations: list[Annotation]
    body: list[Statement | Declaration]


@dataclass(slots=True, eq=False)
class If(Statement):
    """`if (condition) then else other`."""

    condition: Expression
    then: Statement
    other: Statement | None


@dataclass(slots=True, eq=False)
class SwitchCase(Node):
    """`labels: body`; an empty label list is `default`; body None falls through."""

    labels: list[Expression]
    body: Block | None


@dataclass(slots=True, eq=False)
class Switch(Statement):
    """`switch (subject) { cases }`; `case a: case b: {}` is two cases, the first without body."""

    subject: Expression
    cases: list[SwitchCase]


@dataclass(slots=True, eq=False)
class Return(Statement):
    """`return value;`."""

    value: Expression | None


@dataclass(slots=True, eq=False)
class Exit(Statement):
    """`exit;`."""


@dataclass(slots=True, eq=False)
class Break(Statement):
    """`break;`."""


@dataclass(slots=True, eq=False)
class Continue(Statement):
    """`continue;`."""


@dataclass(slots=True, eq=False)
class For(Statement):
    """`for (init; condition; update) body`."""

    init: list[Statement | Declaration]
    condition: Expression
    update: list[Statement]
    body: Statement
    annotations: list[Annotation] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class ForIn(Statement):
    """`for (type name in collection) body`; `type` None when `name` is declared outside.

    A range `low .. high` is a RangeKeyset as the `collection`.
    """

    type: TypeRef | None
    name: str
    collection: Expression
    body: Statement
    annotations: list[Annotation] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Empty(Statement):
    """`;`."""


# --- Declarations ----------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Declaration(Node):
    """A declaration."""

    annotations: list[Annotation]
    name: str


@dataclass(slots=True, eq=False)
class Parameter(Declaration):
    """`direction type name = default`."""

    direction: Direction
    type: TypeRef
    default: Expression | None = None


@dataclass(slots=True, eq=False)
class ConstDeclaration(Declaration):
    """`const type name = value;`."""

    type: TypeRef
    value: Expression


@dataclass(slots=True, eq=False)
class VariableDeclaration(Declaration):
    """`type name = value;`."""

    type: TypeRef
    value: Expression | None


@dataclass(slots=True, eq=False)
class Instantiation(Declaration):
    """`type(arguments) name;`; `body` holds the abstract methods given in `= { ... }`."""

    type: TypeRef
    arguments: list[Argument]
    body: list[Declaration] | None = None


@dataclass(slots=True, eq=False)
class FieldDeclaration(Declaration):
    """A field of a header, struct or union."""

    type: TypeRef


@dataclass(slots=True, eq=False)
class StructLike(Declaration):
    """`header`, `struct` or `header_union` (`kind`)."""

    kind: str
    type_parameters: list[str]
    fields: list[FieldDeclaration]


@dataclass(slots=True, eq=False)
class EnumDeclaration(Declaration):
    """`enum type name { members }`; values are None where `type` is None."""

    type: TypeRef | None
    members: list[tuple[str, Expression | None]]


@dataclass(slots=True, eq=False)
class ErrorDeclaration(Declaration):
    """`error { members }`; name is `error`."""

    members: list[str]


@dataclass(slots=True, eq=False)
class MatchKindDeclaration(Declaration):
    """`match_kind { members }`; name is `match_kind`."""

    members: list[str]


@dataclass(slots=True, eq=False)
class TypedefDeclaration(Declaration):
    """`typedef type name;` or, if `fresh`, `type type name;`."""

    type: TypeRef
    fresh: bool


@dataclass(slots=True, eq=False)
class MethodDeclaration(Declaration):
    """An extern's method or an extern function; a constructor has `returns` None."""

    returns: TypeRef | None
    type_parameters: list[str]
    parameters: list[Parameter]
    abstract: bool = False


@dataclass(slots=True, eq=False)
class ExternDeclaration(Declaration):
    """`extern name<T> { methods }`."""

    type_parameters: list[str]
    methods: list[MethodDeclaration]


@dataclass(slots=True, eq=False)
class ExternFunctionDeclaration(Declaration):
    """`extern R name<T>(...);`."""

    method: MethodDeclaration


@dataclass(slots=True, eq=False)
class FunctionDeclaration(Declaration):
    """`R name<T>(...) { body }`."""

    returns: TypeRef
    type_parameters: list[str]
    parameters: list[Parameter]
    body: Block


@dataclass(slots=True, eq=False)
class ActionDeclaration(Declaration):
    """`action name(...) { body }`."""

    parameters: list[Parameter]
    body: Block


@dataclass(slots=True, eq=False)
class KeyElement(Node):
    """`expression : match_kind annotations;`."""

    annotations: list[Annotation]
    expression: Expression
    match_kind: str


@dataclass(slots=True, eq=False)
class ActionRef(Node):
    """`annotations name(arguments)`; `arguments` None when there are no brackets."""

    annotations: list[Annotation]
    name: str
    absolute: bool
    arguments: list[Argument] | None


@dataclass(slots=True, eq=False)
class TableEntry(Node):
    """`const priority= p : keys : action;`, an element of `entries`."""

    annotations: list[Annotation]
    keys: list[Expression]
    action: ActionRef
    constant: bool
    priority: Expression | None


@dataclass(slots=True, eq=False)
class TableProperty(Node):
    """`const name = value;` for every property but key, actions and entries."""

    annotations: list[Annotation]
    name: str
    value: Expression
    constant: bool


@dataclass(slots=True, eq=False)
class TableDeclaration(Declaration):
    """`table name { ... }`; `keys` None when there is no key property.

    `default_action` is among `properties`, with a Call or Name as its value.
    """

    keys: list[KeyElement] | None
    actions: list[ActionRef]
    entries: list[TableEntry]
    entries_constant: bool
    properties: list[TableProperty]


@dataclass(slots=True, eq=False)
class ValueSetDeclaration(Declaration):
    """`value_set<type>(size) name;`."""

    type: TypeRef
    size: Expression


@dataclass(slots=True, eq=False)
class SelectCase(Node):
    """`keys: state;`; `(a, b): s;` and `{ a, b }: s;` have two keys, `(a): s;` has one."""

    keys: list[Expression]
    state: str


@dataclass(slots=True, eq=False)
class Select(Node):
    """`select (subjects) { cases }`."""

    subjects: list[Expression]
    cases: list[SelectCase]


@dataclass(slots=True, eq=False)
class ParserState(Declaration):
    """`state name { body transition }`; transition None means reject (none was written)."""

    body: list[Statement | Declaration]
    transition: str | Select | None


@dataclass(slots=True, eq=False)
class ParserDeclaration(Declaration):
    """A parser type (`states` None) or a parser."""

    type_parameters: list[str]
    parameters: list[Parameter]
    constructor_parameters: list[Parameter]
    locals: list[Declaration]
    states: list[ParserState] | None


@dataclass(slots=True, eq=False)
class ControlDeclaration(Declaration):
    """A control type (`body` None) or a control."""

    type_parameters: list[str]
    parameters: list[Parameter]
    constructor_parameters: list[Parameter]
    locals: list[Declaration]
    body: Block | None


@dataclass(slots=True, eq=False)
class PackageDeclaration(Declaration):
    """`package name<T>(...);`."""

    type_parameters: list[str]
    parameters: list[Parameter]


@dataclass(slots=True, eq=False)
class SourceProgram:
    """A whole translation unit, in order of declaration.

    `lines` gives the source lines of every file read, for error messages; `warnings` what
    the preprocessor has to say.
    """

    declarations: list[Declaration]
    lines: dict[str, list[str]] = field(default_factory=dict)
    warnings: list[tuple[Position, str]] = field(default_factory=list)
