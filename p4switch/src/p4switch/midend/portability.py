"""Features that work here but that p4c rejects or changes when it compiles for BMv2."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from p4switch import ir
from p4switch.midend import visit
from p4switch.midend.call_graph import Function, bodies, callees, reachable
from p4switch.position import NOWHERE, Position

BMV2_SHIFT_BITS = 8
"""Widest shift amount (p4c, backends/bmv2/common/lower.h, `maxShiftWidth`)."""

SHIFTS = ("<<", ">>")


def bmv2_limits(program: ir.Program) -> Iterator[tuple[Position, str]]:
    """Yield place and description of each construct that p4c does not support for BMv2."""
    for position, expression in _expressions(program):
        for kind in wide_shifts(expression):
            yield (
                position,
                f"a shift amount of {kind.width} bits: p4c for BMv2 takes at most "
                f"{BMV2_SHIFT_BITS}; cast it to bit<{BMV2_SHIFT_BITS}>",
            )
        for part in _parts(expression):
            if isinstance(part, ir.Binary) and _divides_at_run_time(part):
                yield (
                    position,
                    f"'{part.operator}' at run time: p4c for BMv2 divides by constant powers of "
                    "two only",
                )
            elif isinstance(part, ir.Element) and _is_union_at_run_time(part):
                yield (
                    position,
                    "an index at run time: p4c for BMv2 takes only constants for stacks of header "
                    "unions",
                )

    for position in _loops(program):
        yield (
            position,
            "a loop outside of an action: p4c for BMv2 runs its body once, regardless of the "
            "condition; move it into an action",
        )

    yield from _refused_statements(program)
    yield from _refused_declarations(program)
    parser = program.package.blocks.get("p")
    if parser is not None:
        yield from _in_parsers(parser)
    for name in ("ig", "eg"):
        if name in program.package.blocks:  # Other packages than V1Switch may lack them.
            yield from _Paths().repeated(program.package.blocks[name])


def _refused_statements(program: ir.Program) -> Iterator[tuple[Position, str]]:
    for function in reachable(program.package.blocks.values()):
        in_action = isinstance(function, ir.Callable) and function.is_action
        for body in bodies(function):
            for statement in visit.statements(body):
                if isinstance(statement, ir.Switch) and in_action:
                    yield statement.position, "a switch in an action: p4c for BMv2 refuses it"
                elif isinstance(statement, ir.CallExtern) and _returns_struct(statement):
                    yield (
                        statement.position,
                        f"'{statement.method}' returns a struct: p4c for BMv2 refuses it",
                    )


def _refused_declarations(program: ir.Program) -> Iterator[tuple[Position, str]]:
    first: dict[str, ir.Callable] = {}
    for action in program.actions:
        other = first.setdefault(action.name, action)
        if action.position != other.position:
            yield (
                action.position,
                f"two actions have the control-plane name '{action.name}': p4c refuses it when it "
                "writes P4Info",
            )


def _returns_struct(call: ir.CallExtern) -> bool:
    """Functions may return structs of numbers; objects, such as registers, may not."""
    return any(
        argument.direction.endswith("out")
        and isinstance(argument.value.type, ir.Struct)
        and (
            call.instance is not None
            or any(not isinstance(f.type, ir.Bits | ir.Bool) for f in argument.value.type.fields)
        )
        for argument in call.arguments
    )


def _divides_at_run_time(part: ir.Binary) -> bool:
    """Return whether p4c must divide: not 0, nor by a constant power of two, which it shifts by."""
    if part.operator not in "/%" or (isinstance(part.left, ir.Const) and part.left.value == 0):
        return False
    divisor = part.right.value if isinstance(part.right, ir.Const) else 0
    return not isinstance(divisor, int) or divisor & (divisor - 1) != 0 or divisor == 0


def _is_union_at_run_time(element: ir.Element) -> bool:
    kind = element.base.type
    return (
        isinstance(kind, ir.Stack)
        and isinstance(kind.element, ir.Union)
        and not isinstance(element.index, ir.Const)
    )


def _in_parsers(parser: ir.Block) -> Iterator[tuple[Position, str]]:
    """Yield what p4c supports in controls and deparsers only, or nowhere."""
    for function in reachable([parser]):
        for body in bodies(function):
            for statement in visit.statements(body):
                what = ""
                if isinstance(statement, ir.PacketLength):
                    what = "packet.length()"
                elif isinstance(statement, ir.Push):
                    what = "push_front" if statement.count > 0 else "pop_front"
                if what:
                    yield statement.position, f"{what} in a parser: p4c for BMv2 refuses it"


Applied = frozenset[str]
"""Tables that may have been applied before."""


class _Paths:
    """Tables that a path applies twice: in BMv2 a table jumps to its successor, wherever it is.

    As in p4c, conditions that exclude each other are not compared.
    """

    def __init__(self) -> None:
        self._found: dict[str, Position] = {}

    def repeated(self, block: ir.Block) -> Iterator[tuple[Position, str]]:
        """Yield the second places of such tables."""
        self._body(block.body, frozenset())
        for name, position in self._found.items():
            yield (
                position,
                f"table {name} leads back to itself: p4c for BMv2 refuses a path that applies a "
                "table twice; declare a second table",
            )

    def _body(
        self, body: Sequence[ir.Statement], before: Applied
    ) -> tuple[Applied | None, Applied | None]:
        """Follow statements; return what is applied at their end, and where they return.

        None: no path comes there.
        """
        now: Applied | None = before
        returned: Applied | None = None
        for statement in body:
            if now is None:
                break
            if isinstance(statement, ir.Return):
                now, returned = None, _either(returned, now)
                continue
            now, early = self._statement(statement, now)
            returned = _either(returned, early)
        return now, returned

    def _statement(
        self, statement: ir.Statement, now: Applied
    ) -> tuple[Applied | None, Applied | None]:
        match statement:
            case ir.Exit():
                return None, None
            case ir.ApplyTable(table=table):
                if table.name in now:
                    self._found.setdefault(table.name, statement.position)
                return now | {table.name}, None
            case ir.Call(callee=ir.Block() as block):
                after, returned = self._body(block.body, now)
                return _either(after, returned), None
            case ir.If() | ir.Switch() | ir.Loop():
                after = returned = None
                for body in visit.nested(statement):
                    end, early = self._body(body, now)
                    after, returned = _either(after, end), _either(returned, early)
                if isinstance(statement, ir.Loop):
                    after = _either(after, now)
                return after, returned
        return now, None


def _either(one: Applied | None, other: Applied | None) -> Applied | None:
    if one is None or other is None:
        return one if other is None else other
    return one | other


def _loops(program: ir.Program) -> Iterator[Position]:
    """Yield the places of loops in controls, and in functions that these call themselves."""
    waiting: list[Function] = list(program.package.blocks.values())
    seen: set[int] = set()
    while waiting:
        function = waiting.pop()
        if id(function) in seen or isinstance(function, ir.Table):
            continue
        seen.add(id(function))
        if isinstance(function, ir.Callable) and function.is_action:
            continue
        waiting.extend(callees(function))
        for body in bodies(function):
            for statement in visit.statements(body):
                if isinstance(statement, ir.Loop):
                    yield statement.position


def _expressions(program: ir.Program) -> Iterator[tuple[Position, ir.Expression]]:
    """Yield the expressions of statements, table keys and selects (at the last place before)."""
    for function in reachable(program.package.blocks.values()):
        for body in bodies(function):
            for statement in visit.statements(body):
                for expression in visit.operands(statement):
                    yield statement.position, expression
        if isinstance(function, ir.Table):
            for key in function.keys:
                yield function.position, key.expression
        elif isinstance(function, ir.Block):
            for state in function.states.values():
                if isinstance(state.transition, ir.Select):
                    place = state.body[-1].position if state.body else NOWHERE
                    for expression in visit.select_expressions(state.transition):
                        yield place, expression


def wide_shifts(expression: ir.Expression) -> Iterator[ir.Bits]:
    """Yield the types of shift amounts in an expression that are wider than BMv2's.

    Constants have no more bits here than they need, so one written wider, such as `32w31`, which
    p4c refuses as well, is not found.
    """
    for item in _parts(expression):
        if isinstance(item, ir.Binary) and item.operator in SHIFTS:
            kind = item.right.type
            if isinstance(kind, ir.Bits) and kind.width > BMV2_SHIFT_BITS:
                yield kind


def _parts(expression: ir.Expression) -> Iterator[ir.Expression]:
    stack = [expression]
    while stack:
        item = stack.pop()
        stack.extend(visit.children(item))
        yield item
