"""The intermediate representation: a P4 program, typed, instantiated and flat.

The checker makes it, the executors run it and P4Info is made from it. It is complete: an executor
infers nothing and resolves nothing.

* Every variable is a separate `Variable` object (P4 has no recursion, so each has one place).
  Parameters are variables too: copy-in and copy-out are ordinary assignments around a `Call`.
  (A parameter for which all calls pass the same place is replaced by that place if it is safe.)
* Expressions have no side effects. Anything that has one (a call, a table's apply, `lookahead`)
  is a statement that leaves its result in a temporary, in the order of evaluation that the
  language prescribes (P4_16 specification 1.2.5, section 6.8).
* Every generic is specialised, every control and parser instance is a separate `Block`, every
  constant is folded, every implicit cast is written out, arbitrary-precision integers are gone.
* Enums and errors are plain bits: enums without a type `bit<32>` (the index of the member),
  errors `bit<32>` (index into `Program.errors`), serialisable enums their underlying type.
* Variables start as `Declare` says; nothing else resets them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from p4switch.position import NOWHERE, Position

# --- Types -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bits:
    """`bit<width>`, or `int<width>` when signed (two's complement). Width 0 is legal."""

    width: int
    signed: bool = False


@dataclass(frozen=True, slots=True)
class Bool:
    """`bool`."""


@dataclass(frozen=True, slots=True)
class Varbit:
    """`varbit<max_width>`: a value and its current width in bits."""

    max_width: int


@dataclass(frozen=True, slots=True)
class String:
    """`string`: only constants of it exist, as arguments of externs."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """`name` with its folded arguments: integers, strings, or names as strings.

    `pairs` holds a key-value list; `tokens` the raw text of the arguments. `structured`: it was
    written with brackets, `@name[...]`.
    """

    name: str
    arguments: tuple[int | str | bool, ...] = ()
    pairs: tuple[tuple[str, int | str | bool], ...] = ()
    tokens: tuple[str, ...] = ()
    structured: bool = False


@dataclass(frozen=True, slots=True)
class TypeName:
    """The source's name of a field's type, where P4Info needs it.

    `kind`: `newtype`, `enum`, `serialisable_enum`, `error`, `bool` or `` for plain bits.
    `translation`: (uri, bit width or None for a string) of `@p4runtime_translation`.
    """

    kind: str = ""
    name: str = ""
    translation: tuple[str, int | None] | None = None
    annotations: tuple[Annotation, ...] = ()
    """Of a new type."""


@dataclass(frozen=True, slots=True)
class FieldType:
    """A field of a header, struct or union."""

    name: str
    type: Type
    annotations: tuple[Annotation, ...] = ()
    type_name: TypeName = TypeName()


@dataclass(frozen=True, slots=True, eq=False)
class Header:
    """A header type: fields of Bits, Bool, Varbit or Struct of those, and a validity bit."""

    name: str
    fields: tuple[FieldType, ...]
    annotations: tuple[Annotation, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Struct:
    """A struct type, or a tuple (fields named `f0`, `f1`, ...; `name` starts with `tuple`)."""

    name: str
    fields: tuple[FieldType, ...]
    annotations: tuple[Annotation, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Union:
    """A header union: at most one of its headers is valid."""

    name: str
    fields: tuple[FieldType, ...]
    annotations: tuple[Annotation, ...] = ()


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack of `size` headers or unions, with its `nextIndex`."""

    element: Header | Union
    size: int


Type = Bits | Bool | Varbit | String | Header | Struct | Union | Stack

# Types compare by identity of declaration: the checker makes one object for each Header, Struct
# and Union of the program (each specialisation of a generic one is one).

BIT = Bits(1)
BIT32 = Bits(32)
BOOL = Bool()
STRING = String()

# --- Variables -------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Variable:
    """A variable: `name` is unique in the program and is a C identifier."""

    name: str
    type: Type


# --- Expressions: pure -----------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Const:
    """A constant. `value`: int for Bits (the value, negative if signed), bool, or str."""

    type: Type
    value: int | bool | str


@dataclass(slots=True, eq=False)
class Read:
    """The value of a variable, or as an l-value the variable."""

    type: Type
    variable: Variable


@dataclass(slots=True, eq=False)
class Field:
    """A field of a header, struct or union. Reading one of an invalid header is unspecified

    (here, as in BMv2: the field's last value, zero after `Declare`); writing one is allowed.
    """

    type: Type
    base: Expression
    name: str


@dataclass(slots=True, eq=False)
class Element:
    """`stack[index]`, index of type Bits. Out of bounds: reads an invalid header, writes none."""

    type: Type
    base: Expression
    index: Expression


@dataclass(slots=True, eq=False)
class StackNext:
    """`stack.next`, in a parser; StackOutOfBounds if there is none. Extract advances nextIndex."""

    type: Type
    base: Expression


@dataclass(slots=True, eq=False)
class StackLast:
    """`stack.last`, in a parser; StackOutOfBounds if there is none."""

    type: Type
    base: Expression


@dataclass(slots=True, eq=False)
class StackLastIndex:
    """`stack.lastIndex`, bit<32>."""

    type: Type
    base: Expression


@dataclass(slots=True, eq=False)
class Slice:
    """`base[high:low]` of Bits; also an l-value."""

    type: Type
    base: Expression
    high: int
    low: int


@dataclass(slots=True, eq=False)
class Unary:
    """`-` and `~` on Bits, `!` on Bool."""

    type: Type
    operator: str
    operand: Expression


@dataclass(slots=True, eq=False)
class Binary:
    """Operands of one type but for shifts (right one: any Bits) and `++`.

    Bits: `* / % + - |+| |-| << >> & ^ | ++`, and to Bool `< > <= >= == !=`.
    `>>` of a signed left operand is arithmetic. Bool: `&& || == !=`, both operands evaluated.
    Header, Struct, Union, Stack, Varbit: `== !=`.
    """

    type: Type
    operator: str
    left: Expression
    right: Expression


@dataclass(slots=True, eq=False)
class Mux:
    """`condition ? then : other`."""

    type: Type
    condition: Expression
    then: Expression
    other: Expression


@dataclass(slots=True, eq=False)
class Cast:
    """Bits to Bits (truncate, zero-extend, or sign-extend a signed operand), Bits<1> and Bool."""

    type: Type
    operand: Expression


@dataclass(slots=True, eq=False)
class IsValid:
    """`header.isValid()`, or a union's."""

    type: Type
    header: Expression


@dataclass(slots=True, eq=False)
class Build:
    """A whole struct, header (valid) or tuple, with a value for each field in order."""

    type: Type
    values: tuple[Expression, ...]


@dataclass(slots=True, eq=False)
class Invalid:
    """`{#}`: an invalid header or union."""

    type: Type


Expression = (
    Const
    | Read
    | Field
    | Element
    | StackNext
    | StackLast
    | StackLastIndex
    | Slice
    | Unary
    | Binary
    | Mux
    | Cast
    | IsValid
    | Build
    | Invalid
)
# L-values are Read, Field, Element, StackNext, StackLast and Slice, nested. The checker
# has saved run-time indices of l-values that must be evaluated once in temporaries.

# --- Statements ------------------------------------------------------------------------------


@dataclass(slots=True, eq=False, kw_only=True)
class Statement:
    """A statement."""

    position: Position = NOWHERE


@dataclass(slots=True, eq=False)
class Declare(Statement):
    """Resets a variable: zero, false, invalid headers, nextIndex 0, varbit of width 0."""

    variable: Variable


@dataclass(slots=True, eq=False)
class Assign(Statement):
    """`target = value`, of equal types. A copy: no aliasing afterwards.

    An assignment of headers copies validity; to a union's member it makes that one the valid one.
    A header within another object keeps its fields when an invalid one is assigned to it, as in
    BMv2; a variable does not, so that nothing of earlier packets remains in it.
    """

    target: Expression
    value: Expression


@dataclass(slots=True, eq=False)
class If(Statement):
    """`condition` is of type Bool."""

    condition: Expression
    then: list[Statement]
    other: list[Statement]


@dataclass(slots=True, eq=False)
class Switch(Statement):
    """Runs the body of the first case that lists the subject's value (Bits), else `default`."""

    subject: Expression
    cases: list[tuple[tuple[int, ...], list[Statement]]]
    default: list[Statement]


@dataclass(slots=True, eq=False)
class Loop(Statement):
    """`while (condition) { body; update }`; `continue` goes to update.

    `condition_code` computes what `condition` needs and runs before each test of it.
    """

    condition_code: list[Statement]
    condition: Expression
    body: list[Statement]
    update: list[Statement]


@dataclass(slots=True, eq=False)
class Break(Statement):
    """Leaves the innermost loop."""


@dataclass(slots=True, eq=False)
class Continue(Statement):
    """Goes to the innermost loop's update."""


@dataclass(slots=True, eq=False)
class Return(Statement):
    """Leaves the callable. Its value, if any, is already in the callable's `result`."""


@dataclass(slots=True, eq=False)
class Exit(Statement):
    """Ends the whole block; the copy-outs of the calls on the way are still done."""


@dataclass(slots=True, eq=False)
class Call(Statement):
    """Runs a callable whose parameters are set; then `copy_out`, even if it exited or rejected.

    After that an exit (or a parser's reject) propagates outwards.
    """

    callee: Callable | Block
    copy_out: list[Assign]


@dataclass(slots=True, eq=False)
class ApplyTable(Statement):
    """`table.apply()`. `hit` (Bool) and `action_run` (bit<32>) are set if not None.

    `action_run` is the index into `table.actions` of the action that ran. Keys are evaluated first.
    An entry's action runs with its arguments in the action's `data` parameters.
    """

    table: Table
    hit: Variable | None = None
    action_run: Variable | None = None


@dataclass(slots=True, eq=False)
class Argument:
    """An argument of an extern: `value` is an expression, for out and inout an l-value."""

    name: str
    direction: str
    value: Expression


@dataclass(slots=True, eq=False)
class CallExtern(Statement):
    """`instance.method(arguments)`, or of a free function when `instance` is None.

    `type_arguments` are the inferred ones, `result` takes the returned value.
    Externs' bodies belong to the architecture.
    """

    instance: ExternInstance | None
    method: str
    type_arguments: tuple[Type, ...]
    arguments: tuple[Argument, ...]
    result: Variable | None = None


@dataclass(slots=True, eq=False)
class Extract(Statement):
    """`packet.extract(target)`; `varbit_width` (bit<32>, bits) if the header has a varbit.

    Rejects with PacketTooShort, HeaderTooShort or ParserInvalidArgument.
    """

    target: Expression
    varbit_width: Expression | None = None


@dataclass(slots=True, eq=False)
class Lookahead(Statement):
    """`target = packet.lookahead<T>()`, T the target's type."""

    target: Expression


@dataclass(slots=True, eq=False)
class Advance(Statement):
    """`packet.advance(bits)`."""

    bits: Expression


@dataclass(slots=True, eq=False)
class PacketLength(Statement):
    """`target = packet.length()`, bytes, bit<32>."""

    target: Expression


@dataclass(slots=True, eq=False)
class Emit(Statement):
    """`packet.emit(value)`: valid headers of a header, struct, union or stack, in order."""

    value: Expression


@dataclass(slots=True, eq=False)
class Verify(Statement):
    """`verify(condition, error)`: if false, reject with the error (bit<32>)."""

    condition: Expression
    error: Expression


@dataclass(slots=True, eq=False)
class SetValid(Statement):
    """`setValid()` or `setInvalid()` of a header or union member.

    As in BMv2, setValid zeroes the fields of a header that was invalid, and setInvalid keeps them.
    """

    header: Expression
    valid: bool


@dataclass(slots=True, eq=False)
class Push(Statement):
    """`stack.push_front(count)` or, if `count` is negative, `stack.pop_front(-count)`."""

    stack: Expression
    count: int


# --- Callables and blocks --------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Parameter:
    """A parameter: `direction` is `in`, `out`, `inout` or `` (directionless)."""

    name: str
    direction: str
    variable: Variable
    annotations: tuple[Annotation, ...] = ()
    type_name: TypeName = TypeName()


@dataclass(slots=True, eq=False)
class Callable:
    """A function or an action, specialised for its block instance."""

    name: str
    """Fully qualified control-plane name, e.g. `MyIngress.drop`."""
    parameters: tuple[Parameter, ...]
    body: list[Statement]
    result: Variable | None = None
    annotations: tuple[Annotation, ...] = ()
    is_action: bool = False
    position: Position = NOWHERE

    @property
    def data(self) -> tuple[Parameter, ...]:
        """Return the directionless parameters: an action's data from the control plane."""
        return tuple(p for p in self.parameters if p.direction == "")


@dataclass(slots=True, eq=False)
class Goto:
    """Transition to a state by name; `accept` and `reject` are states."""

    state: str


@dataclass(slots=True, eq=False)
class Exactly:
    """A key set: one value."""

    value: Expression


@dataclass(slots=True, eq=False)
class Masked:
    """A key set: `(subject & mask) == (value & mask)`."""

    value: Expression
    mask: Expression


@dataclass(slots=True, eq=False)
class Between:
    """A key set: `low <= subject <= high`."""

    low: Expression
    high: Expression


@dataclass(slots=True, eq=False)
class Anything:
    """A key set: `_` or `default`."""


@dataclass(slots=True, eq=False)
class InValueSet:
    """A key set of a parser value set, for all subjects of the select at once."""

    value_set: ValueSet


KeySet = Exactly | Masked | Between | Anything | InValueSet


@dataclass(slots=True, eq=False)
class Select:
    """The first case whose key sets all match; none: reject with NoMatch."""

    subjects: tuple[Expression, ...]
    cases: list[tuple[tuple[KeySet, ...], str]]


@dataclass(slots=True, eq=False)
class State:
    """A parser state."""

    name: str
    body: list[Statement]
    transition: Goto | Select


@dataclass(slots=True, eq=False)
class Block:
    """One instance of a parser or control.

    `parameters` holds all except `packet_in` and `packet_out`, which are implicit.
    A control has `body`; a parser has `states` and runs `body` (its locals) before `start`.
    """

    name: str
    """Fully qualified instance name; of a top-level block, its type's name."""
    kind: str
    """`parser` or `control`."""
    type_name: str
    parameters: tuple[Parameter, ...]
    body: list[Statement]
    states: dict[str, State] = field(default_factory=dict)
    annotations: tuple[Annotation, ...] = ()


@dataclass(slots=True, eq=False)
class ValueSet:
    """A parser value set; members are struct fields or the one value, with match kinds."""

    name: str
    type: Type
    size: int
    match_kinds: tuple[str, ...]
    annotations: tuple[Annotation, ...] = ()
    field_names: tuple[str, ...] = ()
    type_names: tuple[TypeName, ...] = ()


# --- Tables ----------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Key:
    """One key of a table. `name` is the control-plane name (`@name` or the source text)."""

    name: str
    match_kind: str
    expression: Expression
    annotations: tuple[Annotation, ...] = ()
    type_name: TypeName = TypeName()

    @property
    def width(self) -> int:
        """Return the width in bits; 1 for a Bool."""
        kind = self.expression.type
        if isinstance(kind, Bits):
            return kind.width
        if isinstance(kind, Varbit):
            return kind.max_width
        return 1

    @property
    def mask(self) -> int | None:
        """Return the constant of a key `field & constant`, None for any other key.

        p4c gives it to BMv2 as the mask of the field (backends/bmv2/common/control.h) unless it
        is 0, and BMv2 lays it over the values of entries, too (`apply_big_mask`, match_units.cpp).
        """
        found = self.expression
        if not isinstance(found, Binary) or found.operator != "&":
            return None
        field, constant = found.left, found.right
        if not isinstance(constant, Const):
            field, constant = constant, field
        while isinstance(field, Field):
            field = field.base
        if not isinstance(field, Read) or not isinstance(constant, Const):
            return None
        return int(constant.value) & ((1 << self.width) - 1) or None


@dataclass(slots=True, eq=False)
class TableAction:
    """An action in a table's list; `copy_in` and `copy_out` bind its directional parameters."""

    action: Callable
    copy_in: list[Statement] = field(default_factory=list)
    copy_out: list[Assign] = field(default_factory=list)
    annotations: tuple[Annotation, ...] = ()

    @property
    def default_only(self) -> bool:
        """`@defaultonly`."""
        return self._is("defaultonly")

    @property
    def table_only(self) -> bool:
        """`@tableonly`."""
        return self._is("tableonly")

    def _is(self, annotation: str) -> bool:
        return bool(self.annotations) and any(a.name == annotation for a in self.annotations)


@dataclass(frozen=True, slots=True)
class ActionChoice:
    """An action of a table (index into `Table.actions`) with its data arguments."""

    index: int
    arguments: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class ConstKey:
    """A constant key set of an entry: `value & mask`, or `value..high` when `high` is not None.

    `any`: don't care. An exact key has the full mask, an lpm key a prefix mask. Of a signed key
    it holds the bits, as unsigned numbers.
    """

    value: int
    mask: int
    high: int | None = None
    any: bool = False


@dataclass(slots=True, eq=False)
class Entry:
    """An entry in the source. `priority`: larger or smaller numbers win, as the table specifies;

    None if not given (then the first entry in the list wins).
    """

    keys: tuple[ConstKey, ...]
    action: ActionChoice
    constant: bool
    priority: int | None
    annotations: tuple[Annotation, ...] = ()
    position: Position = NOWHERE


@dataclass(slots=True, eq=False)
class Table:
    """A table of one control instance."""

    name: str
    """Fully qualified, e.g. `MyIngress.ipv4_lpm`."""
    keys: tuple[Key, ...]
    actions: tuple[TableAction, ...]
    default_action: ActionChoice
    default_constant: bool
    entries: tuple[Entry, ...]
    entries_constant: bool
    size: int | None
    largest_priority_wins: bool = True
    implementation: ExternInstance | None = None
    counters: tuple[ExternInstance, ...] = ()
    """Its direct counters."""
    meters: tuple[ExternInstance, ...] = ()
    """Its direct meters."""
    support_timeout: bool = False
    key_code: list[Statement] = field(default_factory=list)
    """Code that runs before the keys are evaluated (calls in key expressions)."""
    annotations: tuple[Annotation, ...] = ()
    position: Position = NOWHERE


Folded = int | bool | str | tuple["Folded", ...]
"""A constructor argument."""


@dataclass(slots=True, eq=False)
class ExternInstance:
    """An instance of an extern object.

    `type_arguments` are those of the instance (`register<bit<32>>`: Bits(32));
    `arguments` the folded constructor arguments (an enum's is its member's index, a tuple's or
    struct's a tuple).
    """

    name: str
    """Fully qualified, e.g. `MyIngress.flows`."""
    extern: str
    """Name of the extern, e.g. `register`."""
    type_arguments: tuple[Type, ...]
    arguments: tuple[Folded, ...]
    annotations: tuple[Annotation, ...] = ()
    type_names: tuple[TypeName, ...] = ()
    position: Position = NOWHERE

    def number(self, index: int) -> int:
        """Return a constructor argument that is a number, a Boolean or an enum member."""
        found = self.arguments[index]
        assert isinstance(found, int), found
        return int(found)

    @property
    def initial(self) -> int | None:
        """Return the bits that a register's cells hold at first; None: zeros, invalid headers."""
        return self.number(1) if self.extern == "register" and len(self.arguments) > 1 else None


FieldPath = tuple[str, ...]
"""One of FIELD_PATH_ROOTS, then the names of fields within it."""

FIELD_PATH_ROOTS = ("metadata", "standard")
"""The user's metadata and standard_metadata."""


@dataclass(slots=True, eq=False)
class Package:
    """The package of `main`: its name and its blocks by parameter name, in order."""

    name: str
    blocks: dict[str, Block]


@dataclass(slots=True, eq=False)
class Program:
    """A whole program."""

    package: Package
    errors: tuple[str, ...]
    """Errors in order of declaration; the value of an error is its index (NoError is 0)."""
    enums: dict[str, tuple[tuple[str, int], ...]]
    """Every enum's members and their values."""
    tables: tuple[Table, ...]
    """In the order p4c's P4Info lists them: by control, then by declaration."""
    actions: tuple[Callable, ...]
    """Actions in P4Info: of tables, and those called in apply blocks; each once per instance."""
    externs: tuple[ExternInstance, ...]
    value_sets: tuple[ValueSet, ...]
    blocks: tuple[Block, ...]
    functions: tuple[Callable, ...]
    """All other callables: functions, and actions that only other actions call."""
    variables: tuple[Variable, ...]
    types: dict[str, Header | Struct | Union]
    """Declared header, struct and union types by name (`controller_header`s are among them)."""
    annotations: tuple[Annotation, ...] = ()
    """Of the package instance: `@pkginfo`."""
    field_lists: dict[int, tuple[FieldPath, ...]] = field(default_factory=dict)
    """Metadata that copies of packets keep, by the numbers in `*_preserving_field_list`."""
    p4info: str = ""
    """The P4Info (text form) that came with BMv2 JSON; for P4 source it is derived."""
