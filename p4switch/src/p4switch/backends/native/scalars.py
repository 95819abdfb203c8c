"""Expressions that are C integers, and the places of l-values."""

from __future__ import annotations

from abc import ABC, abstractmethod

from p4switch import ir
from p4switch.backends.native.types import (
    is_composite,
    is_scalar,
    is_signed,
    is_wide,
    literal,
    mask_of,
    scalar_width,
    value_type,
    words,
)
from p4switch.backends.native.writer import Writer

COMPARISONS = ("<", ">", "<=", ">=", "==", "!=")


class Scalars(Writer, ABC):
    """Translates expressions; preparatory code is written as lines before the statement."""

    # Implemented by the classes for wide integers and for statements.

    @abstractmethod
    def wide_operand(self, expression: ir.Expression) -> str:
        """Return a C array that holds a wide value (or a narrow one, in one word)."""

    @abstractmethod
    def wide_compare(self, operator: str, left: ir.Expression, right: ir.Expression) -> str:
        """Return a comparison of wide integers."""

    @abstractmethod
    def build_into(self, place: str, expression: ir.Expression) -> None:
        """Set a place of a composite or varbit type."""

    @abstractmethod
    def assign(self, statement: ir.Assign) -> None:
        """`target = value`."""

    # --- places

    def place(self, expression: ir.Expression, *, write: bool = False) -> str:
        """Return the C l-value of an l-value.

        For places that do not exist, return one whose writes are lost.
        """
        match expression:
            case ir.Read():
                return self.unit.place(expression.variable)
            case ir.Field():
                return f"{self.value_place(expression.base, write)}.f_{expression.name}"
            case ir.Element():
                return self._element(expression, write)
            case ir.StackNext():
                stack = self.value_place(expression.base, write)
                self.reject(f"{stack}.next >= {stack_size(expression.base)}", "StackOutOfBounds")
                return f"{stack}.e[{stack}.next]"
            case ir.StackLast():
                stack = self.value_place(expression.base, write)
                size = stack_size(expression.base)
                self.reject(f"{stack}.next - 1u >= {size}u", "StackOutOfBounds")
                return f"{stack}.e[{stack}.next - 1]"
        raise self.unsupported(f"{type(expression).__name__} as an l-value")

    def value_place(self, expression: ir.Expression, write: bool = False) -> str:
        """Return a place that holds a composite, wide or varbit value: its own or a temporary."""
        if isinstance(expression, ir.Read | ir.Field | ir.Element | ir.StackNext | ir.StackLast):
            return self.place(expression, write=write)
        name = self.name()
        self.line(f"{self.unit.types.name(expression.type)} {name};")
        self.build_into(name, expression)
        return name

    def _element(self, expression: ir.Element, write: bool) -> str:
        stack = self.value_place(expression.base, write)
        size = stack_size(expression.base)
        if isinstance(expression.index, ir.Const):
            index = int(expression.index.value)
            if 0 <= index < size:
                return f"{stack}.e[{index}]"
            inside = "0"
            at = "0"
        else:
            at = self.name("i")
            self.line(f"const u64 {at} = {self.index(expression.index)};")
            inside = f"{at} < {size}"
        kind = expression.type
        c_type = self.unit.types.name(kind)
        if write:
            other = f"&{self.unit.trash(kind)}"
            name = self.name("e")
            self.line(f"{c_type} *const {name} = {inside} ? &{stack}.e[{at}] : {other};")
        else:
            other = f"&{self.unit.types.zero(kind)}"
            name = self.name("e")
            self.line(f"const {c_type} *const {name} = {inside} ? &{stack}.e[{at}] : {other};")
        return f"(*{name})"

    def index(self, expression: ir.Expression) -> str:
        """Return an unsigned number as u64; a wide one saturated, a negative one huge."""
        if is_wide(expression.type):
            assert isinstance(expression.type, ir.Bits)
            array = self.wide_operand(expression)
            return f"wide_count({array}, {words(expression.type.width)})"
        if is_signed(expression.type):
            width = scalar_width(expression.type)
            return f"(u64)sign_extend({self.scalar(expression)}, {width})"
        return f"(u64){self.scalar(expression)}"

    # --- values

    def scalar(self, expression: ir.Expression) -> str:
        """Return the C text of a Bits of at most 64 bits (its value type) or a Bool (0 or 1)."""
        match expression:
            case ir.Const():
                return literal(int(expression.value), scalar_width(expression.type))
            case ir.Read() | ir.Field() | ir.Element() | ir.StackNext() | ir.StackLast():
                width = scalar_width(expression.type)
                place = self.place(expression)
                return place if width > 16 else f"(u32){place}"
            case ir.StackLastIndex():
                return f"(u32)({self.value_place(expression.base)}.next - 1u)"
            case ir.Slice():
                return self._slice(expression)
            case ir.Unary():
                return self._unary(expression)
            case ir.Binary():
                return self._binary(expression)
            case ir.Mux():
                return self._mux(expression)
            case ir.Cast():
                return self._cast(expression)
            case ir.IsValid():
                return self.is_valid(expression.header)
        raise self.unsupported(f"{type(expression).__name__} as a number")

    def is_valid(self, expression: ir.Expression) -> str:
        """Return the C text of whether a header, or any header of a union or stack, is valid."""
        return self._valid(self.value_place(expression), expression.type)

    def _valid(self, place: str, kind: ir.Type) -> str:
        match kind:
            case ir.Header():
                return f"(u32){place}.valid"
            case ir.Union():
                return f"({' | '.join(f'{place}.f_{f.name}.valid' for f in kind.fields) or '0'})"
            case ir.Stack():
                parts = [self._valid(f"{place}.e[{i}]", kind.element) for i in range(kind.size)]
                return f"({' | '.join(parts) or '0'})"
        return "0"

    def masked(self, text: str, width: int) -> str:
        """Return the low bits of a computed value."""
        if width in (32, 64):
            return f"({value_type(width)})({text})"
        return f"(({text}) & {literal(mask_of(width), width)})"

    def _slice(self, expression: ir.Slice) -> str:
        base, high, low = expression.base, expression.high, expression.low
        while isinstance(base, ir.Slice):
            high, low, base = high + base.low, low + base.low, base.base
        width = high - low + 1
        if is_wide(base.type):
            return self._wide_slice(self.wide_operand(base), high, low)
        text = self.scalar(base)
        if low:
            text = f"({text} >> {low})"
        kind = value_type(width)
        if high + 1 == scalar_width(base.type):
            return f"({kind}){text}"
        return f"({kind})({text} & {literal(mask_of(width), scalar_width(base.type))})"

    def _wide_slice(self, array: str, high: int, low: int) -> str:
        width = high - low + 1
        word, shift = divmod(low, 64)
        text = f"({array}[{word}] >> {shift})" if shift else f"{array}[{word}]"
        if shift + width > 64:
            text = f"({text} | {array}[{word + 1}] << {64 - shift})"
        kind = value_type(width)
        return (
            f"({kind}){text}" if width in (32, 64) else f"({kind})({text} & {mask_of(width):#x}ull)"
        )

    def _unary(self, expression: ir.Unary) -> str:
        operand = self.scalar(expression.operand)
        if expression.operator == "!":
            return f"(u32)!{operand}"
        width = scalar_width(expression.type)
        if expression.operator == "~":
            return self.masked(f"~{operand}", width)
        return self.masked(f"({value_type(width)})0 - {operand}", width)

    def _cast(self, expression: ir.Cast) -> str:
        operand = expression.operand
        if isinstance(expression.type, ir.Bool):
            return f"(u32)({self.scalar(operand)} != 0)"
        to = scalar_width(expression.type)
        if is_wide(operand.type):
            return self._wide_slice(self.wide_operand(operand), to - 1, 0) if to else "0u"
        source = scalar_width(operand.type)
        text = self.scalar(operand)
        if to <= source:
            if to == source:
                return text
            return f"({value_type(to)}){self.masked(text, to)}"
        if is_signed(operand.type):
            return self.masked(f"({value_type(to)})sign_extend({text}, {source})", to)
        return f"({value_type(to)}){text}" if value_type(to) != value_type(source) else text

    def _mux(self, expression: ir.Mux) -> str:
        condition = self.scalar(expression.condition)
        with self.captured() as then_lines:
            then = self.scalar(expression.then)
        with self.captured() as other_lines:
            other = self.scalar(expression.other)
        if not then_lines and not other_lines:
            return f"({condition} ? {then} : {other})"
        name = self.name()
        self.line(f"{value_type(scalar_width(expression.type))} {name};")
        with self.block(f"if ({condition})"):
            self.lines += then_lines
            self.line(f"{name} = {then};")
        with self.block("else"):
            self.lines += other_lines
            self.line(f"{name} = {other};")
        return name

    def _binary(self, expression: ir.Binary) -> str:
        operator, left, right = expression.operator, expression.left, expression.right
        if operator in COMPARISONS:
            return self._compare(operator, left, right)
        if isinstance(expression.type, ir.Bool):
            c_operator = {"&&": "&", "||": "|"}[operator]
            return f"({self.scalar(left)} {c_operator} {self.scalar(right)})"
        width = scalar_width(expression.type)
        if width == 0:
            return "0u"
        kind = value_type(width)
        if operator in ("<<", ">>"):
            return self._shift(expression, width, kind)
        a, b = self.scalar(left), self.scalar(right)
        if operator == "++":
            low = scalar_width(right.type)
            if low == 0 or scalar_width(left.type) == 0:
                return f"({kind})({a if low == 0 else b})"
            return f"(({kind}){a} << {low} | {b})"
        if operator in ("&", "|", "^"):
            return f"({a} {operator} {b})"
        if operator in ("+", "-", "*"):
            return self.masked(f"{a} {operator} {b}", width)
        if operator in ("|+|", "|-|"):
            return self._saturating(operator, a, b, width, is_signed(expression.type))
        if operator in ("/", "%"):
            return self._divide(operator, a, b, expression)
        raise self.unsupported(f"operator {operator!r}")

    def _saturating(self, operator: str, a: str, b: str, width: int, signed: bool) -> str:
        name = {"|+|": "add_saturating", "|-|": "sub_saturating"}[operator]
        kind = value_type(width)
        if signed:
            return f"({kind}){name}_signed({a}, {b}, {width})"
        if operator == "|-|":
            return f"({kind}){name}({a}, {b})"
        return f"({kind}){name}({a}, {b}, {width})"

    def _divide(self, operator: str, a: str, b: str, expression: ir.Binary) -> str:
        if is_signed(expression.type):
            raise self.unsupported(f"operator {operator!r} of signed integers")
        if isinstance(expression.right, ir.Const) and expression.right.value:
            return f"({a} {operator} {b})"
        name = self.temporary(value_type(scalar_width(expression.type)), b)
        return f"({name} ? {a} {operator} {name} : 0)"

    def _shift(self, expression: ir.Binary, width: int, kind: str) -> str:
        a = self.scalar(expression.left)
        left = expression.operator == "<<"
        signed = is_signed(expression.type) and not left
        if isinstance(expression.right, ir.Const):
            by = int(expression.right.value)
            if signed:
                return f"({kind})shift_right_signed({a}, {min(by, width)}, {width})"
            if by >= width:
                return "0u"
            return self.masked(f"{a} << {by}", width) if left else f"({a} >> {by})"
        name = "shift_left" if left else "shift_right_signed" if signed else "shift_right"
        return f"({kind}){name}({a}, {self.index(expression.right)}, {width})"

    def _compare(self, operator: str, left: ir.Expression, right: ir.Expression) -> str:
        kind = left.type
        if is_scalar(kind):
            a, b = self.scalar(left), self.scalar(right)
            if is_signed(kind) and operator not in ("==", "!="):
                width = scalar_width(kind)
                a, b = f"sign_extend({a}, {width})", f"sign_extend({b}, {width})"
            return f"(u32)({a} {operator} {b})"
        if is_wide(kind):
            return self.wide_compare(operator, left, right)
        if is_composite(kind) or isinstance(kind, ir.Varbit):
            a, b = self.value_place(left), self.value_place(right)
            sign = "!" if operator == "!=" else ""
            return f"(u32){sign}{self.unit.types.equals(kind)}(&{a}, &{b})"
        raise self.unsupported("a comparison of strings")


def stack_size(expression: ir.Expression) -> int:
    """Return the number of elements of a stack expression."""
    assert isinstance(expression.type, ir.Stack)
    return expression.type.size
