"""The parser: its states with their operations and transitions."""

from __future__ import annotations

from collections.abc import Callable

from p4switch import ir
from p4switch.bmv2_json.control_plane import ControlPlane
from p4switch.bmv2_json.document import Document, Part, number_of, unwrapped
from p4switch.bmv2_json.expressions import Expressions
from p4switch.bmv2_json.primitives import Primitives

START, ACCEPT, REJECT = "start", "accept", "reject"
DEFAULT_VALUE_SET_SIZE = 1024
"""Size of value sets in files that state none."""


class Parser:
    """Translates the parser of a file."""

    def __init__(
        self,
        document: Document,
        expressions: Expressions,
        primitives: Primitives,
        control_plane: ControlPlane,
        variables: Callable[[str, ir.Type], ir.Variable],
        error_value: Callable[[int], int],
    ) -> None:
        """`error_value` maps the file's error numbers to this program's."""
        self._document = document
        self._expressions = expressions
        self._primitives = primitives
        self._control_plane = control_plane
        self._variables = variables
        self._error_value = error_value
        self._set_parts = {part["name"]: part for part in document.parts("parse_vsets")}
        self.value_sets: dict[str, ir.ValueSet] = {}

    def block(self, part: Part, parameters: tuple[ir.Parameter, ...]) -> ir.Block:
        """Return the parser."""
        names = _state_names(part)
        states = {}
        for state in part["parse_states"]:
            made = self._state(state, names)
            states[made.name] = made
        if START not in states:
            states[START] = ir.State(START, [], ir.Goto(ACCEPT))
        return ir.Block(part["name"], "parser", part["name"], parameters, [], states)

    def _state(self, part: Part, names: dict[str, str]) -> ir.State:
        body: list[ir.Statement] = []
        for operation in part["parser_ops"]:
            body += self._operation(operation)
        transition = self._transition(part, names, body)
        return ir.State(names[part["name"]], body, transition)

    # --- operations

    def _operation(self, part: Part) -> list[ir.Statement]:
        position = self._document.position(part)
        parameters = part["parameters"]
        match part["op"]:
            case "extract" | "extract_VL":
                width = None
                if part["op"] == "extract_VL":
                    width = self._expressions.modulo(parameters[1], 32)
                target = self._extracted(parameters[0])
                if width is None and _has_varbit(target.type):
                    raise self._document.unsupported("a header's own length_exp", part)
                return [ir.Extract(target, width, position=position)]
            case "verify":
                return [self._verify(parameters, part)]
            case "shift":
                bits = ir.Const(ir.BIT32, 8 * number_of(parameters[0]))
                return [ir.Advance(bits, position=position)]
            case "advance":
                bits_wanted = self._expressions.modulo(parameters[0], 32)
                return [ir.Advance(bits_wanted, position=position)]
            case "primitive":
                return self._primitives.statements(parameters[0], self._expressions)
        return self._primitives.statements(part, self._expressions)

    def _extracted(self, value: Part) -> ir.Expression:
        headers = self._expressions.headers
        if value["type"] == "regular":
            return headers.header(value["value"], value)
        name, member = value["value"], None
        if value["type"] == "union_stack":
            name, member = value["value"]
        elif value["type"] != "stack":
            raise self._document.error(f"extraction to a {value['type']!r}", value)
        stack = headers.stack(name, value)
        if not isinstance(stack.type, ir.Stack):
            raise self._document.error(f"{name!r} is not a stack", value)
        following = ir.StackNext(stack.type.element, stack)
        if member is None:
            return following
        return self._expressions.union_member(following, member, value)

    def _verify(self, parameters: list[Part], part: Part) -> ir.Statement:
        condition = self._expressions.boolean(parameters[0])
        code = parameters[1]
        if isinstance(code, int):
            number = code
        else:
            value = unwrapped(code)
            if value["type"] != "hexstr":
                raise self._document.unsupported("an error that is not constant", part)
            number = number_of(value["value"])
        error = ir.Const(ir.BIT32, self._error_value(number))
        return ir.Verify(condition, error, position=self._document.position(part))

    # --- transitions

    def _transition(
        self, part: Part, names: dict[str, str], body: list[ir.Statement]
    ) -> ir.Goto | ir.Select:
        transitions = part["transitions"]
        subjects = tuple(self._subject(value, body) for value in part["transition_key"])
        if not subjects:
            return ir.Goto(_next(transitions[0], names) if transitions else ACCEPT)
        cases: list[tuple[tuple[ir.KeySet, ...], str]] = []
        for transition in transitions:
            cases.append((self._key_sets(transition, subjects), _next(transition, names)))
        return ir.Select(subjects, cases)

    def _subject(self, value: Part, body: list[ir.Statement]) -> ir.Expression:
        if value["type"] != "lookahead":
            return self._expressions.exact(value).expression
        ahead = self._variables("key", ir.Bits(value["value"][1]))
        read = ir.Read(ahead.type, ahead)
        body += self._primitives.lookahead(read, value, self._document.position(value))
        return read

    def _key_sets(
        self, transition: Part, subjects: tuple[ir.Expression, ...]
    ) -> tuple[ir.KeySet, ...]:
        kind = transition.get("type")
        value, mask = transition["value"], transition.get("mask")
        if kind == "default" or value == "default":
            return tuple(ir.Anything() for _ in subjects)
        if kind == "parse_vset":
            if mask is not None:
                raise self._document.unsupported("a mask of a value set", transition)
            return (ir.InValueSet(self._value_set(value, subjects)),)
        values = _pieces(number_of(value), subjects)
        if mask is None:
            return tuple(ir.Exactly(piece) for piece in values)
        masks = _pieces(number_of(mask), subjects)
        return tuple(ir.Masked(*pair) for pair in zip(values, masks, strict=True))

    def _value_set(self, name: str, subjects: tuple[ir.Expression, ...]) -> ir.ValueSet:
        kinds = [subject.type for subject in subjects]
        if name in self.value_sets:
            found = self.value_sets[name]
            members = (
                [f.type for f in found.type.fields]
                if isinstance(found.type, ir.Struct)
                else [found.type]
            )
            if members != kinds:
                raise self._document.unsupported(f"value set {name!r} for keys of several forms")
            return found
        if name not in self._set_parts:
            raise self._document.error(f"there is no value set {name!r}")
        known = self._control_plane.value_set(name)
        size = int(self._set_parts[name].get("max_size") or DEFAULT_VALUE_SET_SIZE)
        size, shown = known or (size, [])
        names = [item for item, _ in shown] or [f"f{index}" for index in range(len(kinds))]
        kind: ir.Type = kinds[0]
        if len(kinds) > 1:
            fields = tuple(ir.FieldType(*pair) for pair in zip(names, kinds, strict=True))
            kind = ir.Struct(f"{name} members", fields)
        made = self.value_sets[name] = ir.ValueSet(
            name,
            kind,
            size,
            ("exact",) * len(kinds),
            self._control_plane.annotations("value_sets", name),
        )
        return made


def _state_names(part: Part) -> dict[str, str]:
    """Return the states' names, with `start` for the initial one."""
    first = part["init_state"]
    names = {}
    for state in part["parse_states"]:
        name = state["name"]
        if name == first:
            names[name] = START
        else:
            names[name] = f"{name}_" if name in (START, ACCEPT, REJECT) else name
    return names


def _next(transition: Part, names: dict[str, str]) -> str:
    following = transition["next_state"]
    return ACCEPT if following is None else names[following]


def _has_varbit(kind: ir.Type) -> bool:
    return isinstance(kind, ir.Header) and any(
        isinstance(field.type, ir.Varbit) for field in kind.fields
    )


def _pieces(number: int, subjects: tuple[ir.Expression, ...]) -> list[ir.Expression]:
    """Split a transition's value: each subject's part fills whole bytes."""
    pieces: list[ir.Expression] = []
    for subject in reversed(subjects):
        kind = subject.type
        assert isinstance(kind, ir.Bits)
        value = number & (1 << kind.width) - 1
        if kind.signed and value >> kind.width - 1:
            value -= 1 << kind.width
        pieces.append(ir.Const(kind, value))
        number >>= (kind.width + 7) // 8 * 8
    return pieces[::-1]
