"""Arguments of calls: which parameter each belongs to, their evaluation, copy-in and copy-out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from p4switch import ir
from p4switch.frontend.constants import convert
from p4switch.frontend.expressions import evaluation, resolve
from p4switch.frontend.names.compilation import Body
from p4switch.frontend.names.operands import EntityOperand, describe
from p4switch.frontend.names.scope import ConstantEntity, Entity, ExternEntity
from p4switch.frontend.names.values import DontCareValue, Operand, Value
from p4switch.frontend.syntax import ast
from p4switch.frontend.types import types

if TYPE_CHECKING:
    from collections.abc import Sequence

    from p4switch.frontend.names.scope import Scope
    from p4switch.position import Position

_WRITTEN = (ast.Direction.OUT, ast.Direction.INOUT)


NO_DIRECTION = "a parameter without a direction is read-only"


@dataclass(slots=True, eq=False)
class Bound:
    """A parameter with what was given for it.

    `operand` is the value (or, for `out`, what was written); `target` the l-value of an out or
    inout parameter, its indices frozen.
    """

    parameter: ast.Parameter
    operand: Operand
    target: Value | None = None


def fits(parameters: Sequence[ast.Parameter], arguments: Sequence[ast.Argument]) -> bool:
    """Return whether a call has the right number and names of arguments for a parameter list."""
    if len(arguments) > len(parameters):
        return False
    given = set()
    for position, argument in enumerate(arguments):
        name = argument.name if argument.name is not None else parameters[position].name
        given.add(name)
    names = {p.name for p in parameters}
    return given <= names and all(p.name in given or _omissible(p) for p in parameters)


def _omissible(parameter: ast.Parameter) -> bool:
    return parameter.default is not None or any(a.name == "optional" for a in parameter.annotations)


def match(
    body: Body,
    parameters: Sequence[ast.Parameter],
    arguments: Sequence[ast.Argument],
    what: str,
    position: Position,
) -> list[tuple[ast.Parameter, ast.Argument]]:
    """Pair arguments with parameters, in the order the arguments are written."""
    by_name = {p.name: p for p in parameters}
    pairs: list[tuple[ast.Parameter, ast.Argument]] = []
    seen: set[str] = set()
    named = sum(a.name is not None for a in arguments)
    if named not in (0, len(arguments)):
        raise body.error(position, f"{what}: either all arguments are named or none is")
    if len(arguments) > len(parameters):
        raise body.error(
            position,
            f"{what} takes {_count(parameters)}, but {len(arguments)} were given",
        )
    for index, argument in enumerate(arguments):
        parameter = parameters[index]
        if argument.name is not None:
            if argument.name not in by_name:
                raise body.error(
                    argument.position, f"{what} has no parameter called '{argument.name}'"
                )
            parameter = by_name[argument.name]
        if parameter.name in seen:
            raise body.error(argument.position, f"'{parameter.name}' is given twice")
        seen.add(parameter.name)
        pairs.append((parameter, argument))
    for parameter in parameters:
        if parameter.name not in seen and not _omissible(parameter):
            raise body.error(
                position,
                f"{what} takes {_count(parameters)}; nothing is given for '{parameter.name}'",
            )
    return pairs


def _count(parameters: Sequence[ast.Parameter]) -> str:
    number = len(parameters)
    names = ", ".join(p.name for p in parameters)
    return f"{number} argument{'s' * (number != 1)} ({names})" if number else "no arguments"


def evaluate(
    body: Body,
    parameters: Sequence[ast.Parameter],
    arguments: Sequence[ast.Argument],
    what: str,
    position: Position,
) -> list[Bound]:
    """Evaluate a call's arguments from left to right; the result is in parameter order.

    Parameters that nothing is given for are left out, unless they have a default value:
    see `with_defaults`.
    """
    done: list[tuple[Operand, int]] = []
    bounds: list[Bound] = []
    for parameter, argument in match(body, parameters, arguments, what, position):
        before = len(body.code)
        operand = evaluation.evaluate(body, argument.value)
        bound = Bound(parameter, operand)
        if parameter.direction in _WRITTEN and not isinstance(operand, EntityOperand):
            if isinstance(operand, DontCareValue):
                if parameter.direction is ast.Direction.INOUT:
                    raise body.error(
                        argument.position, f"'{parameter.name}' is inout and needs a value"
                    )
            else:
                bound.target = lvalue(body, operand, f"the argument for '{parameter.name}'")
        evaluation.settle(body, done, before)
        # What an out parameter's argument held before does not matter.
        kept = (
            operand
            if parameter.direction is not ast.Direction.OUT
            else DontCareValue(operand.position)
        )
        done.append((kept, len(body.code)))
        bounds.append(bound)
    for bound, (operand, _) in zip(bounds, done, strict=True):
        if bound.parameter.direction is not ast.Direction.OUT:
            bound.operand = operand
    order = {p.name: i for i, p in enumerate(parameters)}
    bounds.sort(key=lambda b: order[b.parameter.name])
    return bounds


def with_defaults(
    body: Body, bounds: list[Bound], parameters: Sequence[ast.Parameter], names: Scope
) -> list[Bound]:
    """Add the default values of parameters that nothing was given for.

    Optional parameters without a value stay left out.
    """
    if len(bounds) == len(parameters):
        return bounds
    given = {b.parameter.name: b for b in bounds}
    result = []
    for parameter in parameters:
        bound = given.get(parameter.name)
        if bound is not None:
            result.append(bound)
        elif parameter.default is not None:
            inner = Body(body.compiler, body.unit, names, "constant")
            result.append(Bound(parameter, evaluation.evaluate(inner, parameter.default)))
            if inner.code:
                raise body.error(
                    parameter.default.position, "a default value must be known when compiling"
                )
    return result


def lvalue(body: Body, operand: Operand, what: str) -> Value:
    """Require something that can be written, and evaluate what it depends on once."""
    if not isinstance(operand, Value) or operand.read_only is None:
        raise body.error(operand.position, f"{what} must be something that can be written to")
    if operand.read_only:
        raise body.error(operand.position, f"{what} cannot be written to: {operand.read_only}")
    assert operand.expression is not None
    frozen = evaluation.freeze(body, operand.expression)
    return Value(operand.position, operand.type, frozen, None, "")


def check_target(body: Body, bound: Bound, kind: types.Type, what: str) -> None:
    """Check that the l-value given for an out or inout parameter has the parameter's type."""
    if bound.target is None:
        return
    if not types.same(bound.target.type, kind):
        raise body.error(
            bound.target.position,
            f"the argument for '{bound.parameter.name}' of {what} must be of type '{kind}', "
            f"not '{bound.target.type}'; {bound.parameter.direction.value} arguments are not "
            "converted",
        )


def copy_in_and_out(
    body: Body,
    bounds: Sequence[Bound],
    kinds: Sequence[types.Type],
    variables: Sequence[ir.Variable | None],
    what: str,
    position: Position,
) -> list[ir.Assign]:
    """Emit the assignments to a callee's parameters; return those back from them.

    `variables` has None for parameters without one (extern objects).
    """
    back: list[ir.Assign] = []
    for bound, kind, variable in zip(bounds, kinds, variables, strict=True):
        if variable is None:
            continue
        place = ir.Read(variable.type, variable)
        direction = bound.parameter.direction
        if direction is ast.Direction.OUT:
            check_target(body, bound, kind, what)
            body.emit(ir.Declare(variable), position)
        else:
            if direction is ast.Direction.INOUT:
                check_target(body, bound, kind, what)
            value = convert.to_type(
                body, bound.operand, kind, f"'{bound.parameter.name}' of {what}"
            )
            body.emit(ir.Assign(place, convert.lowered(body, value)), position)
        if bound.target is not None:
            assert bound.target.expression is not None
            back.append(ir.Assign(bound.target.expression, place, position=position))
    return back


def extern_object(body: Body, bound: Bound, kind: types.Extern) -> ExternEntity:
    """Require an extern object as an argument."""
    operand = bound.operand
    if isinstance(operand, EntityOperand) and isinstance(operand.entity, ExternEntity):
        if types.same(operand.entity.type, kind):
            return operand.entity
        raise body.error(
            operand.position,
            f"'{bound.parameter.name}' must be a '{kind}', not a '{operand.entity.type}'",
        )
    raise body.error(
        operand.position, f"'{bound.parameter.name}' must be a '{kind}', not {describe(operand)}"
    )


def compile_time(
    body: Body, bounds: Sequence[Bound], kinds: Sequence[types.Type], what: str
) -> dict[str, Entity]:
    """Pick the arguments a callee is lowered for: extern objects and values of type `int`."""
    found: dict[str, Entity] = {}
    for bound, kind in zip(bounds, kinds, strict=True):
        name = bound.parameter.name
        if isinstance(kind, types.Extern):
            found[name] = extern_object(body, bound, kind)
        elif isinstance(kind, types.Int):
            value = convert.to_type(body, bound.operand, kind, f"'{name}' of {what}")
            if value.constant is None:
                raise body.error(
                    bound.operand.position, f"'{name}' of {what} must be known when compiling"
                )
            found[name] = ConstantEntity(value)
    return found


def parameter_types(
    body: Body, parameters: Sequence[ast.Parameter], names: Scope
) -> tuple[types.Type, ...]:
    """Resolve the types of parameters."""
    kinds = tuple(resolve.type_of(body.compiler, p.type, names) for p in parameters)
    for parameter, kind in zip(parameters, kinds, strict=True):
        if isinstance(kind, types.Extern) and parameter.direction is not ast.Direction.NONE:
            raise body.error(
                parameter.position,
                f"a parameter of the extern type '{kind}' cannot have a direction",
            )
        if kind is types.STRING and parameter.direction is not ast.Direction.NONE:
            raise body.error(
                parameter.position,
                f"'{parameter.name}' becomes a string here, which cannot have a direction",
            )
    return kinds
