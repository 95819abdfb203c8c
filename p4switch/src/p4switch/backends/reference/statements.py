"""Execution of statements (section 12) and of calls of core.p4's methods.

As in `expressions`, a method inspects its node once and returns the function that executes it;
branches and the actions of tables are inspected when a packet first takes them.
That function returns None if execution continues with the next statement, else a `Flow`; `exit`
and a parser's reject, which leave calls, are exceptions, so calls copy out in `finally` clauses.

Sections are those of the P4_16 specification 1.2.5.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable as Function
from collections.abc import Sequence
from enum import Enum

from p4switch import ir
from p4switch.backends.reference.expressions import Evaluate, Expressions
from p4switch.backends.reference.host import Host
from p4switch.backends.reference.packets import PacketIn, PacketOut
from p4switch.backends.reference.values import (
    Value,
    bit_width,
    default_scalar,
    from_bits,
    is_object,
    mask_of,
    wrap,
)
from p4switch.nesting import deep_recursion


class Flow(Enum):
    """The reason why following statements are not executed."""

    BREAK = "break"
    CONTINUE = "continue"
    RETURN = "return"


Execute = Function[[], Flow | None]
"""Executes one or more statements."""

Store = Function[[Value], None]
"""Stores a value in a place; an object is copied."""


class ExitSignal(Exception):
    """`exit`: ends the block (12.5)."""


class RejectSignal(Exception):
    """A parser goes to reject; `error` is the value of the P4 error (13.3)."""

    def __init__(self, error: int) -> None:
        self.error = error
        super().__init__(error)


class Statements(ABC):
    """The statements of one program; `packet` and `frame` are the current ones."""

    packet: PacketIn
    """The input of the parser."""
    frame: PacketOut
    """The output of the deparser."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.expressions = Expressions()

    @abstractmethod
    def callee(self, callee: ir.Callable | ir.Block) -> Execute:
        """Return the function that runs an action, function, control or parser."""

    @abstractmethod
    def table(self, table: ir.Table) -> Function[[], tuple[bool, int]]:
        """Return the function that applies a table and returns hit and the action's index."""

    def statements(self, statements: Sequence[ir.Statement]) -> Execute:
        """Return a function that executes a block statement (12.3) in sequence."""
        steps = tuple(self.statement(statement) for statement in statements)
        if len(steps) == 1:
            return steps[0]

        def execute() -> Flow | None:
            for step in steps:
                flow = step()
                if flow is not None:
                    return flow
            return None

        return execute

    def body(self, statements: Sequence[ir.Statement]) -> Execute:
        """Return a function that executes the body of a branch."""
        return self.later(lambda: self.statements(statements)) if statements else _nothing

    def later(self, prepare: Function[[], Execute]) -> Execute:
        """Return a function that executes what it prepares when it is first called.

        Many switches, such as those of tests, see few packets, which take few of the branches.
        """
        prepared: Execute | None = None

        def execute() -> Flow | None:
            nonlocal prepared
            if prepared is not None:
                return prepared()
            with deep_recursion():
                prepared = prepare()
                return prepared()

        return execute

    def statement(self, statement: ir.Statement) -> Execute:
        """Return the function that executes a statement."""
        match statement:
            case ir.Declare(variable=variable):
                return self._declare(variable)
            case ir.Assign():
                return self.assign(statement)
            case ir.If():
                return self._if(statement)
            case ir.Switch():
                return self._switch(statement)
            case ir.Loop():
                return self._loop(statement)
            case ir.Break():
                return lambda: Flow.BREAK
            case ir.Continue():
                return lambda: Flow.CONTINUE
            case ir.Return():
                return lambda: Flow.RETURN
            case ir.Exit():
                return _exit
            case ir.Call():
                return self.call(self.callee(statement.callee), statement.copy_out)
            case ir.ApplyTable():
                return self._apply(statement)
            case ir.CallExtern():
                return self._call_extern(statement)
            case ir.Extract():
                return self._extract(statement)
            case ir.Lookahead(target=target):
                return self._lookahead(target)
            case ir.Advance(bits=bits):
                width = self.expressions.evaluator(bits)
                return lambda: self.packet.advance(width())
            case ir.PacketLength(target=target):
                store = self.store(target)
                return lambda: store(self.packet.length())
            case ir.Emit(value=value):
                emitted = self.expressions.evaluator(value)
                return lambda: self.frame.emit(emitted())
            case ir.Verify():
                return self._verify(statement)
            case ir.SetValid():
                return self._set_valid(statement)
            case ir.Push(stack=stack, count=count):
                pushed = self.expressions.evaluator(stack)
                return lambda: pushed().push(count)
        raise TypeError(f"{statement.position}: unknown statement {statement!r}")

    def branch(self, owner: ir.Statement, label: str, execute: Execute) -> Execute:
        """Return a function that executes one branch of a statement; hook for observers."""
        return execute

    # --- variables and assignments

    def _declare(self, variable: ir.Variable) -> Execute:
        """Reset a variable without an initial value (11.2) to its default, as BMv2 does (8.25)."""
        cell = self.expressions.cell(variable)
        if is_object(variable.type):
            return lambda: cell.value.clear()
        default = default_scalar(variable.type)

        def declare() -> None:
            cell.value = default

        return declare

    def assign(self, statement: ir.Assign) -> Execute:
        """`target = value` (12.1): a copy; `target = {#}` makes it invalid (8.17)."""
        if isinstance(statement.value, ir.Invalid):
            target = self.expressions.evaluator(statement.target)
            return lambda: target().invalidate()
        value = self.expressions.evaluator(statement.value)
        store = self.store(statement.target)
        return lambda: store(value())

    def store(self, target: ir.Expression) -> Store:
        """Return a function that stores a value in an l-value (6.7)."""
        evaluator = self.expressions.evaluator
        if isinstance(target, ir.Slice):
            return self._store_slice(target)
        if is_object(target.type):
            if isinstance(target, ir.Field) and isinstance(target.base.type, ir.Union):
                union, member = evaluator(target.base), target.name
                return lambda value: union().set_member(member, value)
            place = evaluator(target)
            if isinstance(target.type, ir.Header) and not isinstance(target, ir.Read):
                return lambda value: place().take(value)
            return lambda value: place().assign(value)
        if isinstance(target, ir.Field):
            base, name = evaluator(target.base), target.name

            def store_field(value: Value) -> None:
                base().fields[name] = value

            return store_field
        if not isinstance(target, ir.Read):
            raise TypeError(f"not an l-value: {target!r}")
        cell = self.expressions.cell(target.variable)

        def store_variable(value: Value) -> None:
            cell.value = value

        return store_variable

    def _store_slice(self, target: ir.Slice) -> Store:
        """`base[high:low] = value`: replace only these bits of base (8.6)."""
        kind = target.base.type
        assert isinstance(kind, ir.Bits)
        low, hole = target.low, mask_of(target.high - target.low + 1)
        kept = mask_of(kind.width) & ~(hole << low)
        base, store = self.expressions.evaluator(target.base), self.store(target.base)
        return lambda value: store(wrap(kind, base() & kept | (value & hole) << low))

    # --- control flow

    def _if(self, statement: ir.If) -> Execute:
        """`if (condition) then else other` (12.6)."""
        condition = self.expressions.evaluator(statement.condition)
        then = self.branch(statement, "true", self.body(statement.then))
        other = self.branch(statement, "false", self.body(statement.other))
        return lambda: then() if condition() else other()

    def _switch(self, statement: ir.Switch) -> Execute:
        """Run the body of the first case that lists the subject's value, or default's (12.7)."""
        subject = self.expressions.evaluator(statement.subject)
        default = self.branch(statement, "default", self.body(statement.default))
        bodies: dict[int, Execute] = {}
        for values, case in statement.cases:
            label = ", ".join(map(str, values))
            body = self.branch(statement, label, self.body(case))
            for value in values:
                bodies.setdefault(value, body)
        return lambda: bodies.get(subject(), default)()

    def _loop(self, statement: ir.Loop) -> Execute:
        """`for` (12.8 in the specification's draft of 1.2.6); an iteration is a step."""
        condition_code = self.statements(statement.condition_code)
        condition = self.expressions.evaluator(statement.condition)
        body = self.branch(statement, "body", self.statements(statement.body))
        update = self.statements(statement.update)
        step = self.host.step

        def loop() -> Flow | None:
            while True:
                condition_code()
                if not condition():
                    return None
                step()
                flow = body()
                if flow is Flow.BREAK:
                    return None
                if flow is Flow.RETURN:
                    return flow
                update()

        return loop

    def call(self, run: Execute, copy_out: Sequence[ir.Assign]) -> Execute:
        """Return a function that calls (6.8), then always copies out and inout parameters back.

        Copy-in precedes it, as assignments to the parameters.
        """
        if not copy_out:

            def call() -> None:
                run()

            return call
        copies = self.statements(copy_out)

        def call_and_copy() -> None:
            try:
                run()
            finally:
                copies()

        return call_and_copy

    def _apply(self, statement: ir.ApplyTable) -> Execute:
        """`table.apply()` with its results `hit` and `action_run` (14.2.2)."""
        apply = self.table(statement.table)
        hit = self.expressions.cell(statement.hit) if statement.hit is not None else None
        action_run = statement.action_run
        chosen = self.expressions.cell(action_run) if action_run is not None else None

        def execute() -> None:
            was_hit, index = apply()
            if hit is not None:
                hit.value = was_hit
            if chosen is not None:
                chosen.value = index

        return execute

    def _call_extern(self, call: ir.CallExtern) -> Execute:
        """Return a function that calls an extern (8.22): copy in, run, copy out (6.8)."""
        bound = self.host.bind_extern(call)
        function = bound.function
        given: list[Evaluate] = []
        outputs: list[Store] = []
        for argument in call.arguments:
            scalar = not is_object(argument.value.type)
            if argument.direction != "out" or not scalar:
                given.append(self.expressions.evaluator(argument.value))
            if argument.direction in ("out", "inout") and scalar:
                outputs.append(self.store(argument.value))
        given.extend(self.expressions.evaluator(extra) for extra in bound.extra)
        if call.result is not None:
            outputs.append(self.store(ir.Read(call.result.type, call.result)))

        def execute() -> None:
            results = function(*[value() for value in given])
            if len(outputs) == 1:
                outputs[0](results)
            elif outputs:
                for store, result in zip(outputs, results, strict=True):
                    store(result)

        return execute

    # --- headers and packets

    def _set_valid(self, statement: ir.SetValid) -> Execute:
        """`setValid()` and `setInvalid()` (8.17), of a union's member too (8.19).

        As in BMv2, the packet's length follows; a header with a varbit that becomes valid does not
        count.
        """
        target = statement.header
        kind = target.type
        assert isinstance(kind, ir.Header)
        fixed = not self.expressions.shapes.of(kind).max_varbit
        header = self.expressions.evaluator(target)
        changed = self.host.length_changed
        in_union = isinstance(target, ir.Field) and isinstance(target.base.type, ir.Union)
        union = self.expressions.evaluator(target.base) if isinstance(target, ir.Field) else None
        name = target.name if isinstance(target, ir.Field) else ""

        def set_valid() -> None:
            value = header()
            if fixed and not value.valid:
                changed(value.full_width())
            if in_union and union is not None:
                union().only(name)
            value.validate()

        def set_invalid() -> None:
            value = header()
            if value.valid:
                changed(-value.full_width())
            if in_union and union is not None:
                union().invalidate()
            else:
                value.invalidate()

        return set_valid if statement.valid else set_invalid

    def _extract(self, statement: ir.Extract) -> Execute:
        """`packet.extract(header)` (13.8.1) and `packet.extract(header, width)` (13.8.2).

        A union's other members become invalid (8.19); extracting to `next` advances the stack's
        nextIndex (13.9).
        """
        evaluator = self.expressions.evaluator
        target = statement.target
        header = evaluator(target)
        width = evaluator(statement.varbit_width) if statement.varbit_width is not None else None
        after: list[Execute] = []
        if isinstance(target, ir.Field) and isinstance(target.base.type, ir.Union):
            after.append(self._only(evaluator(target.base), target.name))
        part: ir.Expression = target
        while isinstance(part, ir.Field | ir.Element | ir.StackNext | ir.StackLast):
            if isinstance(part, ir.StackNext):
                after.append(_advance_stack(evaluator(part.base)))
            part = part.base

        def extract() -> None:
            if width is None:
                self.packet.extract(header())
            else:
                self.packet.extract_varbit(header(), width())
            for action in after:
                action()

        return extract

    @staticmethod
    def _only(union: Evaluate, member: str) -> Execute:
        return lambda: union().only(member)

    def _lookahead(self, target: ir.Expression) -> Execute:
        """`target = packet.lookahead<T>()` (13.8.3)."""
        kind, store, width = target.type, self.store(target), bit_width(target.type)
        if not is_object(kind):
            return lambda: store(from_bits(kind, self.packet.peek(width)))

        def look() -> None:
            value = self.expressions.shapes.fresh(kind)
            value.fill(self.packet.peek(width))
            store(value)

        return look

    def _verify(self, statement: ir.Verify) -> Execute:
        """`verify(condition, error)`: reject with the error if the condition is false (13.7)."""
        condition = self.expressions.evaluator(statement.condition)
        error = self.expressions.evaluator(statement.error)

        def verify() -> None:
            if not condition():
                raise RejectSignal(error())

        return verify


def _nothing() -> None:
    """Nothing: an empty body."""


def _exit() -> None:
    """`exit` (12.5)."""
    raise ExitSignal


def _advance_stack(stack: Evaluate) -> Execute:
    def advance() -> None:
        stack().next_index += 1

    return advance
