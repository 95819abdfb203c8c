"""Primitives of actions, and some operations of parsers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from p4switch import ir
from p4switch.bmv2_json.document import Document, Identifiers, Part, number_of, unwrapped
from p4switch.bmv2_json.expressions import Expressions, converted
from p4switch.bmv2_json.externs import Arrays, Calculations, call, tuple_of
from p4switch.bmv2_json.jumps import Jumps
from p4switch.position import Position

ARITHMETIC = {
    "add": "+",
    "subtract": "-",
    "bit_and": "&",
    "bit_or": "|",
    "bit_xor": "^",
    "shift_left": "<<",
    "shift_right": ">>",
}
"""Primitives of P4_14, with the result in the first parameter."""
IN_PLACE = {"add_to_field": "+", "subtract_from_field": "-"}

ASSIGNMENTS = frozenset({"assign", "modify_field", "set"})
COPIES = frozenset(
    {
        "assign_VL",
        "assign_header",
        "assign_union",
        "assign_header_stack",
        "assign_union_stack",
        "copy_header",
    }
)
NOTHING = frozenset({"no_op"})
INGRESS_CLONE, EGRESS_CLONE = 0, 1

_Method = Callable[[Expressions, Sequence[Part], Position], list[ir.Statement]]


class Primitives:
    """Translates the primitives of a file."""

    def __init__(
        self,
        document: Document,
        arrays: Arrays,
        calculations: Calculations,
        variables: Callable[[str, ir.Type], ir.Variable],
    ) -> None:
        """`variables` makes a variable from a name and a type."""
        self._document = document
        self._arrays = arrays
        self._calculations = calculations
        self._variables = variables
        self._lists = {part["id"]: part for part in document.parts("learn_lists")}
        self._types: dict[str, ir.Struct] = {}
        self._messages = 0

    def code(self, primitives: Sequence[Part], expressions: Expressions) -> list[ir.Statement]:
        """Return the statements of an action's primitives."""
        jumps = Jumps(
            self._document,
            primitives,
            partial(self.statements, expressions=expressions),
            expressions,
            self._variables,
        )
        return jumps.code()

    # --- single primitives

    def statements(self, part: Part, expressions: Expressions) -> list[ir.Statement]:
        """Return the statements of a primitive."""
        operator, parameters = part["op"], part.get("parameters") or []
        position = self._document.position(part)
        if operator in NOTHING:
            return []
        if operator in ASSIGNMENTS:
            return self._assign(expressions, parameters[0], parameters[1], position)
        if operator in COPIES:
            return [self._copy(expressions, parameters[0], parameters[1], position)]
        if operator in ARITHMETIC or operator in IN_PLACE:
            left, right = parameters[-2], parameters[-1]
            sign = ARITHMETIC.get(operator) or IN_PLACE[operator]
            value = {"op": sign, "left": left, "right": right}
            made: Part = {"type": "expression", "value": value}
            return self._assign(expressions, parameters[0], made, position)
        method: _Method | None = getattr(self, f"_op_{operator}", None)
        if method is None:
            raise self._document.unsupported(f"primitive {operator!r}", part)
        return method(expressions, parameters, position)

    def _assign(
        self, expressions: Expressions, target: Part, value: Part, position: Position
    ) -> list[ir.Statement]:
        place = expressions.place(target)
        if not isinstance(place.type, ir.Bits):
            return [ir.Assign(place, expressions.place(value), position=position)]
        if unwrapped(value)["type"] == "lookahead":
            return self.lookahead(place, unwrapped(value), position)
        number = expressions.modulo(value, place.type.width)
        return [ir.Assign(place, converted(number, place.type), position=position)]

    def lookahead(
        self, place: ir.Expression, value: Part, position: Position
    ) -> list[ir.Statement]:
        """Read bits ahead of a parser's cursor into a field."""
        assert isinstance(place.type, ir.Bits)
        offset, width = (self._document.width(bits, value) for bits in value["value"])
        ahead = self._variables("ahead", ir.Bits(offset + width))
        read = ir.Read(ahead.type, ahead)
        # The bits before them are at the upper end.
        found = ir.Slice(ir.Bits(width), read, width - 1, 0)
        return [
            ir.Lookahead(read, position=position),
            ir.Assign(place, converted(found, place.type), position=position),
        ]

    def _copy(
        self, expressions: Expressions, target: Part, source: Part, position: Position
    ) -> ir.Statement:
        return ir.Assign(expressions.place(target), expressions.place(source), position=position)

    # --- headers

    def _header(self, expressions: Expressions, value: Part) -> ir.Expression:
        place = expressions.place(value)
        if not isinstance(place.type, ir.Header):
            raise self._document.error("expected a header", value)
        return place

    def _op_add_header(
        self, expressions: Expressions, parameters: Sequence[Part], position: Position
    ) -> list[ir.Statement]:
        return [ir.SetValid(self._header(expressions, parameters[0]), True, position=position)]

    _op_add_header_fast = _op_add_header

    def _op_remove_header(
        self, expressions: Expressions, parameters: Sequence[Part], position: Position
    ) -> list[ir.Statement]:
        return [ir.SetValid(self._header(expressions, parameters[0]), False, position=position)]

    def _op_push(
        self, expressions: Expressions, parameters: Sequence[Part], position: Position
    ) -> list[ir.Statement]:
        count = number_of(unwrapped(parameters[1])["value"])
        return [ir.Push(expressions.place(parameters[0]), count, position=position)]

    def _op_pop(
        self, expressions: Expressions, parameters: Sequence[Part], position: Position
    ) -> list[ir.Statement]:
        count = number_of(unwrapped(parameters[1])["value"])
        return [ir.Push(expressions.place(parameters[0]), -count, position=position)]

    # --- arrays

    def _op_count(
        self, expressions: Expressions, parameters: Sequence[Part], position: Position
    ) -> list[ir.Statement]:
        counter = self._arrays.find(parameters[0], "counter")
        index = ("in", expressions.modulo(parameters[1], 32))
        return [call("count", index, instance=counter, position=position)]

    def _op_execute_meter(
        self, expressions: Expressions, parameters: Sequence[Part], position: Position
    ) -> list[ir.Statement]:
        meter = self._arrays.find(parameters[0], "meter")
        index = ("in", expressions.modulo(parameters[1], 32))
        result = ("out", expressions.place(parameters[2]))
        types = (result[1].type,)
        return [
            call("execute_meter", index, result, instance=meter, types=types, position=position)
        ]

    def _op_register_read(
        self, expressions: Expressions, parameters: Sequence[Part], position: Position
    ) -> list[ir.Statement]:
        target = expressions.place(parameters[0])
        register = self._arrays.find(parameters[1], "register")
        index = ("in", expressions.modulo(parameters[2], 32))
        kind = register.type_arguments[0]
        assert isinstance(target.type, ir.Bits)
        if target.type == kind:
            return [call("read", ("out", target), index, instance=register, position=position)]
        cell = self._variables("cell", kind)
        read = ir.Read(kind, cell)
        return [
            call("read", ("out", read), index, instance=register, position=position),
            ir.Assign(target, converted(read, target.type), position=position),
        ]

    def _op_register_write(
        self, expressions: Expressions, parameters: Sequence[Part], position: Position
    ) -> list[ir.Statement]:
        register = self._arrays.find(parameters[0], "register")
        kind = register.type_arguments[0]
        assert isinstance(kind, ir.Bits)
        index = ("in", expressions.modulo(parameters[1], 32))
        value = ("in", expressions.modulo(parameters[2], kind.width))
        return [call("write", index, value, instance=register, position=position)]

    # --- numbers

    def _op_modify_field_rng_uniform(
        self, expressions: Expressions, parameters: Sequence[Part], position: Position
    ) -> list[ir.Statement]:
        target = expressions.place(parameters[0])
        assert isinstance(target.type, ir.Bits)
        low, high = (expressions.modulo(value, target.type.width) for value in parameters[1:])
        arguments = (("out", target), ("in", low), ("in", high))
        return [call("random", *arguments, types=(target.type,), position=position)]

    def _op_modify_field_with_hash_based_offset(
        self, expressions: Expressions, parameters: Sequence[Part], position: Position
    ) -> list[ir.Statement]:
        target = expressions.place(parameters[0])
        name = parameters[2]["value"]
        data = self._calculations.data(name)
        arguments = (
            ("out", target),
            ("in", self._calculations.algorithm(name)),
            ("in", expressions.modulo(parameters[1], 64)),
            ("in", data),
            ("in", expressions.modulo(parameters[3], 64)),
        )
        types = (target.type, ir.Bits(64), data.type, ir.Bits(64))
        return [call("hash", *arguments, types=types, position=position)]

    # --- the packet's fate

    def _op_mark_to_drop(
        self, expressions: Expressions, parameters: Sequence[Part], position: Position
    ) -> list[ir.Statement]:
        """Mark a header of the type of standard_metadata, which may be a copy made by p4c."""
        marked = expressions.place(parameters[0])
        if not isinstance(marked.type, ir.Struct):
            raise self._document.error("expected metadata with a field egress_spec", parameters[0])
        expressions.headers.field_of(marked, "egress_spec", parameters[0])
        return [call("mark_to_drop", ("inout", marked), position=position)]

    def _op_drop(
        self, expressions: Expressions, parameters: Sequence[Part], position: Position
    ) -> list[ir.Statement]:
        return [call("mark_to_drop", position=position)]

    def _op_exit(
        self, expressions: Expressions, parameters: Sequence[Part], position: Position
    ) -> list[ir.Statement]:
        return [ir.Exit(position=position)]

    def _op_clone_ingress_pkt_to_egress(
        self, expressions: Expressions, parameters: Sequence[Part], position: Position
    ) -> list[ir.Statement]:
        return self._clone(INGRESS_CLONE, expressions, parameters, position)

    def _op_clone_egress_pkt_to_egress(
        self, expressions: Expressions, parameters: Sequence[Part], position: Position
    ) -> list[ir.Statement]:
        return self._clone(EGRESS_CLONE, expressions, parameters, position)

    def _clone(
        self, kind: int, expressions: Expressions, parameters: Sequence[Part], position: Position
    ) -> list[ir.Statement]:
        arguments = (
            ("in", ir.Const(ir.BIT32, kind)),
            ("in", expressions.modulo(parameters[0], 32)),
            ("in", self._field_list(expressions, parameters[1])),
        )
        return [call("clone_preserving_field_list", *arguments, position=position)]

    def _op_resubmit(
        self, expressions: Expressions, parameters: Sequence[Part], position: Position
    ) -> list[ir.Statement]:
        number = ("in", self._field_list(expressions, parameters[0]))
        return [call("resubmit_preserving_field_list", number, position=position)]

    def _op_recirculate(
        self, expressions: Expressions, parameters: Sequence[Part], position: Position
    ) -> list[ir.Statement]:
        number = ("in", self._field_list(expressions, parameters[0]))
        return [call("recirculate_preserving_field_list", number, position=position)]

    def _field_list(self, expressions: Expressions, value: Part) -> ir.Expression:
        return expressions.modulo(value, 16)

    def _op_truncate(
        self, expressions: Expressions, parameters: Sequence[Part], position: Position
    ) -> list[ir.Statement]:
        return [call("truncate", ("in", expressions.modulo(parameters[0], 32)), position=position)]

    def _op_generate_digest(
        self, expressions: Expressions, parameters: Sequence[Part], position: Position
    ) -> list[ir.Statement]:
        number = number_of(unwrapped(parameters[1])["value"])
        if number not in self._lists:
            raise self._document.error(f"there is no learn list {number}", parameters[1])
        part = self._lists[number]
        values = [self._element(expressions, item) for item in part["elements"]]
        data = self._digest(part, values)
        receiver = ("in", expressions.modulo(parameters[0], 32))
        return [call("digest", receiver, ("in", data), types=(data.type,), position=position)]

    def _element(self, expressions: Expressions, item: Part) -> ir.Expression:
        if item["type"] == "hexstr":
            width = self._document.width(item.get("bitwidth") or 32, item)
            return ir.Const(ir.Bits(width), number_of(item["value"]))
        return expressions.place(item)

    def _digest(self, part: Part, values: Sequence[ir.Expression]) -> ir.Build:
        """Return a struct with the list's name, which is also the digest's."""
        name = part["name"]
        if name not in self._types:
            identifiers = Identifiers()
            fields = []
            for index, (item, value) in enumerate(zip(part["elements"], values, strict=True)):
                own = item["value"][-1] if item["type"] == "field" else f"f{index}"
                fields.append(ir.FieldType(identifiers.of(f"{own}"), value.type))
            self._types[name] = ir.Struct(name, tuple(fields))
        return ir.Build(self._types[name], tuple(values))

    # --- assertions and messages

    def _op_assert(
        self, expressions: Expressions, parameters: Sequence[Part], position: Position
    ) -> list[ir.Statement]:
        return [call("assert", ("in", expressions.boolean(parameters[0])), position=position)]

    _op_assume = _op_assert

    def _op_log_msg(
        self, expressions: Expressions, parameters: Sequence[Part], position: Position
    ) -> list[ir.Statement]:
        text = ir.Const(ir.STRING, str(parameters[0]["value"]))
        values = [expressions.exact(value).expression for value in parameters[1]["value"]]
        if not values:
            return [call("log_msg", ("in", text), position=position)]
        self._messages += 1
        data = tuple_of(values, f"tuple_message{self._messages}", self._types)
        arguments = (("in", text), ("in", data))
        return [call("log_msg", *arguments, types=(data.type,), position=position)]
