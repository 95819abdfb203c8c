"""Rewriting of variables in lowered code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from p4switch import ir


class Rewriter:
    """Replaces variables by expressions throughout a program."""

    def __init__(self, places: Mapping[ir.Variable, ir.Expression]) -> None:
        self._places = places
        self._done: dict[int, ir.Expression] = {}
        self._kept: list[ir.Expression] = []

    def block(self, block: ir.Block) -> None:
        """Rewrite a block in place."""
        self.code(block.body)
        for state in block.states.values():
            self.code(state.body)
            if isinstance(state.transition, ir.Select):
                select = state.transition
                select.subjects = tuple(self.expression(e) for e in select.subjects)
                for keysets, _ in select.cases:
                    for keyset in keysets:
                        self._keyset(keyset)

    def table(self, table: ir.Table) -> None:
        """Rewrite a table in place."""
        self.code(table.key_code)
        for key in table.keys:
            key.expression = self.expression(key.expression)
        for action in table.actions:
            self.code(action.copy_in)
            self.code(action.copy_out)

    def _keyset(self, keyset: ir.KeySet) -> None:
        if isinstance(keyset, ir.Exactly):
            keyset.value = self.expression(keyset.value)
        elif isinstance(keyset, ir.Masked):
            keyset.value = self.expression(keyset.value)
            keyset.mask = self.expression(keyset.mask)
        elif isinstance(keyset, ir.Between):
            keyset.low = self.expression(keyset.low)
            keyset.high = self.expression(keyset.high)

    # --- Statements --------------------------------------------------------------------------

    def code(self, code: Iterable[ir.Statement]) -> None:
        """Rewrite statements in place."""
        for statement in code:
            self._statement(statement)

    def _statement(self, statement: ir.Statement) -> None:
        match statement:
            case ir.Assign():
                statement.target = self.expression(statement.target)
                statement.value = self.expression(statement.value)
            case ir.If():
                statement.condition = self.expression(statement.condition)
                self.code(statement.then)
                self.code(statement.other)
            case ir.Switch():
                statement.subject = self.expression(statement.subject)
                for _, body in statement.cases:
                    self.code(body)
                self.code(statement.default)
            case ir.Loop():
                self.code(statement.condition_code)
                statement.condition = self.expression(statement.condition)
                self.code(statement.body)
                self.code(statement.update)
            case ir.Call():
                self.code(statement.copy_out)
            case ir.CallExtern():
                for argument in statement.arguments:
                    argument.value = self.expression(argument.value)
            case _:
                self._packet_statement(statement)

    def _packet_statement(self, statement: ir.Statement) -> None:
        match statement:
            case ir.Extract():
                statement.target = self.expression(statement.target)
                if statement.varbit_width is not None:
                    statement.varbit_width = self.expression(statement.varbit_width)
            case ir.Lookahead() | ir.PacketLength():
                statement.target = self.expression(statement.target)
            case ir.Advance():
                statement.bits = self.expression(statement.bits)
            case ir.Emit():
                statement.value = self.expression(statement.value)
            case ir.Verify():
                statement.condition = self.expression(statement.condition)
                statement.error = self.expression(statement.error)
            case ir.SetValid():
                statement.header = self.expression(statement.header)
            case ir.Push():
                statement.stack = self.expression(statement.stack)

    # --- Expressions -------------------------------------------------------------------------

    def expression(self, expression: ir.Expression) -> ir.Expression:
        """Rewrite an expression; an unchanged one is returned itself."""
        if isinstance(expression, (ir.Const, ir.Invalid)):
            return expression
        if isinstance(expression, ir.Read):
            place = self._places.get(expression.variable)
            return expression if place is None else self.expression(place)
        known = self._done.get(id(expression))
        if known is None:
            known = self._rebuilt(expression)
            self._done[id(expression)] = known
            self._kept.append(expression)  # Keep a reference, so that its id stays unique.
        return known

    def _rebuilt(self, old: ir.Expression) -> ir.Expression:
        match old:
            case ir.Field():
                base = self.expression(old.base)
                return old if base is old.base else ir.Field(old.type, base, old.name)
            case ir.Slice():
                base = self.expression(old.base)
                return old if base is old.base else ir.Slice(old.type, base, old.high, old.low)
            case ir.Element():
                return ir.Element(old.type, self.expression(old.base), self.expression(old.index))
            case ir.StackNext() | ir.StackLast() | ir.StackLastIndex():
                return type(old)(old.type, self.expression(old.base))
            case ir.Unary():
                return ir.Unary(old.type, old.operator, self.expression(old.operand))
            case ir.Cast():
                return ir.Cast(old.type, self.expression(old.operand))
            case ir.Binary():
                return ir.Binary(
                    old.type, old.operator, self.expression(old.left), self.expression(old.right)
                )
            case ir.Mux():
                return ir.Mux(
                    old.type,
                    self.expression(old.condition),
                    self.expression(old.then),
                    self.expression(old.other),
                )
            case ir.IsValid():
                return ir.IsValid(old.type, self.expression(old.header))
            case ir.Build():
                return ir.Build(old.type, tuple(self.expression(v) for v in old.values))
        return old
