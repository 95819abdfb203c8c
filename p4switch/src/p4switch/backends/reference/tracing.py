"""A translator whose functions tell a tracer what they do."""

from __future__ import annotations

from collections.abc import Callable as Function
from typing import Any

from p4switch import ir
from p4switch.backends.reference.trace import Tracer
from p4switch.backends.reference.translate import Body, Host, Translator
from p4switch.backends.reference.values import Object, is_object
from p4switch.position import Position

WATCHED_FIELDS = frozenset({"egress_spec", "mcast_grp"})
"""Of standard_metadata: assignments to them are events."""

EXTERN_KINDS = ("clone", "resubmit", "recirculate", "digest")
"""Externs whose names begin so are events of that kind."""


class TracingTranslator(Translator):
    """Add calls of the tracer to the generated statements."""

    def __init__(
        self, program: ir.Program, namespace: dict[str, Object], host: Host, tracer: Tracer
    ) -> None:
        super().__init__(program, namespace, host)
        self._tracer = tracer
        self._notes = 0
        self._state_note: Function[[], None] | None = None
        self._parameters = {
            id(parameter.variable): parameter.name
            for block in program.blocks
            for parameter in block.parameters
        }

    def _note(self, body: Body, function: Function[..., None], arguments: str = "") -> None:
        self._notes += 1
        name = f"note{self._notes}"
        self.namespace[name] = function
        body.add(f"{name}({arguments})")

    def _shown(self, expression: ir.Expression) -> str:
        """Return an l-value as the source has it, more or less."""
        match expression:
            case ir.Read(variable=variable):
                return self._parameters.get(id(variable), variable.name)
            case ir.Field(base=base, name=name):
                return f"{self._shown(base)}.{name}"
            case ir.Element(base=base, index=ir.Const(value=value)):
                return f"{self._shown(base)}[{value}]"
            case ir.Element(base=base):
                return f"{self._shown(base)}[...]"
            case ir.StackNext(base=base):
                return f"{self._shown(base)}.next"
            case ir.StackLast(base=base):
                return f"{self._shown(base)}.last"
            case ir.Slice(base=base, high=high, low=low):
                return f"{self._shown(base)}[{high}:{low}]"
            case _:
                return "..."

    # --- what is noted

    def _write_state(self, name: str, block: ir.Block, state: ir.State) -> None:
        tracer, label = self._tracer, f"{block.name}.{state.name}"
        self._state_note = lambda: tracer.note("state", label)
        super()._write_state(name, block, state)

    def statements(self, body: Body, statements: Any) -> None:
        """See `Translator`; a state tells first that it was come to."""
        note, self._state_note = self._state_note, None
        if note is not None:
            self._note(body, note)
        super().statements(body, statements)

    def _statement(self, body: Body, statement: ir.Statement) -> None:
        match statement:
            case ir.Extract():
                super()._statement(body, statement)
                self._note_extract(body, statement)
                return
            case ir.Assign(target=ir.Field(name=name) as target) if name in WATCHED_FIELDS:
                super()._statement(body, statement)
                self._note_assign(body, target, statement.position)
                return
            case ir.SetValid(header=header, valid=valid):
                kind = "set_valid" if valid else "set_invalid"
                self._note_plain(body, kind, self._shown(header), statement.position)
            case ir.Call(callee=ir.Callable(is_action=True) as action):
                self._note_action(body, action, statement.position)
            case ir.CallExtern():
                self._note_extern(body, statement)
            case _:
                pass
        super()._statement(body, statement)

    def _note_plain(self, body: Body, kind: str, name: str, position: Position) -> None:
        tracer = self._tracer
        self._note(body, lambda: tracer.note(kind, name, position))

    def _note_extract(self, body: Body, statement: ir.Extract) -> None:
        """`next` has gone on already: it is the last one now."""
        tracer, target = self._tracer, statement.target
        assert isinstance(target.type, ir.Header)
        fields = [(member.name, f"f_{member.name}") for member in target.type.fields]
        name, position = self._shown(target), statement.position
        stack: ir.Expression | None = None
        if isinstance(target, ir.StackNext):
            name, stack = self._shown(target.base), target.base
            target = ir.StackLast(target.type, stack)

        def note(header: Any, index: int) -> None:
            values = {label: _plain(getattr(header, slot)) for label, slot in fields}
            label = name if index < 0 else f"{name}[{index}]"
            tracer.note("extract", label, position, fields=values)

        index = f"{self.expressions.text(stack)}.next_index - 1" if stack is not None else "-1"
        self._note(body, note, f"{self.expressions.text(target)}, {index}")

    def _note_assign(self, body: Body, target: ir.Field, position: Position) -> None:
        tracer, name = self._tracer, self._shown(target)

        def note(value: int) -> None:
            tracer.port_set = position
            tracer.note("assign", name, position, value=value)

        self._note(body, note, self.expressions.text(target))

    def _note_action(self, body: Body, action: ir.Callable, position: Position) -> None:
        tracer, name = self._tracer, action.name
        given = [p for p in action.parameters if not is_object(p.variable.type)]
        labels = [parameter.name for parameter in given]

        def note(*values: object) -> None:
            arguments = dict(zip(labels, map(_plain, values), strict=True))
            tracer.note("action", name, position, arguments=arguments)

        self._note(body, note, ", ".join(self.variable(p.variable) for p in given))

    def _note_extern(self, body: Body, call: ir.CallExtern) -> None:
        tracer, position = self._tracer, call.position
        given = [
            argument
            for argument in call.arguments
            if argument.direction != "out" and not is_object(argument.value.type)
        ]
        labels = [argument.name for argument in given]
        kind = next((k for k in EXTERN_KINDS if call.method.startswith(k)), "extern")
        name = call.method
        if call.instance is not None:
            name = call.instance.name
            kind = "register_write" if call.method == "write" else kind
            if kind == "extern":
                name = f"{name}.{call.method}"
        drops = call.method == "mark_to_drop"

        def note(*values: object) -> None:
            if drops:
                tracer.port_set = position
            arguments = dict(zip(labels, map(_plain, values), strict=True))
            tracer.note(kind, name, position, arguments=arguments)

        self._note(body, note, ", ".join(self.expressions.text(a.value) for a in given))


def _plain(value: Any) -> Any:
    """Return a scalar as it is; a varbit's value; what is left as text."""
    if isinstance(value, (int, str)):
        return value
    if isinstance(value, tuple) and value:
        return value[0]
    return str(type(value).__name__)
