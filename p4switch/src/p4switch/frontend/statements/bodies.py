"""Sequences of statements, and nested scopes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p4switch import ir
from p4switch.frontend.syntax import ast

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
        body.compiler.rules.statement(body, item)


def captured(body: Body, item: ast.Statement | ast.Declaration) -> list[ir.Statement]:
    """Lower a statement in a nested scope and return its code."""
    with body.capture() as code, body.nested_scope():
        body.compiler.rules.statement(body, item)
    return code


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
