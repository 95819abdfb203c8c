"""Statements and local declarations, lowered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p4switch import ir
from p4switch.frontend.constants import constants, convert
from p4switch.frontend.expressions import (
    arguments,
    calls,
    evaluation,
    operators,
    resolve,
    slices,
)
from p4switch.frontend.names import scope
from p4switch.frontend.names.compilation import declare
from p4switch.frontend.names.operands import EntityOperand
from p4switch.frontend.names.values import Value
from p4switch.frontend.statements import bodies, loops, switches
from p4switch.frontend.syntax import ast
from p4switch.frontend.types import types

if TYPE_CHECKING:
    from collections.abc import Callable

    from p4switch.frontend.names.compilation import Body


def one(body: Body, item: ast.Statement | ast.Declaration) -> None:
    """Lower a statement or a declaration among statements."""
    if isinstance(item, ast.Declaration):
        declaration(body, item)
        return
    handler = _HANDLERS.get(type(item))
    if handler is None:
        raise body.compiler.unsupported(item.position, "this statement is not supported")
    handler(body, item)


# --- Declarations ----------------------------------------------------------------------------


def declaration(body: Body, item: ast.Declaration) -> None:
    """Lower a variable or constant declared among statements or as a local of a block."""
    if isinstance(item, ast.VariableDeclaration):
        _variable(body, item)
    elif isinstance(item, ast.ConstDeclaration):
        constant(body, item)
    elif isinstance(item, ast.Instantiation) and body.kind == "parser":
        body.compiler.rules.instantiation(body, item)
    else:
        raise body.error(
            item.position,
            f"'{item.name}' cannot be declared here; only variables and constants can",
        )


def _variable(body: Body, item: ast.VariableDeclaration) -> None:
    kind = resolve.type_of(body.compiler, item.type, body.scope)
    if isinstance(kind, (types.Extern, types.BlockType, types.PackageType)):
        raise body.error(item.position, f"a variable cannot be of type '{kind}'")
    if isinstance(kind, types.Int) or kind in (types.STRING, types.VOID, types.MATCH_KIND):
        raise body.error(
            item.position, f"a variable cannot be of type '{kind}'; only constants of it exist"
        )
    value = None
    if item.value is not None:
        value = evaluation.value(body, item.value, kind, f"the initial value of '{item.name}'")
    name = f"{body.local_names}_{item.name}"
    variable = body.compiler.variable(name, body.lower(kind, item.position))
    place = ir.Read(variable.type, variable)
    if value is None:
        body.emit(ir.Declare(variable), item.position)
        if isinstance(variable.type, (ir.Bits, ir.Bool)):
            body.compiler.without_value[variable] = item.name
    else:
        body.emit(ir.Assign(place, convert.lowered(body, value)), item.position)
    entity = scope.VariableEntity(kind, place)
    entity.position = item.position
    declare(body.compiler, body.scope, item.name, entity)


def constant(body: Body, item: ast.ConstDeclaration) -> None:
    """Fold a constant and enter it into the scope."""
    resolve.folded_annotations(body.compiler, item.annotations, body.scope)
    kind = resolve.type_of(body.compiler, item.type, body.scope)
    value = evaluation.value(body, item.value, kind, f"the value of '{item.name}'")
    if not constants.is_known(value):
        raise body.error(
            item.value.position, f"the value of '{item.name}' must be known when compiling"
        )
    entity = scope.ConstantEntity(value)
    entity.position = item.position
    declare(body.compiler, body.scope, item.name, entity)


# --- Statements ------------------------------------------------------------------------------


def _assignment(body: Body, node: ast.Statement) -> None:
    assert isinstance(node, ast.Assignment)
    target = evaluation.evaluate(body, node.target)
    if (
        isinstance(node.target, ast.PlusSlice)
        and isinstance(target, Value)
        and target.read_only == slices.RUN_TIME_BOUND
        and node.operator == "="
    ):
        base = arguments.lvalue(body, evaluation.evaluate(body, node.target.base), "what is sliced")
        value = evaluation.value(body, node.value, target.type, "the value assigned")
        slices.assign(body, node.target, base, value)
        return
    if not isinstance(target, Value) or target.read_only is None:
        raise body.error(node.target.position, "this cannot be assigned to")
    if target.read_only:
        raise body.error(node.target.position, f"this cannot be assigned to: {target.read_only}")
    place = target.expression
    assert place is not None
    mark = len(body.code)
    operand = evaluation.evaluate(body, node.value)
    if len(body.code) > mark:
        place = evaluation.freeze(body, place, mark)
    if node.operator != "=":
        if not isinstance(target.type, types.Bits):
            raise body.error(
                node.target.position,
                f"'{node.operator}' needs a bit<> or int<> on the left, not '{target.type}'",
            )
        present = Value(node.target.position, target.type, place)
        operand = operators.binary(
            body, node.operator.removesuffix("="), present, operand, node.position
        )
    value = convert.to_type(body, operand, target.type, "the value assigned")
    body.emit(ir.Assign(place, convert.lowered(body, value)), node.position)


def _call(body: Body, node: ast.Statement) -> None:
    assert isinstance(node, ast.CallStatement)
    result = calls.call(body, node.call)
    if isinstance(result, EntityOperand):
        raise body.error(node.position, "an object made here could not be used; give it a name")


def _block(body: Body, node: ast.Statement) -> None:
    assert isinstance(node, ast.Block)
    bodies.block(body, node)


def _if(body: Body, node: ast.Statement) -> None:
    assert isinstance(node, ast.If)
    test = evaluation.condition(body, node.condition, "the condition of 'if'")
    then = bodies.captured(body, node.then)
    other = bodies.captured(body, node.other) if node.other is not None else []
    if test.constant is not None:
        body.code.extend(then if test.constant else other)
        return
    body.emit(ir.If(convert.lowered(body, test), then, other), node.position)


def _return(body: Body, node: ast.Statement) -> None:
    assert isinstance(node, ast.Return)
    if body.kind == "parser":
        raise body.error(node.position, "a parser state cannot return; use 'transition accept'")
    if node.value is None:
        if body.result is not None:
            raise body.error(node.position, f"'return' needs a value of type '{body.result_type}'")
    else:
        if body.result is None:
            raise body.error(node.value.position, "a value cannot be returned here")
        value = evaluation.value(body, node.value, body.result_type, "the value returned")
        place = ir.Read(body.result.type, body.result)
        body.emit(ir.Assign(place, convert.lowered(body, value)), node.position)
    body.emit(ir.Return(), node.position)


def _exit(body: Body, node: ast.Statement) -> None:
    if body.kind in ("parser", "function"):
        where = "a parser" if body.kind == "parser" else "a function"
        raise body.error(node.position, f"'exit' cannot be used in {where}")
    body.emit(ir.Exit(), node.position)


def _break(body: Body, node: ast.Statement) -> None:
    if not body.loops:
        raise body.error(node.position, "'break' can only be used in a loop")
    body.emit(ir.Break(), node.position)


def _continue(body: Body, node: ast.Statement) -> None:
    if not body.loops:
        raise body.error(node.position, "'continue' can only be used in a loop")
    body.emit(ir.Continue(), node.position)


def _empty(body: Body, node: ast.Statement) -> None:
    pass


_HANDLERS: dict[type[ast.Statement], Callable[[Body, ast.Statement], None]] = {
    ast.Assignment: _assignment,
    ast.CallStatement: _call,
    ast.Block: _block,
    ast.If: _if,
    ast.Switch: switches.switch,
    ast.Return: _return,
    ast.Exit: _exit,
    ast.Break: _break,
    ast.Continue: _continue,
    ast.For: loops.for_statement,
    ast.ForIn: loops.for_in,
    ast.Empty: _empty,
}
