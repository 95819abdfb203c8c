"""The code of a program: its parsers, controls, actions, functions and tables, ready to run."""

from __future__ import annotations

from collections.abc import Callable as Function

from p4switch import ir
from p4switch.backends.reference.expressions import Evaluate
from p4switch.backends.reference.host import Host
from p4switch.backends.reference.parsers import Parsers
from p4switch.backends.reference.statements import Execute
from p4switch.backends.reference.values import from_bits, to_bits


class Code(Parsers):
    """A program's callables and tables, each made on demand.

    Sections are those of the P4_16 specification 1.2.5.
    """

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._callees: dict[ir.Callable | ir.Block, Execute] = {}
        self._tables: dict[ir.Table, Function[[], tuple[bool, int]]] = {}

    def callee(self, callee: ir.Callable | ir.Block) -> Execute:
        """Return what runs an action (14.1), function (10), control (14.4) or parser (13.10).

        Its parameters are set before the call. Its result is for internal use.
        """
        run = self._callees.get(callee)
        if run is None:
            if isinstance(callee, ir.Block) and callee.kind == "parser":
                run = self.parser(callee)
            else:
                run = self.statements(callee.body)
            self._callees[callee] = run
        return run

    def table(self, table: ir.Table) -> Function[[], tuple[bool, int]]:
        """Return a function that applies a table: keys, look-up, action (14.2.2).

        It returns whether the table hit, and the action's index.
        """
        apply = self._tables.get(table)
        if apply is None:
            apply = self._tables[table] = self._table(table)
        return apply

    def _table(self, table: ir.Table) -> Function[[], tuple[bool, int]]:
        host = self.host.table_runtime(table)
        key_code = self.statements(table.key_code)
        keys: list[tuple[ir.Type, int, Evaluate]] = []
        selectors: list[tuple[ir.Type, int, Evaluate]] = []
        for key in table.keys:
            part = (key.expression.type, key.width, self.expressions.evaluator(key.expression))
            (selectors if key.match_kind == "selector" else keys).append(part)
        host.actions = [self._table_action(action) for action in table.actions]

        def apply() -> tuple[bool, int]:
            key_code()
            return host.apply(
                tuple([to_bits(kind, value()) for kind, _, value in keys]),
                tuple([(to_bits(kind, value()), width) for kind, width, value in selectors]),
            )

        return apply

    def _table_action(self, table_action: ir.TableAction) -> Function[..., None]:
        """Return a function of the action's data, unsigned as in the control plane (14.1.1).

        Arguments in the table's list of actions are bound by copy-in and copy-out.
        """
        data = [
            (self.expressions.cell(parameter.variable), parameter.variable.type)
            for parameter in table_action.action.data
        ]
        copy_in = self.statements(table_action.copy_in)
        call = self.later(
            lambda: self.call(self.callee(table_action.action), table_action.copy_out)
        )

        def run(*arguments: int) -> None:
            for (cell, kind), argument in zip(data, arguments, strict=True):
                cell.value = from_bits(kind, argument)
            copy_in()
            call()

        return run
