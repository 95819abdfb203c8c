"""Evaluation of expressions: one method per kind of node of the intermediate representation.

Each method inspects its node once and returns a function that evaluates it, which calls those of
its operands ("closure compilation": what depends only on the program is computed once, before the
first packet that needs it). Expressions have no side effects; the front end has moved these into
statements, in the order of evaluation (section 8.1).

Sections are those of the P4_16 specification 1.2.5.
"""

from __future__ import annotations

from collections.abc import Callable as Function

from p4switch import ir
from p4switch.backends.reference.operators import (
    binary_operation,
    cast_operation,
    unary_operation,
)
from p4switch.backends.reference.values import Cell, Shapes, Value

Evaluate = Function[[], Value]
"""Returns the present value of an expression; for an object, the object itself."""


class Expressions:
    """The expressions of one program, and the variables that they read."""

    def __init__(self) -> None:
        self.shapes = Shapes()
        self.deepest = 0
        """Depth of the deepest expression so far."""
        self._level = 0
        self._cells: dict[ir.Variable, Cell] = {}

    def cell(self, variable: ir.Variable) -> Cell:
        """Return the place of a variable. One is enough: P4 has no recursion (section 10)."""
        cell = self._cells.get(variable)
        if cell is None:
            cell = self._cells[variable] = Cell(self.shapes.fresh(variable.type))
        return cell

    def evaluator(self, expression: ir.Expression) -> Evaluate:
        """Return the function that evaluates an expression."""
        self._level += 1
        self.deepest = max(self.deepest, self._level)
        try:
            return self._evaluator(expression)
        finally:
            self._level -= 1

    def _evaluator(self, expression: ir.Expression) -> Evaluate:
        match expression:
            case ir.Const(value=value):
                return lambda: value
            case ir.Read(variable=variable):
                return self._read(variable)
            case ir.Field():
                return self._field(expression)
            case ir.Element():
                return self._element(expression)
            case ir.StackNext(base=base):
                stack = self.evaluator(base)
                return lambda: stack().next_element()
            case ir.StackLast(base=base):
                stack = self.evaluator(base)
                return lambda: stack().last_element()
            case ir.StackLastIndex(base=base):
                return self._last_index(base)
            case ir.Slice():
                return self._slice(expression)
            case ir.Unary():
                return self._unary(expression)
            case ir.Binary():
                return self._binary(expression)
            case ir.Mux():
                return self._conditional(expression)
            case ir.Cast():
                return self._cast(expression)
            case ir.IsValid(header=header):
                tested = self.evaluator(header)
                return lambda: tested().is_valid()
            case ir.Build():
                return self._build(expression)
            case ir.Invalid(type=kind):
                return lambda: self.shapes.fresh(kind)
        raise TypeError(f"unknown expression {expression!r}")

    # --- places

    def _read(self, variable: ir.Variable) -> Evaluate:
        """Read a variable (11.2) or parameter (6.8)."""
        cell = self.cell(variable)
        return lambda: cell.value

    def _field(self, expression: ir.Field) -> Evaluate:
        """`base.name` of a struct (8.16), header (8.17) or union (8.19).

        For an invalid header it is the value that the field holds (8.25 leaves it open).
        """
        name = expression.name
        base = self.evaluator(expression.base)
        return lambda: base().fields[name]

    def _element(self, expression: ir.Element) -> Evaluate:
        """`stack[index]` (8.18)."""
        stack = self.evaluator(expression.base)
        index = self.evaluator(expression.index)
        return lambda: stack().at(index())

    def _last_index(self, base: ir.Expression) -> Evaluate:
        """`stack.lastIndex`: nextIndex - 1, as bit<32> (8.18)."""
        stack = self.evaluator(base)
        return lambda: stack().next_index - 1 & 0xFFFFFFFF

    def _slice(self, expression: ir.Slice) -> Evaluate:
        """`base[high:low]`, unsigned (8.6)."""
        base = self.evaluator(expression.base)
        low, mask = expression.low, (1 << expression.high - expression.low + 1) - 1
        return lambda: base() >> low & mask

    # --- operators

    def _unary(self, expression: ir.Unary) -> Evaluate:
        """`!`, `~` and `-` (8.5, 8.6, 8.7)."""
        operation = unary_operation(expression.operator, expression.type)
        operand = self.evaluator(expression.operand)
        return lambda: operation(operand())

    def _binary(self, expression: ir.Binary) -> Evaluate:
        """Operators of two operands (8.5 to 8.10, 8.16 to 8.19).

        `&&` and `||` need not evaluate their right operand (8.5 says they must not, where it has
        side effects; here it has none).
        """
        left, right = self.evaluator(expression.left), self.evaluator(expression.right)
        if expression.operator == "&&":
            return lambda: left() and right()
        if expression.operator == "||":
            return lambda: left() or right()
        operation = binary_operation(
            expression.operator, expression.left.type, expression.right.type, expression.type
        )
        return lambda: operation(left(), right())

    def _conditional(self, expression: ir.Mux) -> Evaluate:
        """`condition ? then : other` (8.5.1)."""
        condition = self.evaluator(expression.condition)
        then, other = self.evaluator(expression.then), self.evaluator(expression.other)
        return lambda: then() if condition() else other()

    def _cast(self, expression: ir.Cast) -> Evaluate:
        """`(type) operand` (8.11.1)."""
        operation = cast_operation(expression.operand.type, expression.type)
        operand = self.evaluator(expression.operand)
        if operation is None:
            return operand
        cast = operation
        return lambda: cast(operand())

    def _build(self, expression: ir.Build) -> Evaluate:
        """Make a whole struct, tuple or header, valid (8.12, 8.13)."""
        kind = expression.type
        assert isinstance(kind, ir.Struct | ir.Header)
        names = [field.name for field in kind.fields]
        values = [self.evaluator(value) for value in expression.values]
        shape = self.shapes.of(kind)

        def build() -> Value:
            return shape.made_of({name: value() for name, value in zip(names, values, strict=True)})

        return build
