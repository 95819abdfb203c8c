"""Variables that are read although no assignment has come before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from p4switch import ir
from p4switch.midend import visit
from p4switch.position import Position

Assigned = frozenset[ir.Variable]


def unassigned_reads(
    body: Sequence[ir.Statement], names: Mapping[ir.Variable, str]
) -> Iterator[tuple[Position, str]]:
    """Yield place and name where one of some variables is read that may have no value yet.

    Each variable once. A call, or a table's action, may assign any of them.
    """
    found: dict[ir.Variable, Position] = {}
    _Walk(names, found).body(body, frozenset())
    for variable, position in found.items():
        yield position, names[variable]


class _Walk:
    """Follows the ways through some code; None is the end of one."""

    def __init__(
        self, names: Mapping[ir.Variable, str], found: dict[ir.Variable, Position]
    ) -> None:
        self._names = names
        self._found = found

    def body(self, body: Sequence[ir.Statement], before: Assigned | None) -> Assigned | None:
        now = before
        for statement in body:
            if now is None:
                break
            now = self._statement(statement, now)
        return now

    def _statement(self, statement: ir.Statement, now: Assigned) -> Assigned | None:
        match statement:
            case ir.Return() | ir.Exit() | ir.Break() | ir.Continue():
                return None
            case ir.Call() | ir.ApplyTable():
                return now.union(self._names)
            case ir.Assign():
                self._read(statement.value, now, statement.position)
                return now | {visit.root(statement.target)}
            case ir.Extract() | ir.Lookahead() | ir.PacketLength():
                return now | {visit.root(statement.target)}
            case ir.CallExtern():
                for argument in statement.arguments:
                    if argument.direction != "out":
                        self._read(argument.value, now, statement.position)
                out = {visit.root(a.value) for a in statement.arguments if "out" in a.direction}
                return now | out | ({statement.result} if statement.result is not None else set())
            case ir.If() | ir.Switch():
                for expression in visit.operands(statement):
                    self._read(expression, now, statement.position)
                ends = [self.body(inner, now) for inner in visit.nested(statement)]
                reached = [end for end in ends if end is not None]
                return frozenset.intersection(*reached) if reached else None
            case ir.Loop():
                after = self.body(statement.condition_code, now)
                if after is not None:
                    self._read(statement.condition, after, statement.position)
                    self.body([*statement.body, *statement.update], after)
                return after
        for expression in visit.operands(statement):
            self._read(expression, now, statement.position)
        return now

    def _read(self, expression: ir.Expression, now: Assigned, position: Position) -> None:
        for variable in visit.reads(expression):
            if variable in self._names and variable not in now:
                self._found.setdefault(variable, position)
