"""Code that reports its steps to a tracer."""

from __future__ import annotations

from typing import Any

from p4switch import ir
from p4switch.backends.reference.code import Code
from p4switch.backends.reference.expressions import Evaluate
from p4switch.backends.reference.host import Host
from p4switch.backends.reference.statements import Execute, Flow
from p4switch.backends.reference.trace import Tracer
from p4switch.backends.reference.values import is_object
from p4switch.midend.architecture import architecture_of

EXTERN_KINDS = ("clone", "resubmit", "recirculate", "digest")
"""Prefixes of externs whose calls are events of that kind."""


class TracingCode(Code):
    """Add events before and after statements."""

    def __init__(self, host: Host, tracer: Tracer, program: ir.Program) -> None:
        super().__init__(host)
        self._tracer = tracer
        self._watched = architecture_of(program.package).watched
        self._parameters = {
            parameter.variable: parameter.name
            for block in program.blocks
            for parameter in block.parameters
        }

    def _shown(self, expression: ir.Expression) -> str:
        """Return an l-value approximately as in the source."""
        match expression:
            case ir.Read(variable=variable):
                return self._parameters.get(variable, variable.name)
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

    def state(self, block: ir.Block, state: ir.State) -> Any:
        """See `Parsers`; a state first reports that it was entered."""
        run, label = super().state(block, state), f"{block.name}.{state.name}"

        def noted() -> str:
            self._tracer.note("state", label)
            following: str = run()
            return following

        return noted

    def statement(self, statement: ir.Statement) -> Execute:
        """See `Statements`."""
        run = super().statement(statement)
        match statement:
            case ir.Extract():
                return _one_after_the_other(run, self._note_extract(statement))
            case ir.Assign(target=ir.Field(name=name) as target) if name in self._watched:
                return _one_after_the_other(run, self._note_assign(target, statement))
            case ir.SetValid():
                return _one_after_the_other(self._note_validity(statement), run)
            case ir.Call(callee=ir.Callable(is_action=True) as action):
                return _one_after_the_other(self._note_action(action, statement), run)
            case ir.CallExtern():
                return _one_after_the_other(self._note_extern(statement), run)
        return run

    def _note_validity(self, statement: ir.SetValid) -> Execute:
        kind = "set_valid" if statement.valid else "set_invalid"
        name, position = self._shown(statement.header), statement.position
        return lambda: self._tracer.note(kind, name, position)

    def _note_extract(self, statement: ir.Extract) -> Execute:
        """Note an extraction; `next` has already advanced, so its header is `last` now."""
        target, position = statement.target, statement.position
        name = self._shown(target)
        stack: Evaluate | None = None
        if isinstance(target, ir.StackNext):
            name, stack = self._shown(target.base), self.expressions.evaluator(target.base)
            target = ir.StackLast(target.type, target.base)
        header = self.expressions.evaluator(target)

        def note() -> None:
            fields = {field: _plain(value) for field, value in header().fields.items()}
            label = name if stack is None else f"{name}[{stack().next_index - 1}]"
            self._tracer.note("extract", label, position, fields=fields)

        return note

    def _note_assign(self, target: ir.Field, statement: ir.Assign) -> Execute:
        name, position = self._shown(target), statement.position
        value = self.expressions.evaluator(target)

        def note() -> None:
            self._tracer.port_set = position
            self._tracer.note("assign", name, position, value=value())

        return note

    def _note_action(self, action: ir.Callable, statement: ir.Call) -> Execute:
        given = {
            parameter.name: self.expressions.cell(parameter.variable)
            for parameter in action.parameters
            if not is_object(parameter.variable.type)
        }

        def note() -> None:
            arguments = {name: _plain(cell.value) for name, cell in given.items()}
            self._tracer.note("action", action.name, statement.position, arguments=arguments)

        return note

    def _note_extern(self, call: ir.CallExtern) -> Execute:
        given = {
            argument.name: self.expressions.evaluator(argument.value)
            for argument in call.arguments
            if argument.direction != "out" and not is_object(argument.value.type)
        }
        kind = next((k for k in EXTERN_KINDS if call.method.startswith(k)), "extern")
        name = call.method
        if call.instance is not None:
            name = call.instance.name
            kind = "register_write" if call.method == "write" else kind
            if kind == "extern":
                name = f"{name}.{call.method}"
        drops = call.method == "mark_to_drop"

        def note() -> None:
            if drops:
                self._tracer.port_set = call.position
            arguments = {label: _plain(value()) for label, value in given.items()}
            self._tracer.note(kind, name, call.position, arguments=arguments)

        return note


def _one_after_the_other(first: Execute, second: Execute) -> Execute:
    def both() -> Flow | None:
        return first() or second()

    return both


def _plain(value: Any) -> Any:
    """Return a scalar unchanged, the value of a varbit, and all else as text."""
    if isinstance(value, (int, str)):
        return value
    if isinstance(value, tuple) and value:
        return value[0]
    return str(type(value).__name__)
