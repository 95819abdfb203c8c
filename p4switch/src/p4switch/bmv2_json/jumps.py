"""Converts jumps between the primitives of an action to `if`, `return` and loops.

p4c writes `if` as nested forward jumps, and `return` as a jump to the end. Anything else, such as
its loops, becomes a loop around the stretches between jumps, which selects the next one by number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from p4switch import ir
from p4switch.bmv2_json.document import Document, Part, number_of, unwrapped
from p4switch.bmv2_json.expressions import Expressions

JUMP, JUMP_IF_ZERO = "_jump", "_jump_if_zero"


class _NotNestedError(Exception):
    """The jumps are not only those of `if` and `return`."""


class Jumps:
    """The primitives of one action. `one` translates those other than jumps."""

    def __init__(
        self,
        document: Document,
        primitives: Sequence[Part],
        one: Callable[[Part], list[ir.Statement]],
        expressions: Expressions,
        variables: Callable[[str, ir.Type], ir.Variable],
    ) -> None:
        self._document = document
        self._primitives = primitives
        self._one = one
        self._expressions = expressions
        self._variables = variables

    def code(self) -> list[ir.Statement]:
        """Return the statements."""
        try:
            return self._region(0, len(self._primitives))
        except _NotNestedError:
            return self._dispatched()

    def _target(self, part: Part) -> int:
        """Return the number of a jump's target primitive."""
        value = unwrapped(part["parameters"][-1])
        if value["type"] != "hexstr":
            raise self._document.unsupported("a jump to a computed place", part)
        target = number_of(value["value"])
        if not 0 <= target <= len(self._primitives):
            raise self._document.error(f"a jump out of the action, to {target}", part)
        return target

    # --- nested

    def _region(self, start: int, end: int) -> list[ir.Statement]:
        """Return the statements from `start` up to `end`."""
        code: list[ir.Statement] = []
        at = start
        while at < end:
            part = self._primitives[at]
            if part["op"] == JUMP:
                self._leave(part, at, end, code)
                at += 1
            elif part["op"] == JUMP_IF_ZERO:
                at = self._branch(at, end, code)
            else:
                code += self._one(part)
                at += 1
        return code

    def _leave(self, part: Part, at: int, end: int, code: list[ir.Statement]) -> None:
        target = self._target(part)
        if target == end and at + 1 == end:
            return
        if target != len(self._primitives):
            raise _NotNestedError
        code.append(ir.Return(position=self._document.position(part)))

    def _branch(self, at: int, end: int, code: list[ir.Statement]) -> int:
        """Add the `if` that a conditional jump begins; return where it ends."""
        part = self._primitives[at]
        other = after = then_end = self._target(part)
        if not at < other <= end:
            raise _NotNestedError
        last = self._primitives[other - 1]
        if other - 1 > at and last["op"] == JUMP and other < self._target(last) <= end:
            then_end, after = other - 1, self._target(last)
        then = self._region(at + 1, then_end)
        rest = self._region(other, after)
        condition = self._expressions.boolean(part["parameters"][0])
        code.append(ir.If(condition, then, rest, position=self._document.position(part)))
        return after

    # --- other jumps

    def _dispatched(self) -> list[ir.Statement]:
        """Return a loop that runs one stretch after the other."""
        end = len(self._primitives)
        starts = {0}
        for at, part in enumerate(self._primitives):
            if part["op"] in (JUMP, JUMP_IF_ZERO):
                starts |= {at + 1, self._target(part)}
        starts.discard(end)
        place = self._variables("next", ir.BIT32)
        here = ir.Read(ir.BIT32, place)

        def go(target: int) -> list[ir.Statement]:
            return [ir.Assign(here, ir.Const(ir.BIT32, target))]

        cases: list[tuple[tuple[int, ...], list[ir.Statement]]] = []
        ordered = sorted(starts)
        for start, following in zip(ordered, [*ordered[1:], end], strict=True):
            body: list[ir.Statement] = []
            for part in self._primitives[start : following - 1]:
                body += self._one(part)
            last = self._primitives[following - 1]
            if last["op"] == JUMP:
                body += go(self._target(last))
            elif last["op"] == JUMP_IF_ZERO:
                condition = self._expressions.boolean(last["parameters"][0])
                body.append(ir.If(condition, go(following), go(self._target(last))))
            else:
                body += self._one(last) + go(following)
            cases.append(((start,), body))
        running = ir.Binary(ir.BOOL, "!=", here, ir.Const(ir.BIT32, end))
        loop: ir.Statement = ir.Loop([], running, [ir.Switch(here, cases, [])], [])
        return [ir.Declare(place), loop]
