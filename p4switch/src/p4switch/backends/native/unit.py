"""State of a program's translation that all functions share."""

from __future__ import annotations

from collections.abc import Sequence

from p4switch import ir
from p4switch.backends.native.layout import KeyField, Layout, table_layout
from p4switch.backends.native.own_externs import OwnExterns
from p4switch.backends.native.types import CTypes, is_composite, wire_width, words
from p4switch.backends.native.variables import Usage
from p4switch.midend import visit
from p4switch.midend.architecture import packet_layout
from p4switch.midend.call_graph import Function, bodies, reachable
from p4switch.targets.v1model.calculations import custom_calculations
from p4switch.targets.v1model.state import PROFILE_EXTERNS, value_set_widths

PACKET_ROOTS = {"headers": "p->headers", "metadata": "p->meta", "standard": "p->std"}
"""C places of a packet's state."""


def clean(name: str) -> str:
    """Return a name in a form that can be part of a C identifier."""
    return "".join(c if c.isalnum() else "_" for c in name)


class Unit:
    """The shared part of a translation: types, functions, places of variables, constants."""

    def __init__(self, program: ir.Program, own: OwnExterns | None = None) -> None:
        self.program = program
        self.own = own
        """The program's own externs, if any."""
        self.types = CTypes()
        self.packet = packet_layout(program)
        self.headers, self.metadata, self.standard = self.packet.roots.values()
        assert isinstance(self.metadata, ir.Struct) and isinstance(self.standard, ir.Struct)
        self.functions = reachable(self.packet.blocks.values())
        self._names = {id(f): f"f{i}_{clean(f.name)}" for i, f in enumerate(self.functions)}
        self._places: dict[ir.Variable, str] = {}
        self._scratch: dict[str, ir.Variable] = {}
        self._bind_blocks()
        self._usage = Usage(self.functions)
        self.frame: dict[str, str] = {}
        self.constants: dict[tuple[int, ...], str] = {}
        self.aligned = all(
            _keeps_alignment(statement)
            for function in self.functions
            for body in bodies(function)
            for statement in visit.statements(body)
        )
        self.register_groups: dict[int, list[ir.ExternInstance]] = {}
        """Registers by size: those of one size are interleaved, with all cells of an index
        adjacent."""
        self.layout = self._make_layout()
        self.calculations = {
            id(each.call): index for index, each in enumerate(custom_calculations(program))
        }
        """Numbers of custom CRCs, by their calls."""

    def _bind_blocks(self) -> None:
        """Bind the parameters of all blocks to the packet's headers and metadata."""
        for role in self.packet.blocks:
            for parameter, (root, *path) in self.packet.parameters(role):
                place = ".".join((PACKET_ROOTS[root], *(f"f_{name}" for name in path)))
                self._places[parameter.variable] = place

    def function_name(self, function: Function) -> str:
        """Return the C function of a callable, block or table."""
        return self._names[id(function)]

    def place(self, variable: ir.Variable) -> str:
        """Return the C l-value of a variable."""
        known = self._places.get(variable)
        if known is None:
            name = f"v_{variable.name}"
            if self._usage.is_local(variable):
                known = name
            else:
                self.frame[name] = self.types.name(variable.type)
                known = f"f->{name}"
            self._places[variable] = known
        return known

    def is_local(self, variable: ir.Variable) -> bool:
        """Whether the variable is declared inside its C function."""
        return not self.place(variable).startswith(("f->", "p->"))

    def trash(self, kind: ir.Type) -> str:
        """Return a place for writes that are discarded."""
        name = f"trash_{self.types.name(kind)}"
        self.frame[name] = self.types.name(kind)
        return f"f->{name}"

    def constant(self, value: Sequence[int]) -> str:
        """Return the name of a constant array of words."""
        key = tuple(value)
        return self.constants.setdefault(key, f"constant{len(self.constants)}")

    def error(self, name: str) -> int:
        """Return the value of an error of core.p4."""
        return self.program.errors.index(name)

    def register(self, instance: ir.ExternInstance) -> tuple[int, str]:
        """Return the group of a register, and its name in the group's row."""
        size = instance.number(0)
        group = list(self.register_groups).index(size)
        return group, f"r{self.register_groups[size].index(instance)}"

    def meters_bytes(self, instance: ir.ExternInstance) -> bool:
        """Return whether a meter or direct meter counts bytes."""
        kinds = dict(self.program.enums.get("MeterType", ()))
        return instance.number(-1) == kinds.get("bytes", 1)

    def scratch(self, kind: ir.Type) -> ir.Variable:
        """Return a variable of a type for an intermediate value."""
        name = self.types.name(kind)
        if name not in self._scratch:
            self._scratch[name] = ir.Variable(f"scratch_{name}", kind)
            self.frame[f"v_scratch_{name}"] = name
            self._places[self._scratch[name]] = f"f->v_scratch_{name}"
        return self._scratch[name]

    def named(self, name: str, kind: ir.Type) -> ir.Read:
        """Return an expression for what the generator itself declared under a C name."""
        variable = ir.Variable(name, kind)
        self._places[variable] = name
        return ir.Read(kind, variable)

    def locals_of(self, function: Function) -> list[ir.Variable]:
        """Return the variables that are declared in the function."""
        return [
            variable
            for variable in self._usage.locals_of(function)
            if variable in self._places and self.is_local(variable)
        ]

    def _make_layout(self) -> Layout:
        program = self.program
        layout = Layout([table_layout(table) for table in program.tables])
        for instance in program.externs:
            match instance.extern:
                case "register":
                    layout.registers.append(instance.name)
                    size = instance.number(0)
                    self.register_groups.setdefault(size, []).append(instance)
                case "counter":
                    layout.counters.append(instance.name)
                case "meter":
                    layout.meters.append(instance.name)
                case kind if kind in PROFILE_EXTERNS:
                    layout.profiles.append(instance.name)
        for value_set in program.value_sets:
            widths = value_set_widths(value_set)
            fields, at = [], 0
            for place, width in enumerate(widths):
                fields.append(KeyField(place, value_set.match_kinds[place], width, at, 0))
                at += words(width)
            layout.value_sets.append(tuple(fields))
            layout.value_set_words.append(at)
        return layout


def _keeps_alignment(statement: ir.Statement) -> bool:
    match statement:
        case ir.Extract():
            return wire_width(statement.target.type) % 8 == 0
        case ir.Advance():
            return _multiple_of_8(statement.bits)
        case ir.Emit():
            return all(wire_width(kind) % 8 == 0 for kind in headers_in(statement.value.type))
    return True


def _multiple_of_8(expression: ir.Expression) -> bool:
    match expression:
        case ir.Const(value=int(value)):
            return value % 8 == 0
        case ir.Binary(operator="<<", right=ir.Const(value=int(count))):
            return count >= 3
        case ir.Binary(operator="*"):
            return _multiple_of_8(expression.left) or _multiple_of_8(expression.right)
        case ir.Binary(operator="+" | "-"):
            return _multiple_of_8(expression.left) and _multiple_of_8(expression.right)
        case ir.Binary(operator="++"):
            return _multiple_of_8(expression.right) and ir_width(expression.right) >= 3
        case ir.Cast(operand=operand):
            return _multiple_of_8(operand)
    return False


def ir_width(expression: ir.Expression) -> int:
    """Return the width of a Bits expression."""
    assert isinstance(expression.type, ir.Bits)
    return expression.type.width


def headers_in(kind: ir.Type) -> list[ir.Header]:
    """Yield all header types inside a type."""
    if isinstance(kind, ir.Header):
        return [kind]
    if isinstance(kind, ir.Stack):
        return headers_in(kind.element)
    if is_composite(kind):
        assert isinstance(kind, ir.Struct | ir.Union)
        return [h for f in kind.fields for h in headers_in(f.type)]
    return []
