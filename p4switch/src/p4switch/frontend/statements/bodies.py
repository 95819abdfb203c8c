"""Sequences of statements, and nested scopes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p4switch import ir
from p4switch.frontend.syntax import ast
from p4switch.midend import visit
from p4switch.midend.initialisation import unassigned_reads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from p4switch.frontend.names.compilation import Body


def block(body: Body, node: ast.Block) -> None:
    """Lower a block; its declarations are visible inside it only."""
    with body.nested_scope():
        several(body, node.body)


def several(body: Body, items: Sequence[ast.Statement | ast.Declaration]) -> None:
    """Lower statements and declarations in the present scope."""
    for item in items:
        _one(body, item)


def captured(body: Body, item: ast.Statement | ast.Declaration) -> list[ir.Statement]:
    """Lower a statement in a nested scope and return its code."""
    with body.capture() as code, body.nested_scope():
        _one(body, item)
    return code


def _one(body: Body, item: ast.Statement | ast.Declaration) -> None:
    """Lower one statement, and go on after an error in it."""
    name = item.name if isinstance(item, ast.Declaration) else ""
    with body.compiler.recovering(body.scope if name else None, name):
        body.compiler.rules.statement(body, item)


def warn_of_reads(body: Body) -> None:
    """Warn of variables of the code that may be read before they have a value."""
    declared = {
        statement.variable
        for statement in visit.statements(body.code)
        if isinstance(statement, ir.Declare)
    }
    names = {v: n for v, n in body.compiler.without_value.items() if v in declared}
    if names:
        for position, name in unassigned_reads(body.code, names):
            body.compiler.warn(position, f"'{name}' may have no value yet here")


def always_returns(code: Sequence[ir.Statement]) -> bool:
    """Return whether the end of some code is never reached."""
    if not code:
        return False
    last = code[-1]
    if isinstance(last, (ir.Return, ir.Exit)):
        return True
    if isinstance(last, ir.If):
        return always_returns(last.then) and always_returns(last.other)
    if isinstance(last, ir.Switch):
        return always_returns(last.default) and all(always_returns(c) for _, c in last.cases)
    return False
