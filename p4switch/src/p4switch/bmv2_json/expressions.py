"""Expressions: BMv2 computes with integers of any size, executors with `bit<>` and `int<>`.

A value is translated either exactly (`exact`: its type holds the whole range that its operands
allow) or modulo a power of two (`modulo`: for assignments to a field of that width, and under the
masks that p4c puts around arithmetic), where sums, products and bit operations need no more bits
than the result. So `(a + b) & 0xff` becomes the sum of bit<8> that it was in P4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from p4switch import ir
from p4switch.bmv2_json.document import Document, Part, number_of, unwrapped
from p4switch.bmv2_json.headers import Headers

WIDEST = 4096
"""Maximum bits of an exact number; a left shift by an unbounded amount would need more."""

COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">="})
BOOLEAN = COMPARISONS | {"and", "or", "not", "valid", "valid_union", "d2b"}
HEADERS = frozenset({"header", "header_stack", "header_union", "header_union_stack"})
DEREFERENCES = frozenset(
    {"dereference_header_stack", "dereference_union_stack", "access_union_header"}
)


@dataclass(frozen=True, slots=True)
class Number:
    """An exact number: `expression` is of a Bits that holds all of low..high."""

    expression: ir.Expression
    low: int
    high: int


def bits_for(low: int, high: int) -> ir.Bits:
    """Return the smallest type that holds all of low..high."""
    if low >= 0:
        return ir.Bits(max(1, high.bit_length()))
    return ir.Bits(max((-low - 1).bit_length(), high.bit_length()) + 1, signed=True)


def limits(kind: ir.Bits) -> tuple[int, int]:
    """Return the least and the greatest number of a type."""
    if kind.signed:
        return -(1 << kind.width - 1), (1 << kind.width - 1) - 1
    return 0, (1 << kind.width) - 1


def converted(expression: ir.Expression, kind: ir.Bits) -> ir.Expression:
    """Return an expression of Bits, or Bool, as another Bits: truncated or extended."""
    if expression.type == kind:
        return expression
    if isinstance(expression, ir.Const):
        return ir.Const(kind, wrapped(int(expression.value), kind))
    if isinstance(expression.type, ir.Bool) and kind.width != 1:
        expression = ir.Cast(ir.BIT, expression)
    return ir.Cast(kind, expression)


def wrapped(value: int, kind: ir.Bits) -> int:
    """Return a number modulo what a type holds."""
    value &= (1 << kind.width) - 1
    return value - (1 << kind.width) if kind.signed and value >> kind.width - 1 else value


class Expressions:
    """The expressions of one action, parser or control flow.

    `data`: the variables to which `runtime_data` and `local` refer by number.
    """

    def __init__(
        self, document: Document, headers: Headers, data: Sequence[ir.Variable] = ()
    ) -> None:
        self.document = document
        self.headers = headers
        self._data = data

    # --- kinds

    def is_boolean(self, value: Part) -> bool:
        """Return whether a value is a Boolean rather than a number."""
        value = unwrapped(value)
        if value["type"] == "expression":
            inner = value["value"]
            if inner["op"] == "?":
                return self.is_boolean(inner["left"])
            return inner["op"] in BOOLEAN
        return bool(value["type"] == "bool")

    def is_header(self, value: Part) -> bool:
        """Return whether a value is a header, stack or union."""
        value = unwrapped(value)
        if value["type"] == "expression":
            return value["value"]["op"] in DEREFERENCES
        return value["type"] in HEADERS

    # --- places

    def place(self, value: Part) -> ir.Expression:
        """Return a header, stack, union or field, which may be assigned to."""
        value = unwrapped(value)
        content = value["value"]
        match value["type"]:
            case "field":
                return self.headers.field(content[0], content[1], value)
            case kind if kind in HEADERS or kind in ("regular", "stack"):
                return self.headers.header(content, value)
            case "stack_field":
                last = self._last(content[0], value)
                return self.headers.field_of(last, content[1], value)
            case "union_stack_field":
                member = self.union_member(self._last(content[0], value), content[1], value)
                return self.headers.field_of(member, content[2], value)
            case "expression":
                return self._place_by_operator(content)
        raise self.document.error(f"a {value['type']!r} is not a header or field", value)

    def _last(self, stack: str, value: Part) -> ir.Expression:
        place = self.headers.stack(stack, value)
        assert isinstance(place.type, ir.Stack)
        return ir.StackLast(place.type.element, place)

    def union_member(self, union: ir.Expression, name: str, value: Part) -> ir.Expression:
        """Return a header of a union."""
        assert isinstance(union.type, ir.Union)
        for field in union.type.fields:
            if field.name == name:
                return ir.Field(field.type, union, name)
        raise self.document.error(f"union {union.type.name!r} has no header {name!r}", value)

    def _place_by_operator(self, content: Part) -> ir.Expression:
        match content["op"]:
            case "access_field" | "access_union_header":
                base = self.place(content["left"])
                return self.headers.field_at(base, number_of(content["right"]), content)
            case "dereference_header_stack" | "dereference_union_stack":
                base = self.place(content["left"])
                assert isinstance(base.type, ir.Stack)
                index = self.exact(content["right"])
                if index.low < 0:
                    return ir.Element(
                        base.type.element, base, self.modulo(content["right"], ir.BIT32.width)
                    )
                return ir.Element(base.type.element, base, index.expression)
        raise self.document.error(f"{content['op']!r} gives no header or field", content)

    # --- Booleans

    def boolean(self, value: Part) -> ir.Expression:
        """Return a Boolean."""
        value = unwrapped(value)
        if value["type"] == "bool":
            return ir.Const(ir.BOOL, bool(value["value"]))
        if value["type"] != "expression" or not self.is_boolean(value):
            return self._not_zero(value)
        content = value["value"]
        operator, left, right = _operation(content)
        match operator:
            case "and" | "or":
                sign = "&&" if operator == "and" else "||"
                return ir.Binary(ir.BOOL, sign, self.boolean(left), self.boolean(right))
            case "not":
                return ir.Unary(ir.BOOL, "!", self.boolean(right))
            case "valid" | "valid_union":
                return ir.IsValid(ir.BOOL, self.place(right))
            case "d2b":
                return self._not_zero(right)
            case "?":
                return ir.Mux(
                    ir.BOOL,
                    self.boolean(content["cond"]),
                    self.boolean(left),
                    self.boolean(right),
                )
        return self._comparison(operator, left, right)

    def _not_zero(self, value: Part) -> ir.Expression:
        number = self.exact(value).expression
        assert isinstance(number.type, ir.Bits)
        return ir.Binary(ir.BOOL, "!=", number, ir.Const(number.type, 0))

    def _comparison(self, operator: str, left: Part, right: Part) -> ir.Expression:
        if self.is_header(left):
            return ir.Binary(ir.BOOL, operator, self.place(left), self.place(right))
        if self.is_boolean(left):
            return ir.Binary(ir.BOOL, operator, self.boolean(left), self.boolean(right))
        if self._is_varbit(left):
            return ir.Binary(ir.BOOL, operator, self.place(left), self.place(right))
        one, other = self.exact(left), self.exact(right)
        kind = bits_for(min(one.low, other.low), max(one.high, other.high))
        return ir.Binary(
            ir.BOOL,
            operator,
            converted(one.expression, kind),
            converted(other.expression, kind),
        )

    def _is_varbit(self, value: Part) -> bool:
        value = unwrapped(value)
        return value["type"] == "field" and isinstance(self.place(value).type, ir.Varbit)

    # --- numbers

    def modulo(self, value: Part, width: int) -> ir.Expression:
        """Return a number modulo 2 to the power of `width`, as a bit<width>."""
        value = unwrapped(value)
        kind = ir.Bits(width)
        if value["type"] == "expression" and not self.is_boolean(value):
            content = value["value"]
            made = self._modulo_operator(content, kind)
            if made is not None:
                return made
        return converted(self.exact(value).expression, kind)

    def _modulo_operator(self, content: Part, kind: ir.Bits) -> ir.Expression | None:
        """Return the result of an operator that needs only the result's bits of its operands."""
        operator, left, right = _operation(content)
        width = kind.width
        match operator:
            case "+" | "-" if left is None:
                negative = self.modulo(right, width)
                return negative if operator == "+" else ir.Unary(kind, "-", negative)
            case "&" if (kept := self._mask_width(content)) is not None:
                operand, bits = kept
                return converted(self.modulo(operand, min(bits, width)), kind)
            case "+" | "-" | "*" | "&" | "|" | "^":
                return ir.Binary(
                    kind, operator, self.modulo(left, width), self.modulo(right, width)
                )
            case "~":
                return ir.Unary(kind, "~", self.modulo(right, width))
            case "<<":
                amount = self._amount(right)
                return ir.Binary(kind, "<<", self.modulo(left, width), amount.expression)
            case "two_comp_mod" if number_of(unwrapped(right)["value"]) >= width:
                return self.modulo(left, width)
            case "?":
                return ir.Mux(
                    kind,
                    self.boolean(content["cond"]),
                    self.modulo(left, width),
                    self.modulo(right, width),
                )
        return None

    def _mask_width(self, content: Part) -> tuple[Part, int] | None:
        """Return what `& 0xff` masks and the bits it keeps; None for other operations."""
        for operand, mask in (
            (content["left"], content["right"]),
            (content["right"], content["left"]),
        ):
            inner = unwrapped(mask)
            if inner["type"] == "hexstr":
                value = number_of(inner["value"])
                if value > 0 and value & value + 1 == 0:
                    return operand, value.bit_length()
        return None

    def exact(self, value: Part) -> Number:
        """Return an exact number. A Boolean is 0 or 1."""
        value = unwrapped(value)
        content = value["value"]
        match value["type"]:
            case "hexstr":
                number = number_of(content)
                return Number(ir.Const(bits_for(number, number), number), number, number)
            case "runtime_data" | "local":
                if content >= len(self._data):
                    raise self.document.error(f"there is no runtime data {content}", value)
                variable = self._data[content]
                return self._of(ir.Read(variable.type, variable), value)
            case "expression" if not self.is_boolean(value):
                return self._exact_operator(content)
            case "bool" | "expression":
                return Number(ir.Cast(ir.BIT, self.boolean(value)), 0, 1)
            case "field" | "stack_field" | "union_stack_field":
                return self._of(self.place(value), value)
        raise self.document.unsupported(f"a {value['type']!r} as a number", value)

    def _of(self, expression: ir.Expression, value: Part) -> Number:
        if not isinstance(expression.type, ir.Bits):
            raise self.document.error("expected a number", value)
        return Number(expression, *limits(expression.type))

    def _exact_operator(self, content: Part) -> Number:
        operator, left, right = _operation(content)
        match operator:
            case "access_field":
                return self._of(self._place_by_operator(content), content)
            case "b2d":
                return Number(ir.Cast(ir.BIT, self.boolean(right)), 0, 1)
            case "last_stack_index" | "size_stack":
                return self._stack_number(operator, right or left)
            case "two_comp_mod":
                bits = number_of(unwrapped(right)["value"])
                kind = ir.Bits(bits, signed=True)
                return Number(converted(self.modulo(left, bits), kind), *limits(kind))
            case "usat_cast" | "sat_cast":
                bits = number_of(unwrapped(right)["value"])
                return self._saturated(self.exact(left), ir.Bits(bits, operator == "sat_cast"))
            case "&" if (kept := self._mask_width(content)) is not None:
                operand, bits = kept
                return self._of(self.modulo(operand, bits), content)
            case "~":
                number = self.exact(right)
                low, high = ~number.high, ~number.low
                kind = bits_for(min(low, number.low), max(high, number.high))
                flipped = ir.Unary(kind, "~", converted(number.expression, kind))
                return Number(flipped, low, high)
            case "?":
                return self._choice(content)
            case "+" | "-" if left is None:
                return self._binary(operator, Number(ir.Const(ir.BIT, 0), 0, 0), self.exact(right))
            case "<<" | ">>":
                return self._shift(operator, self.exact(left), self._amount(right), content)
        if operator not in ("+", "-", "*", "/", "%", "&", "|", "^"):
            raise self.document.unsupported(f"operator {operator!r}", content)
        one, other = self.exact(left), self.exact(right)
        if operator in "/%" and (one.low < 0 or other.low < 0):
            raise self.document.unsupported(
                f"{operator!r} of numbers that may be negative", content
            )
        return self._binary(operator, one, other)

    def _binary(self, operator: str, one: Number, other: Number) -> Number:
        low, high = _range(operator, one, other)
        kind = bits_for(min(low, one.low, other.low), max(high, one.high, other.high))
        made = ir.Binary(
            kind, operator, converted(one.expression, kind), converted(other.expression, kind)
        )
        return Number(made, low, high)

    def _choice(self, content: Part) -> Number:
        one, other = self.exact(content["left"]), self.exact(content["right"])
        low, high = min(one.low, other.low), max(one.high, other.high)
        kind = bits_for(low, high)
        made = ir.Mux(
            kind,
            self.boolean(content["cond"]),
            converted(one.expression, kind),
            converted(other.expression, kind),
        )
        return Number(made, low, high)

    def _amount(self, value: Part) -> Number:
        """Return the amount of a shift in bits."""
        amount = self.exact(value)
        if amount.low < 0:
            return Number(self.modulo(value, ir.BIT32.width), *limits(ir.BIT32))
        return amount

    def _shift(self, operator: str, one: Number, amount: Number, content: Part) -> Number:
        assert isinstance(one.expression.type, ir.Bits)
        if operator == ">>":
            kind = one.expression.type
            low = one.low if one.low < 0 else one.low >> amount.high
            made = ir.Binary(kind, ">>", one.expression, amount.expression)
            return Number(made, low, max(one.high >> amount.low, 0))
        if one.expression.type.width + amount.high > WIDEST:
            raise self.document.unsupported(
                f"a left shift by up to {amount.high} bits whose result is not masked", content
            )
        low, high = min(one.low << amount.high, one.low), max(one.high << amount.high, one.high)
        kind = bits_for(low, high)
        shifted = ir.Binary(kind, "<<", converted(one.expression, kind), amount.expression)
        return Number(shifted, low, high)

    def _saturated(self, number: Number, kind: ir.Bits) -> Number:
        least, most = limits(kind)
        wide = bits_for(min(number.low, least), max(number.high, most))
        value = converted(number.expression, wide)
        if number.high > most:
            top = ir.Const(wide, most)
            value = ir.Mux(wide, ir.Binary(ir.BOOL, ">", value, top), top, value)
        if number.low < least:
            bottom = ir.Const(wide, least)
            below = ir.Binary(ir.BOOL, "<", converted(number.expression, wide), bottom)
            value = ir.Mux(wide, below, bottom, value)
        return Number(converted(value, kind), least, most)

    def _stack_number(self, operator: str, value: Part) -> Number:
        last = ir.StackLastIndex(ir.BIT32, self.place(value))
        if operator == "last_stack_index":
            return Number(last, *limits(ir.BIT32))
        size = ir.Binary(ir.BIT32, "+", last, ir.Const(ir.BIT32, 1))
        return Number(size, *limits(ir.BIT32))


def _operation(content: Part) -> tuple[str, Any, Any]:
    """Return operator and operands; the left one is None for unary operators."""
    return content["op"], content.get("left"), content.get("right")


def _range(operator: str, one: Number, other: Number) -> tuple[int, int]:
    """Return the least and greatest result of an operator."""
    match operator:
        case "+":
            return one.low + other.low, one.high + other.high
        case "-":
            return one.low - other.high, one.high - other.low
        case "*":
            corners = [a * b for a in (one.low, one.high) for b in (other.low, other.high)]
            return min(corners), max(corners)
        case "/":
            return 0, one.high
        case "%":
            return 0, max(one.high, other.high)
        case "&" if one.low >= 0 and other.low >= 0:
            return 0, min(one.high, other.high)
    return limits(bits_for(min(one.low, other.low), max(one.high, other.high)))
