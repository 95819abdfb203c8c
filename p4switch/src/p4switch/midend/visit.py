"""Walks over statements and expressions of the IR."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

from p4switch import ir


def children(expression: ir.Expression) -> Iterator[ir.Expression]:
    """Return the direct operands of an expression."""
    match expression:
        case ir.Field() | ir.StackNext() | ir.StackLast() | ir.StackLastIndex() | ir.Slice():
            yield expression.base
        case ir.Element():
            yield expression.base
            yield expression.index
        case ir.Unary() | ir.Cast():
            yield expression.operand
        case ir.Binary():
            yield expression.left
            yield expression.right
        case ir.Mux():
            yield expression.condition
            yield expression.then
            yield expression.other
        case ir.IsValid():
            yield expression.header
        case ir.Build():
            yield from expression.values


def reads(expression: ir.Expression) -> Iterator[ir.Variable]:
    """Yield every variable that an expression mentions."""
    stack = [expression]
    while stack:
        item = stack.pop()
        if isinstance(item, ir.Read):
            yield item.variable
        stack.extend(children(item))


def root(expression: ir.Expression) -> ir.Variable:
    """Return the variable an l-value is part of."""
    while not isinstance(expression, ir.Read):
        assert isinstance(
            expression, ir.Field | ir.Element | ir.StackNext | ir.StackLast | ir.Slice
        )
        expression = expression.base
    return expression.variable


def nested(statement: ir.Statement) -> Iterator[Sequence[ir.Statement]]:
    """Return the statement lists inside a statement, in order of execution."""
    match statement:
        case ir.If():
            yield statement.then
            yield statement.other
        case ir.Switch():
            for _, body in statement.cases:
                yield body
            yield statement.default
        case ir.Loop():
            yield statement.condition_code
            yield statement.body
            yield statement.update
        case ir.Call():
            yield statement.copy_out


def statements(body: Sequence[ir.Statement]) -> Iterator[ir.Statement]:
    """Yield all statements of a list, including nested ones."""
    for statement in body:
        yield statement
        for inner in nested(statement):
            yield from statements(inner)


def operands(statement: ir.Statement) -> Iterator[ir.Expression]:
    """Return the direct expressions of a statement, including l-values."""
    match statement:
        case ir.CallExtern():
            for argument in statement.arguments:
                yield argument.value
        case ir.Declare() | ir.Call() | ir.ApplyTable():
            return
        case _:
            for member in fields(statement):
                value = getattr(statement, member.name)
                if isinstance(value, ir.Expression):
                    yield value


def block_bodies(block: ir.Block) -> Iterator[Sequence[ir.Statement]]:
    """Return the statement lists of a block, including those of states."""
    yield block.body
    for state in block.states.values():
        yield state.body


def table_bodies(table: ir.Table) -> Iterator[Sequence[ir.Statement]]:
    """Return the statement lists of a table."""
    yield table.key_code
    for action in table.actions:
        yield action.copy_in
        yield action.copy_out


def select_expressions(select: ir.Select) -> Iterator[ir.Expression]:
    """Yield the subjects and key sets of a select."""
    yield from select.subjects
    for keys, _ in select.cases:
        for key in keys:
            match key:
                case ir.Exactly():
                    yield key.value
                case ir.Masked():
                    yield key.value
                    yield key.mask
                case ir.Between():
                    yield key.low
                    yield key.high
