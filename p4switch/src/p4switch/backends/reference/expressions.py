"""Expressions of the intermediate representation as Python source.

Unsigned values are ints in 0..2^w-1, signed ones ints in -2^(w-1)..2^(w-1)-1; every operation's
text yields a value in range again. Division by zero, which P4 leaves open, gives 0 here.
"""

from __future__ import annotations

from collections.abc import Callable as Function

from p4switch import ir
from p4switch.backends.reference.values import (
    ClassWriter,
    Object,
    bit_width,
    from_bits_text,
    is_object,
    mask_of,
    signed_text,
    to_bits_text,
)
from p4switch.ir import Bits, Bool

WRAPPING = frozenset({"+", "-", "*"})
BITWISE = frozenset({"&", "|", "^"})
COMPARING = frozenset({"<", ">", "<=", ">=", "==", "!="})
DEEPEST = 30
"""Levels of one Python expression; CPython parses 200 nested parentheses, a level may have four."""

LOGICAL = {"&&": "and", "||": "or", "==": "==", "!=": "!="}


def divide(left: int, right: int) -> int:
    """`/` of unsigned values."""
    return left // right if right else 0


def modulo(left: int, right: int) -> int:
    """`%` of unsigned values."""
    return left % right if right else 0


def shift_left(left: int, right: int, width: int) -> int:
    """`<<` whose result is not yet cut to `width` bits; no number grows without bound."""
    return left << right if right < width else 0


def clamp(value: int, low: int, high: int) -> int:
    """Saturate."""
    return low if value < low else min(value, high)


class ExpressionWriter:
    """Writes expressions; `variable` gives the name of a variable's global."""

    def __init__(
        self,
        classes: ClassWriter,
        namespace: dict[str, Object],
        variable: Function[[ir.Variable], str],
    ) -> None:
        self._classes = classes
        self._variable = variable
        self._namespace = namespace
        self._level = 0
        self._split = 0
        namespace.update(divide=divide, modulo=modulo, shift_left=shift_left, clamp=clamp)

    def text(self, expression: ir.Expression) -> str:
        """Source of the value; of an object, of the object itself. Atomic or in parentheses.

        An expression that nests too deeply is split: its inner part becomes a function.
        """
        if self._level < DEEPEST:
            self._level += 1
            try:
                return self._text(expression)
            finally:
                self._level -= 1
        outer, self._level = self._level, 0
        inner = self.text(expression)
        self._level = outer
        self._split += 1
        name = f"e{self._split}"
        exec(f"def {name}(): return {inner}", self._namespace)
        return f"{name}()"

    def _text(self, expression: ir.Expression) -> str:
        match expression:
            case ir.Const(value=value):
                return repr(value) if not isinstance(value, int) or value >= 0 else f"({value})"
            case ir.Read(variable=variable):
                return self._variable(variable)
            case ir.Field(base=base, name=name):
                return f"{self.text(base)}.f_{name}"
            case ir.Element(base=base, index=index):
                return f"{self.text(base)}.at({self.text(index)})"
            case ir.StackNext(base=base):
                return f"{self.text(base)}.next_element()"
            case ir.StackLast(base=base):
                return f"{self.text(base)}.last_element()"
            case ir.StackLastIndex(base=base):
                return f"({self.text(base)}.next_index - 1 & {mask_of(32)})"
            case ir.Slice(base=base, high=high, low=low):
                shifted = f"{self.text(base)} >> {low}" if low else self.text(base)
                return f"({shifted} & {mask_of(high - low + 1)})"
            case ir.Unary():
                return self._unary(expression)
            case ir.Binary():
                return self._binary(expression)
            case ir.Mux(condition=condition, then=then, other=other):
                return f"({self.text(then)} if {self.text(condition)} else {self.text(other)})"
            case ir.Cast():
                return self._cast(expression)
            case ir.IsValid(header=header):
                return f"{self.text(header)}.is_valid()"
            case ir.Build(type=kind, values=values):
                arguments = ", ".join(self.text(value) for value in values)
                return f"{self._classes.class_name(kind)}.build({arguments})"
            case ir.Invalid(type=kind):
                return self._classes.new_text(kind)
        raise TypeError(f"unknown expression {expression!r}")

    def _unary(self, expression: ir.Unary) -> str:
        operand = self.text(expression.operand)
        if expression.operator == "!":
            return f"(not {operand})"
        return f"({_wrap(expression.type, f'{expression.operator}{operand}')})"

    def _binary(self, expression: ir.Binary) -> str:
        left, right = self.text(expression.left), self.text(expression.right)
        operator = expression.operator
        kind = expression.left.type
        if is_object(kind):
            return f"({'' if operator == '==' else 'not '}{left}.equals({right}))"
        if isinstance(kind, Bool):
            return f"({left} {LOGICAL[operator]} {right})"
        if operator in COMPARING or not isinstance(kind, Bits):
            return f"({left} {operator} {right})"
        if operator == "++":
            return self._concatenation(expression)
        if operator in BITWISE:
            return f"({left} {operator} {right})"
        if operator in WRAPPING:
            return f"({_wrap(kind, f'{left} {operator} {right}')})"
        if operator == ">>":
            return f"({left} >> {right})"
        if operator == "<<":
            return f"({_wrap(kind, f'shift_left({left}, {right}, {kind.width})')})"
        if operator in ("|+|", "|-|"):
            low, high = (0, mask_of(kind.width))
            if kind.signed:
                half = 1 << max(kind.width - 1, 0)
                low, high = -half, half - 1
            return f"clamp({left} {operator[1]} {right}, {low}, {high})"
        return f"{'divide' if operator == '/' else 'modulo'}({left}, {right})"

    def _concatenation(self, expression: ir.Binary) -> str:
        left = to_bits_text(expression.left.type, self.text(expression.left))
        right = to_bits_text(expression.right.type, self.text(expression.right))
        whole = f"({left}) << {bit_width(expression.right.type)} | ({right})"
        return f"({from_bits_text(expression.type, f'({whole})')})"

    def _cast(self, expression: ir.Cast) -> str:
        source, target = expression.operand.type, expression.type
        operand = self.text(expression.operand)
        if isinstance(target, Bool):
            return operand if isinstance(source, Bool) else f"({operand} != 0)"
        if isinstance(source, Bool):
            return f"({from_bits_text(target, f'int({operand})')})"
        assert isinstance(source, Bits)
        assert isinstance(target, Bits)
        if source == target or (
            not source.signed and not target.signed and source.width <= target.width
        ):
            return operand
        return f"({_wrap(target, operand)})"


def _wrap(kind: ir.Type, text: str) -> str:
    """Source that brings an integer into the range of its type."""
    assert isinstance(kind, Bits)
    if kind.signed:
        return signed_text(text, kind.width)
    return f"({text}) & {mask_of(kind.width)}"
