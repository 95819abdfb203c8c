"""Tables: keys, actions, default action and the other properties (entries: see `entries`)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from p4switch import ir
from p4switch.frontend.constants import constants, convert
from p4switch.frontend.declarations import entries
from p4switch.frontend.declarations.table_actions import DEFAULT, ENTRY, Listed, Properties, choose
from p4switch.frontend.expressions import arguments, evaluation, resolve
from p4switch.frontend.names import scope
from p4switch.frontend.names.compilation import Body, Compiler, suggestion
from p4switch.frontend.names.operands import EntityOperand, describe
from p4switch.frontend.names.scope import given_name
from p4switch.frontend.names.values import Operand, Value
from p4switch.frontend.syntax import ast, walk
from p4switch.frontend.types import types
from p4switch.frontend.types.lower import type_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from p4switch.position import Position

_NUMBER = re.compile(r"(?:[0-9]+[ws])?(0[xX]|0[bB]|0[oO])?")
_BASES = {"0x": "x", "0b": "b", "0o": "o"}
_ONLY = {"defaultonly": ENTRY, "tableonly": DEFAULT}
_DEFAULT_ONLY = ir.Annotation("defaultonly")


def table(outer: Body, node: ast.TableDeclaration) -> scope.TableEntity:
    """Lower a table of the control whose locals `outer` is lowering."""
    compiler = outer.compiler
    annotations = resolve.folded_annotations(compiler, node.annotations, outer.scope)
    full_name = outer.unit.qualified(node.name, annotations)
    body = Body(compiler, outer.unit, scope.Scope(outer.scope), "table", full_name)
    _refuse_itself(compiler, node)
    errors = compiler.errors_noted
    keys: list[ir.Key] = []
    with compiler.recovering():
        keys = _keys(body, node)
    key_code, body.code = body.code, []
    actions, listed = _actions(body, node)
    if compiler.errors_noted > errors:
        raise scope.FollowUpError(node.position, "the rest is not checked")
    properties = _properties(body, node, listed, actions)
    if properties.default is None:
        properties.default = _no_action(body, listed, actions, node.position)
    found = entries.entries(body, node, keys, listed, properties)
    made = ir.Table(
        full_name,
        tuple(keys),
        tuple(actions),
        properties.default,
        properties.default_constant,
        found,
        node.entries_constant,
        properties.size,
        properties.largest_priority_wins,
        properties.implementation,
        tuple(properties.counters),
        tuple(properties.meters),
        properties.support_timeout,
        key_code,
        annotations,
        node.position,
    )
    outer.unit.contents.append(made)
    entity = scope.TableEntity(node, made, {item.name: i for i, item in enumerate(listed)})
    entity.position = node.position
    return entity


def _refuse_itself(compiler: Compiler, node: ast.TableDeclaration) -> None:
    """Refuse the table's own name as a value: it hides what else has that name."""
    values = [*(node.keys or ()), *(entry.keys for entry in node.entries)]
    for found in walk.nodes(values):
        if isinstance(found, ast.Name) and found.name == node.name and not found.absolute:
            raise compiler.error(
                found.position, f"'{node.name}' is the table here, which is not a value"
            )


# --- Keys ------------------------------------------------------------------------------------


def _keys(body: Body, node: ast.TableDeclaration) -> list[ir.Key]:
    elements = node.keys or []
    operands = evaluation.sequence(body, [e.expression for e in elements])
    keys = []
    for element, operand in zip(elements, operands, strict=True):
        if element.match_kind not in body.compiler.match_kinds:
            known = suggestion(element.match_kind, iter(body.compiler.match_kinds))
            raise body.error(
                element.position, f"no match kind is called '{element.match_kind}'{known}"
            )
        value = convert.plain(body, operand)
        _check_key(body, element, value)
        annotations = resolve.folded_annotations(body.compiler, element.annotations, body.scope)
        keys.append(
            ir.Key(
                _key_name(body, element, annotations),
                element.match_kind,
                convert.lowered(body, value),
                annotations,
                type_name(value.type),
            )
        )
    return keys


def _check_key(body: Body, element: ast.KeyElement, value: Value) -> None:
    bare = types.underlying(value.type)
    if isinstance(bare, types.Int):
        raise body.error(element.position, "this integer has no width; write one, as in '8w5'")
    plain = isinstance(bare, (types.Bits, types.Enum, types.Varbit, types.Parameter))
    if not plain and bare not in (types.BOOL, types.ERROR):
        raise body.error(element.position, f"a key of a table cannot be of type '{value.type}'")


def _key_name(body: Body, element: ast.KeyElement, annotations: tuple[ir.Annotation, ...]) -> str:
    name = given_name(annotations) or _written(body, element.expression)
    if name is None:
        raise body.error(
            element.expression.position,
            "this key has no name for the control plane; give it one with '@name(\"...\")' "
            "after the match kind",
        )
    return name


def _written(body: Body, node: ast.Expression) -> str | None:
    """Name a key as the specification does: as the source writes it, `$valid$` for isValid()."""
    if isinstance(node, ast.Name):
        if node.absolute:
            return f".{node.name}"
        entity = body.scope.find(node.name)
        if isinstance(entity, scope.ConstantEntity):
            found = constants.scalar(entity.value)
            return None if found is None else str(found)
        return node.name
    if isinstance(node, ast.Member):
        return _written_member(body, node)
    if isinstance(node, ast.Index):
        base, index = _written(body, node.base), _written(body, node.index)
        return None if base is None or index is None else f"{base}[{index}]"
    if isinstance(node, ast.Slice):
        base = _written(body, node.base)
        high, low = _written(body, node.high), _written(body, node.low)
        return None if base is None or high is None or low is None else f"{base}[{high}:{low}]"
    if isinstance(node, ast.Binary) and node.operator == "&":
        base, mask = _written(body, node.left), _written(body, node.right)
        return None if base is None or mask is None else f"{base} & {mask}"
    if isinstance(node, ast.IntLiteral):
        return _written_number(body, node)
    if (
        isinstance(node, ast.Call)
        and isinstance(node.function, ast.Member)
        and node.function.name == "isValid"
        and not node.arguments
    ):
        base = _written(body, node.function.base)
        return None if base is None else f"{base}.$valid$"
    return None


def _written_member(body: Body, node: ast.Member) -> str | None:
    name = node.name
    with body.capture():
        base = evaluation.evaluate(body, node.base)
    kind = types.resolved(base.type) if isinstance(base, Value) else None
    if isinstance(kind, types.StructLike) and name in kind.fields:
        name = given_name(kind.fields[name].annotations) or name
    if name.startswith("."):
        return name[1:]
    written = _written(body, node.base)
    return None if written is None else f"{written}.{name}"


def _written_number(body: Body, node: ast.IntLiteral) -> str:
    """Give a number in the base it was written in."""
    line = body.compiler.source_line(node.position) or ""
    found = _NUMBER.match(line, node.position.column - 1)
    prefix = (found.group(1) or "").lower() if found else ""
    return prefix + format(node.value, _BASES.get(prefix, "d"))


# --- Actions ---------------------------------------------------------------------------------


def _actions(body: Body, node: ast.TableDeclaration) -> tuple[list[ir.TableAction], list[Listed]]:
    actions: list[ir.TableAction] = []
    listed: list[Listed] = []
    for item in node.actions:
        with body.compiler.recovering():
            _action(body, item, actions, listed)
    return actions, listed


def _action(
    body: Body, item: ast.ActionRef, actions: list[ir.TableAction], listed: list[Listed]
) -> None:
    entity = action_named(body, item)
    if any(other.name == item.name for other in listed):
        raise body.error(item.position, f"action '{item.name}' is in the list twice")
    actions.append(_bind(body, item, entity))
    directed = sum(p.direction is not ast.Direction.NONE for p in entity.declaration.parameters)
    forbidden = [_ONLY[a.name] for a in item.annotations if a.name in _ONLY]
    pairs = arguments.match(
        body,
        entity.declaration.parameters[:directed],
        item.arguments or [],
        f"action '{item.name}'",
        item.position,
    )
    given = {parameter.name: argument.value for parameter, argument in pairs}
    listed.append(Listed(item.name, entity, directed, given, "".join(forbidden)))


def action_named(body: Body, item: ast.ActionRef) -> scope.ActionEntity:
    """Find the action a table refers to."""
    where = body.scope.top if item.absolute else body.scope
    entity = where.find(item.name)
    if entity is None:
        raise body.error(
            item.position,
            f"no action is called '{item.name}'{suggestion(item.name, where.visible())}",
        )
    if not isinstance(entity, scope.ActionEntity):
        raise body.error(item.position, f"'{item.name}' is not an action")
    body.compiler.symbols.uses[item.position] = item.name, entity
    return entity


def _bind(body: Body, item: ast.ActionRef, entity: scope.ActionEntity) -> ir.TableAction:
    declaration = entity.declaration
    directed = [p for p in declaration.parameters if p.direction is not ast.Direction.NONE]
    what = f"action '{item.name}'"
    for parameter, kind in zip(
        declaration.parameters[len(directed) :],
        entity.parameter_types[len(directed) :],
        strict=True,
    ):
        bare = types.underlying(kind)
        if not isinstance(bare, (types.Bits, types.Enum, types.Parameter)) and (
            bare is not types.BOOL
        ):
            raise body.error(
                parameter.position,
                f"'{parameter.name}' comes from the control plane in table actions and cannot be "
                f"of type '{kind}'; allowed are bit<>, int<>, bool, new types and enums",
            )
    given = item.arguments or []
    if len(given) > len(directed):
        raise body.error(
            item.position,
            f"{what} takes {len(directed)} argument{'s' * (len(directed) != 1)} here; those "
            "without a direction come from the control plane",
        )
    for node in walk.nodes(given):
        if isinstance(node, ast.Member) and node.name == "apply":
            raise body.error(node.position, f"{what}: its arguments cannot apply a table")
    with body.capture() as code:
        bounds = arguments.evaluate(body, directed, given, what, item.position)
        variables = [p.variable for p in entity.callable.parameters[: len(directed)]]
        kinds = entity.parameter_types[: len(directed)]
        back = arguments.copy_in_and_out(body, bounds, kinds, variables, what, item.position)
    annotations = resolve.folded_annotations(body.compiler, item.annotations, body.scope)
    return ir.TableAction(entity.callable, code, back, annotations)


def _no_action(
    body: Body, listed: list[Listed], actions: list[ir.TableAction], position: Position
) -> ir.ActionChoice:
    """Choose NoAction, adding it to the list for a default action only if it is not there."""
    for index, item in enumerate(listed):
        if item.name == "NoAction":
            return ir.ActionChoice(index)
    entity = body.scope.top.find("NoAction")
    if not isinstance(entity, scope.ActionEntity):
        raise body.error(
            position,
            "the table has no default action and there is no 'NoAction'; include core.p4",
        )
    if entity.declaration.parameters:
        raise body.error(
            position, "the default action 'NoAction' has parameters; include core.p4 for its own"
        )
    actions.append(ir.TableAction(entity.callable, [], [], (_DEFAULT_ONLY,)))
    listed.append(Listed("NoAction", entity, 0))
    return ir.ActionChoice(len(listed) - 1)


# --- Properties ------------------------------------------------------------------------------


def _properties(
    body: Body,
    node: ast.TableDeclaration,
    listed: list[Listed],
    actions: list[ir.TableAction],
) -> Properties:
    found = Properties()
    for item in node.properties:
        value = item.value
        if item.name == "default_action":
            found.default = _default_action(body, item, listed)
            found.default_constant = item.constant
        elif item.name == "size":
            found.size = constants.integer(body, value, "the size of a table")
        elif item.name == "support_timeout":
            found.support_timeout = _flag(body, value, item.name)
        elif item.name == "largest_priority_wins":
            found.largest_priority_wins = _flag(body, value, item.name)
        elif item.name == "priority_delta":
            found.priority_delta = constants.integer(body, value, "the priority_delta")
            if found.priority_delta <= 0:
                raise body.error(value.position, "the priority_delta must be positive")
        elif item.name == "psa_idle_timeout":
            found.support_timeout = _notifies(body, value)
        elif item.name in ("implementation", "psa_implementation"):
            found.implementation = _object(body, item)
        elif item.name in ("counters", "psa_direct_counter"):
            found.counters.append(_object(body, item))
        elif item.name in ("meters", "psa_direct_meter"):
            found.meters.append(_object(body, item))
    return found


def _flag(body: Body, expression: ast.Expression, what: str) -> bool:
    value = evaluation.value(body, expression, types.BOOL, f"'{what}'")
    if value.constant is None:
        raise body.error(expression.position, f"'{what}' must be known when compiling")
    return bool(value.constant)


def _notifies(body: Body, expression: ast.Expression) -> bool:
    """Return whether a PSA_IdleTimeout_t is NOTIFY_CONTROL."""
    value = evaluation.value(body, expression)
    kind = body.compiler.enums.get("PSA_IdleTimeout_t")
    return kind is not None and constants.scalar(value) == kind.members["NOTIFY_CONTROL"]


def _default_action(body: Body, item: ast.TableProperty, listed: list[Listed]) -> ir.ActionChoice:
    value = item.value
    given: Sequence[ast.Argument] = ()
    if isinstance(value, ast.Call):
        given = value.arguments
        value = value.function
    if not isinstance(value, ast.Name):
        raise body.error(
            value.position, "a default action is the name of an action with its arguments"
        )
    if value.absolute:
        for other in listed:
            if other.name == value.name and other.entity is not body.scope.top.find(value.name):
                raise body.error(
                    value.position, f"'.{value.name}' is another action than the one in the list"
                )
    return choose(body, listed, value.name, given, DEFAULT, value.position)


def _object(body: Body, item: ast.TableProperty) -> ir.ExternInstance:
    """Find the extern object a property names, or make the one it constructs."""
    annotations = resolve.folded_annotations(body.compiler, item.annotations, body.scope)
    operand: Operand
    if isinstance(item.value, ast.Call):
        operand = body.compiler.rules.construct(body, item.value, item.name, annotations)
    else:
        operand = evaluation.evaluate(body, item.value)
    if isinstance(operand, EntityOperand) and isinstance(operand.entity, scope.ExternEntity):
        instance = operand.entity.instance
        if instance is not None:
            return instance
    raise body.error(
        item.position, f"'{item.name}' must be an extern object, not {describe(operand)}"
    )
