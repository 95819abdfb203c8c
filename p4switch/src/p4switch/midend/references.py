"""Parameters passed by reference where the difference is not observable.

P4 copies arguments in and out. Copying all headers at each sub-control costs more than most
sub-controls themselves, so a parameter of a parser, control or function to which every call passes
the same variable (or part of one) is replaced by that variable, unless a call also writes to that
place through another parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from p4switch import ir
from p4switch.midend.rewrite import Rewriter

_Path = tuple[object, ...]


@dataclass(slots=True, eq=False)
class _Site:
    """A call with its surrounding code."""

    code: list[ir.Statement]
    call: ir.Call
    values: dict[ir.Variable, ir.Expression] = field(default_factory=dict)
    """Values copied into parameters."""
    targets: dict[ir.Variable, ir.Expression] = field(default_factory=dict)
    """Destinations of parameters that are copied out."""


def pass_by_reference(
    blocks: Iterable[ir.Block],
    callables: Iterable[ir.Callable],
    tables: Iterable[ir.Table],
) -> set[ir.Variable]:
    """Replace parameters by their arguments; return the variables removed."""
    blocks, callables, tables = list(blocks), list(callables), list(tables)
    sites: dict[ir.Block | ir.Callable, list[_Site]] = {}
    for code in _all_code(blocks, callables, tables):
        for site in _sites(code):
            sites.setdefault(site.call.callee, []).append(site)
    places: dict[ir.Variable, ir.Expression] = {}
    for callee, calls in sites.items():
        if isinstance(callee, ir.Callable) and callee.is_action:
            continue  # It also accesses the variables of its control.
        found = _common_places(callee, calls)
        for site in calls:
            _remove_copies(site, found)
        callee.parameters = tuple(p for p in callee.parameters if p.variable not in found)
        places.update(found)
    rewriter = Rewriter(places)
    for block in blocks:
        rewriter.block(block)
    for callable_ in callables:
        rewriter.code(callable_.body)
    for table in tables:
        rewriter.table(table)
    return set(places)


# --- Calls -----------------------------------------------------------------------------------


def _all_code(
    blocks: Iterable[ir.Block], callables: Iterable[ir.Callable], tables: Iterable[ir.Table]
) -> Iterator[list[ir.Statement]]:
    for block in blocks:
        yield from _nested(block.body)
        for state in block.states.values():
            yield from _nested(state.body)
    for callable_ in callables:
        yield from _nested(callable_.body)
    for table in tables:
        yield from _nested(table.key_code)
        for action in table.actions:
            yield from _nested(action.copy_in)


def _nested(code: list[ir.Statement]) -> Iterator[list[ir.Statement]]:
    yield code
    for statement in code:
        if isinstance(statement, ir.If):
            yield from _nested(statement.then)
            yield from _nested(statement.other)
        elif isinstance(statement, ir.Switch):
            for _, body in statement.cases:
                yield from _nested(body)
            yield from _nested(statement.default)
        elif isinstance(statement, ir.Loop):
            yield from _nested(statement.condition_code)
            yield from _nested(statement.body)
            yield from _nested(statement.update)


def _sites(code: list[ir.Statement]) -> Iterator[_Site]:
    for index, statement in enumerate(code):
        if not isinstance(statement, ir.Call):
            continue
        site = _Site(code, statement)
        own = {p.variable for p in statement.callee.parameters}
        for before in reversed(code[:index]):
            if isinstance(before, ir.Declare) and before.variable in own:
                continue
            if not (
                isinstance(before, ir.Assign)
                and isinstance(before.target, ir.Read)
                and before.target.variable in own
            ):
                break
            site.values[before.target.variable] = before.value
        for copy in statement.copy_out:
            if isinstance(copy.value, ir.Read):
                site.targets[copy.value.variable] = copy.target
        yield site


# --- Choice ----------------------------------------------------------------------------------


def _common_places(
    callee: ir.Block | ir.Callable, calls: Sequence[_Site]
) -> dict[ir.Variable, ir.Expression]:
    """Find the parameters to which all calls pass the same place, and these places."""
    found: dict[ir.Variable, ir.Expression] = {}
    for parameter in callee.parameters:
        if parameter.direction not in ("in", "inout"):
            continue
        variable = parameter.variable
        place = calls[0].values.get(variable)
        path = None if place is None else _path(place)
        if place is None or path is None:
            continue
        if all(_fits(site, parameter, path) for site in calls):
            found[variable] = place
    return found


def _fits(site: _Site, parameter: ir.Parameter, path: _Path) -> bool:
    variable = parameter.variable
    value = site.values.get(variable)
    if value is None or _path(value) != path:
        return False
    if parameter.direction == "inout":
        target = site.targets.get(variable)
        if target is None or _path(target) != path:
            return False
    for other, target in site.targets.items():
        if other is not variable and _may_overlap(target, path):
            return False
    return True


def _path(expression: ir.Expression) -> _Path | None:
    """Return the variable and part that an expression denotes; None if it is none or varies."""
    if isinstance(expression, ir.Read):
        return (expression.variable,)
    if isinstance(expression, ir.Field):
        base = _path(expression.base)
        return None if base is None else (*base, expression.name)
    if isinstance(expression, ir.Element) and isinstance(expression.index, ir.Const):
        base = _path(expression.base)
        return None if base is None else (*base, expression.index.value)
    return None


def _may_overlap(expression: ir.Expression, path: _Path) -> bool:
    other = _path(expression)
    if other is None:
        # A slice or an element by a run-time index: look at what it is a part of.
        if isinstance(expression, (ir.Slice, ir.Element, ir.Field, ir.StackNext, ir.StackLast)):
            return _may_overlap(expression.base, path)
        return True
    return all(a == b for a, b in zip(other, path, strict=False))


def _remove_copies(site: _Site, places: dict[ir.Variable, ir.Expression]) -> None:
    if not places:
        return
    site.code[:] = [
        s
        for s in site.code
        if not (
            isinstance(s, ir.Assign)
            and isinstance(s.target, ir.Read)
            and s.target.variable in places
        )
    ]
    site.call.copy_out[:] = [
        copy
        for copy in site.call.copy_out
        if not (isinstance(copy.value, ir.Read) and copy.value.variable in places)
    ]
