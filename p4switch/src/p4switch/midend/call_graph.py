"""The call graph of blocks, tables, actions and functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from p4switch import ir
from p4switch.midend import visit

Function = ir.Callable | ir.Block | ir.Table
"""Objects that contain code."""


def callees(function: Function) -> Iterator[Function]:
    """Return the functions that a function calls directly."""
    for body in bodies(function):
        for statement in visit.statements(body):
            if isinstance(statement, ir.Call):
                yield statement.callee
            elif isinstance(statement, ir.ApplyTable):
                yield statement.table
    if isinstance(function, ir.Table):
        for action in function.actions:
            yield action.action


def bodies(function: Function) -> Iterator[Sequence[ir.Statement]]:
    """Return the statement lists of a function."""
    if isinstance(function, ir.Table):
        yield from visit.table_bodies(function)
    elif isinstance(function, ir.Block):
        yield from visit.block_bodies(function)
    else:
        yield function.body


def reachable(roots: Iterable[ir.Block]) -> list[Function]:
    """Return all functions that the roots need, callees before their callers."""
    order: list[Function] = []
    seen: set[int] = set()

    def enter(function: Function) -> None:
        if id(function) in seen:
            return
        seen.add(id(function))
        for callee in callees(function):
            enter(callee)
        order.append(function)

    for block in roots:
        enter(block)
    return order
