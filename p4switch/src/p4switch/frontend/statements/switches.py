"""The switch statement, on a table's `action_run` and on values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p4switch import ir
from p4switch.frontend.constants import convert
from p4switch.frontend.expressions import evaluation
from p4switch.frontend.names import scope
from p4switch.frontend.names.operands import ActionRun
from p4switch.frontend.statements import bodies
from p4switch.frontend.syntax import ast
from p4switch.frontend.types import types

if TYPE_CHECKING:
    from collections.abc import Callable

    from p4switch.frontend.names.compilation import Body


def switch(body: Body, node: ast.Statement) -> None:
    """Lower a switch; labels without a body fall through to the next one that has one."""
    assert isinstance(node, ast.Switch)
    operand = evaluation.evaluate(body, node.subject)
    if isinstance(operand, ActionRun):
        if body.kind != "control":
            raise body.error(node.position, "'action_run' can only be used in an apply block")
        entity = operand.entity
        assert isinstance(entity, scope.TableEntity)
        table = entity
        _cases(body, node, operand.value, lambda label: _action_label(body, table, label))
        return
    subject = convert.plain(body, operand)
    kind = subject.type
    bare = types.underlying(kind)
    if isinstance(bare, types.Int):
        raise body.error(node.subject.position, "the subject of a switch needs a width")
    if not (isinstance(bare, (types.Bits, types.Enum)) or bare in (types.BOOL, types.ERROR)):
        raise body.error(node.subject.position, f"a switch cannot be on type '{kind}'")
    expression = convert.lowered(body, subject)
    if isinstance(expression.type, ir.Bool):
        expression = ir.Cast(ir.BIT, expression)

    def value_label(label: ast.Expression) -> int:
        value = evaluation.value(body, label, kind, "a label of this switch")
        if value.constant is None:
            raise body.error(label.position, "a label of a switch must be known when compiling")
        return int(value.constant)

    _cases(body, node, expression, value_label)


def _action_label(body: Body, entity: scope.TableEntity, label: ast.Expression) -> int:
    if not isinstance(label, ast.Name):
        raise body.error(
            label.position, "a label of a switch on 'action_run' is the name of an action"
        )
    index = entity.action_indices.get(label.name)
    if index is None:
        known = ", ".join(entity.action_indices)
        raise body.error(
            label.position,
            f"table '{entity.declaration.name}' has no action '{label.name}'; it has {known}",
        )
    return index


def _cases(
    body: Body, node: ast.Switch, subject: ir.Expression, number: Callable[[ast.Expression], int]
) -> None:
    cases: list[tuple[tuple[int, ...], list[ir.Statement]]] = []
    default: list[ir.Statement] = []
    pending: list[int] = []
    pending_default = False
    seen: set[int] = set()
    seen_default = False
    for case in node.cases:
        if seen_default:
            raise body.error(case.position, "'default' must be the last label of a switch")
        labels = [label for label in case.labels if not isinstance(label, ast.DefaultKeyset)]
        if len(labels) < len(case.labels) or not case.labels:
            seen_default = pending_default = True
        for label in labels:
            value = number(label)
            if value in seen:
                raise body.error(label.position, "this label is in the switch twice")
            seen.add(value)
            pending.append(value)
        if case.body is None:
            continue
        code = bodies.captured(body, case.body)
        if pending_default:
            # What falls through to the default's body runs it without being listed.
            default = code
        else:
            cases.append((tuple(pending), code))
        pending, pending_default = [], False
    body.emit(ir.Switch(subject, cases, default), node.position)
