"""Storage of variables: in the packet, in a C function or in the switch's frame.

The parameters of a package's blocks are the packet's headers and metadata: all blocks share
them, so nothing is copied between blocks. A variable that only one C function uses, and always sets
before reading, is a local of that function. All others are in the frame where, as in the reference
interpreter, they keep their value until they are set.
"""

from __future__ import annotations

from collections.abc import Sequence

from p4switch import ir
from p4switch.midend import visit
from p4switch.midend.call_graph import Function


class Usage:
    """The functions that use each variable, and variables that may be read before they are set."""

    def __init__(self, functions: Sequence[Function]) -> None:
        self.users: dict[ir.Variable, set[int]] = {}
        self.exposed: set[ir.Variable] = set()
        self._current = 0
        for function in functions:
            self._current = id(function)
            self._function(function)

    def is_local(self, variable: ir.Variable) -> bool:
        """Return whether the variable can be a local of its only function."""
        return variable not in self.exposed and len(self.users.get(variable, ())) <= 1

    def locals_of(self, function: Function) -> list[ir.Variable]:
        """Return the variables that only this function uses and that can be its locals."""
        return [
            v
            for v, users in self.users.items()
            if users == {id(function)} and v not in self.exposed
        ]

    def _function(self, function: Function) -> None:
        known: set[ir.Variable] = set()
        match function:
            case ir.Callable():
                self._body(function.body, known)
                if function.result is not None:
                    self._escape(function.result)
            case ir.Block():
                self._body(function.body, known)
                for state in function.states.values():
                    here = set(known)
                    self._body(state.body, here)
                    if isinstance(state.transition, ir.Select):
                        for expression in visit.select_expressions(state.transition):
                            self._read(expression, here)
            case ir.Table():
                self._body(function.key_code, known)
                for key in function.keys:
                    self._read(key.expression, known)
                for action in function.actions:
                    self._body(action.copy_in, set(known))
                    self._body(action.copy_out, set(known))
                    for parameter in action.action.data:
                        self._escape(parameter.variable)

    def _escape(self, variable: ir.Variable) -> None:
        self.exposed.add(variable)
        self.users.setdefault(variable, set()).add(self._current)

    def _read(self, expression: ir.Expression, known: set[ir.Variable]) -> None:
        for variable in visit.reads(expression):
            self.users.setdefault(variable, set()).add(self._current)
            if variable not in known:
                self.exposed.add(variable)

    def _set(self, variable: ir.Variable, known: set[ir.Variable]) -> None:
        self.users.setdefault(variable, set()).add(self._current)
        known.add(variable)

    def _body(self, body: Sequence[ir.Statement], known: set[ir.Variable]) -> None:
        for statement in body:
            self._statement(statement, known)

    def _statement(self, statement: ir.Statement, known: set[ir.Variable]) -> None:
        match statement:
            case ir.Declare():
                self._set(statement.variable, known)
            case ir.Assign():
                self._read(statement.value, known)
                if isinstance(statement.target, ir.Read):
                    self._set(statement.target.variable, known)
                else:
                    self._read(statement.target, known)
            case ir.If():
                self._read(statement.condition, known)
                self._branches([statement.then, statement.other], known)
            case ir.Switch():
                self._read(statement.subject, known)
                self._branches([*(b for _, b in statement.cases), statement.default], known)
            case ir.Loop():
                self._body(statement.condition_code, known)
                self._read(statement.condition, known)
                inside = set(known)
                self._body(statement.body, inside)
                self._body(statement.update, set(known))
            case ir.Call():
                self._body(statement.copy_out, known)
            case ir.ApplyTable():
                for variable in (statement.hit, statement.action_run):
                    if variable is not None:
                        self._set(variable, known)
            case _:
                for expression in visit.operands(statement):
                    self._read(expression, known)
                if isinstance(statement, ir.CallExtern) and statement.result is not None:
                    self._set(statement.result, known)

    def _branches(
        self, branches: Sequence[Sequence[ir.Statement]], known: set[ir.Variable]
    ) -> None:
        after: set[ir.Variable] | None = None
        for branch in branches:
            inside = set(known)
            self._body(branch, inside)
            after = inside if after is None else after & inside
        known |= after or set()
