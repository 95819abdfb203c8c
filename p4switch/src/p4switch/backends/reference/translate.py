"""From the intermediate representation to Python functions.

Every callable, block, parser state and table becomes a function of no parameters; scalar
variables are module globals of the generated code, objects (see `values`) are globals that are
changed in place. What a construct means is written at the method that translates it; the generated
source can be read with `Translator.source`.

`exit` and a parser's reject are exceptions, so the copy-outs of the calls on the way are
`finally` clauses.
"""

from __future__ import annotations

from collections.abc import Callable as Function
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from p4switch import ir
from p4switch.backends.reference.expressions import ExpressionWriter
from p4switch.backends.reference.values import (
    ClassWriter,
    Object,
    ParserFault,
    bit_width,
    from_bits_text,
    is_object,
    mask_of,
    signed_text,
    to_bits_text,
    zero_text,
)
from p4switch.ir import Bits, Union
from p4switch.midend.cycles import has_cycle

PARSER_STATES_LIMIT = 100_000
"""State transitions of one parser before it counts as endless and rejects with ParserTimeout."""


class ExitSignal(Exception):
    """`exit`: ends the block."""


class RejectSignal(Exception):
    """A parser goes to reject; `error` is the value of the P4 error."""

    def __init__(self, error: int) -> None:
        self.error = error
        super().__init__(error)


@dataclass(slots=True)
class BoundExtern:
    """A call of an extern, ready to run.

    `function` takes the values of the in and inout arguments (objects by reference, to change
    in place) and of `extra`, in order, and returns the new values of the scalar out and inout
    arguments and the result: one bare, several as a tuple.
    """

    function: Function[..., object]
    extra: tuple[ir.Expression, ...] = ()


class Host(Protocol):
    """What the translated code runs in."""

    def bind_extern(self, call: ir.CallExtern) -> BoundExtern:
        """Return the function behind a call."""

    def table_runtime(self, table: ir.Table) -> Object:
        """Return the table's look-up and state: has `apply(key, selector)` and `actions`."""

    def value_set_runtime(self, value_set: ir.ValueSet) -> Object:
        """Return the value set: has `contains(values)`."""

    def step(self) -> None:
        """Count a step of the packet in hand; raises BudgetSpent when it has none left."""

    def length_changed(self, bits: int) -> None:
        """Note that a header became valid (positive) or invalid by setValid or setInvalid."""


class Body:
    """Lines of one function being written."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.assigned: set[str] = set()
        self.depth = 1
        self.temporaries = 0
        self.updates: list[list[ir.Statement]] = []  # of the loops around

    def add(self, line: str) -> None:
        """Append a line, indented to the present depth."""
        self.lines.append("    " * self.depth + line)

    def temporary(self) -> str:
        """Make a fresh local name."""
        self.temporaries += 1
        return f"_{self.temporaries}"


class Translator:
    """Writes the functions of a program into a namespace; compile with `finish`."""

    def __init__(self, program: ir.Program, namespace: dict[str, Object], host: Host) -> None:
        self.program = program
        self.namespace = namespace
        self.host = host
        self.classes = ClassWriter(namespace)
        self.expressions = ExpressionWriter(self.classes, namespace, self.variable)
        self._sources: list[str] = []
        self._variables: dict[int, str] = {}
        self._functions: dict[int, str] = {}
        self._queue: list[Function[[], None]] = []
        self._bound = 0
        namespace.update(
            ExitSignal=ExitSignal,
            RejectSignal=RejectSignal,
            ParserFault=ParserFault,
            length_changed=host.length_changed,
            step=host.step,
        )

    # --- names

    def variable(self, variable: ir.Variable) -> str:
        """Name of a variable; makes its global the first time."""
        name = self._variables.get(id(variable))
        if name is None:
            name = f"v_{variable.name}"
            self._variables[id(variable)] = name
            self.namespace[name] = eval(self.classes.new_text(variable.type), self.namespace)
        return name

    def _function(self, owner: object, label: str, write: Function[[str], None]) -> str:
        """Name of the function for an IR object; has it written the first time."""
        name = self._functions.get(id(owner))
        if name is None:
            clean = "".join(c if c.isalnum() else "_" for c in label)
            name = f"f{len(self._functions)}_{clean}"
            self._functions[id(owner)] = name
            self._queue.append(lambda: write(name))
        return name

    # --- functions

    def block(self, block: ir.Block) -> str:
        """Name of the function that runs a block (its parameters are set before)."""
        if block.kind == "parser":
            return self._function(block, block.name, lambda name: self._parser(name, block))
        return self._function(block, block.name, lambda name: self._write(name, block.body))

    def callable(self, callee: ir.Callable) -> str:
        """Name of the function of an action or function."""
        return self._function(callee, callee.name, lambda name: self._write(name, callee.body))

    def finish(self) -> str:
        """Write what is still wanted, compile it all into the namespace, return the source."""
        while self._queue:
            self._queue.pop()()
        source = "\n\n".join(self._sources)
        exec(compile(source, "<translated P4>", "exec"), self.namespace)
        return source

    def _write(self, name: str, statements: Sequence[ir.Statement]) -> None:
        body = Body()
        self.statements(body, statements)
        self._close(name, body)

    def _close(self, name: str, body: Body, parameters: str = "") -> None:
        lines = [f"def {name}({parameters}):"]
        if body.assigned:
            lines.append(f"    global {', '.join(sorted(body.assigned))}")
        lines.extend(body.lines or ["    pass"])
        self._sources.append("\n".join(lines))

    # --- parsers

    def _parser(self, name: str, block: ir.Block) -> None:
        """Write a parser: its locals, then its states, each of which returns the next one."""
        body = Body()
        self.statements(body, block.body)
        start = self._state(block, "start")
        body.add(f"state = {start}")
        body.add(f"for _ in range({PARSER_STATES_LIMIT}):")
        if has_cycle(block):
            body.add("    step()")
        body.add("    state = state()")
        body.add("    if state is None: return")
        body.add("raise ParserFault('ParserTimeout')")
        self._close(name, body)

    def _state(self, block: ir.Block, name: str) -> str:
        """Source of a state's function; `accept` is None."""
        if name == "accept":
            return "None"
        if name == "reject":
            self.namespace["reject_explicitly"] = _reject_explicitly
            return "reject_explicitly"
        state = block.states[name]
        label = f"{block.name}_{name}"
        return self._function(state, label, lambda n: self._write_state(n, block, state))

    def _write_state(self, name: str, block: ir.Block, state: ir.State) -> None:
        body = Body()
        self.statements(body, state.body)
        if isinstance(state.transition, ir.Goto):
            body.add(f"return {self._state(block, state.transition.state)}")
        else:
            self._select(body, block, state.transition)
        self._close(name, body)

    def _select(self, body: Body, block: ir.Block, select: ir.Select) -> None:
        subjects = []
        for subject in select.subjects:
            name = body.temporary()
            body.add(f"{name} = {self.expressions.text(subject)}")
            subjects.append((name, subject.type))
        for key_sets, target in select.cases:
            if len(key_sets) == 1 and isinstance(key_sets[0], ir.InValueSet):
                tests = [self._value_set_test(subjects, key_sets[0].value_set)]
            else:
                pairs = zip(subjects, key_sets, strict=True)
                tests = [test for (name, _), key in pairs if (test := self._key_test(name, key))]
            condition = " and ".join(tests)
            jump = f"return {self._state(block, target)}"
            if not condition:
                body.add(jump)
                return
            body.add(f"if {condition}: {jump}")
        body.add("raise ParserFault('NoMatch')")

    def _key_test(self, subject: str, key: ir.KeySet) -> str:
        text = self.expressions.text
        match key:
            case ir.Exactly():
                return f"{subject} == {text(key.value)}"
            case ir.Masked():
                mask = text(key.mask)
                return f"{subject} & {mask} == {text(key.value)} & {mask}"
            case ir.Between():
                return f"{text(key.low)} <= {subject} <= {text(key.high)}"
            case ir.Anything():
                return ""
            case ir.InValueSet():
                raise TypeError("a value set stands for all subjects of a select")

    def _value_set_test(self, subjects: list[tuple[str, ir.Type]], value_set: ir.ValueSet) -> str:
        number = next(i for i, v in enumerate(self.program.value_sets) if v is value_set)
        name = f"set_{number}"
        self.namespace[name] = self.host.value_set_runtime(value_set)
        values = "".join(f"{to_bits_text(kind, name)}, " for name, kind in subjects)
        return f"{name}.contains(({values}))"

    # --- statements

    def statements(self, body: Body, statements: Iterable[ir.Statement]) -> None:
        """Translate statements one by one."""
        for statement in statements:
            self._statement(body, statement)

    def _block_of(self, body: Body, statements: Sequence[ir.Statement]) -> None:
        """Write an indented run of statements."""
        body.depth += 1
        before = len(body.lines)
        self.statements(body, statements)
        if len(body.lines) == before:
            body.add("pass")
        body.depth -= 1

    def _statement(self, body: Body, statement: ir.Statement) -> None:
        text = self.expressions.text
        match statement:
            case ir.Declare(variable=variable):
                name = self.variable(variable)
                if is_object(variable.type):
                    body.add(f"{name}.clear()")
                else:
                    self._set_variable(body, variable, zero_text(variable.type))
            case ir.Assign():
                self.assign(body, statement)
            case ir.If():
                self._if(body, statement)
            case ir.Switch():
                self._switch(body, statement)
            case ir.Loop():
                self._loop(body, statement)
            case ir.Break():
                body.add("break")
            case ir.Continue():
                self.statements(body, body.updates[-1])
                body.add("continue")
            case ir.Return():
                body.add("return")
            case ir.Exit():
                body.add("raise ExitSignal")
            case ir.Call():
                callee = statement.callee
                name = self.block(callee) if isinstance(callee, ir.Block) else self.callable(callee)
                self._call(body, f"{name}()", statement.copy_out)
            case ir.ApplyTable():
                self._apply(body, statement)
            case ir.CallExtern():
                self._call_extern(body, statement)
            case ir.Extract():
                self._extract(body, statement)
            case ir.Lookahead(target=target):
                self._lookahead(body, target)
            case ir.Advance(bits=bits):
                body.add(f"packet.advance({text(bits)})")
            case ir.PacketLength(target=target):
                self.store(body, target, "packet.length()")
            case ir.Emit(value=value):
                body.add(f"{text(value)}.emit(frame)")
            case ir.Verify(condition=condition, error=error):
                body.add(f"if not {text(condition)}: raise RejectSignal({text(error)})")
            case ir.SetValid(header=header, valid=valid):
                self._set_valid(body, header, valid)
            case ir.Push(stack=stack, count=count):
                body.add(f"{text(stack)}.push({count})")
            case _:
                raise TypeError(f"{statement.position}: unknown statement {statement!r}")

    def _if(self, body: Body, statement: ir.If) -> None:
        keyword = "if"
        while True:
            body.add(f"{keyword} {self.expressions.text(statement.condition)}:")
            self._block_of(body, statement.then)
            other = statement.other
            if len(other) == 1 and isinstance(other[0], ir.If):
                statement, keyword = other[0], "elif"
                continue
            if other:
                body.add("else:")
                self._block_of(body, other)
            return

    def _switch(self, body: Body, statement: ir.Switch) -> None:
        subject = body.temporary()
        body.add(f"{subject} = {self.expressions.text(statement.subject)}")
        keyword = "if"
        for values, statements in statement.cases:
            body.add(f"{keyword} {subject} in {tuple(values)!r}:")
            self._block_of(body, statements)
            keyword = "elif"
        if not statement.cases:
            self.statements(body, statement.default)
        elif statement.default:
            body.add("else:")
            self._block_of(body, statement.default)

    def _loop(self, body: Body, statement: ir.Loop) -> None:
        body.add("while True:")
        body.depth += 1
        self.statements(body, statement.condition_code)
        body.add(f"if not {self.expressions.text(statement.condition)}: break")
        body.add("step()")
        body.updates.append(statement.update)
        self.statements(body, statement.body)
        body.updates.pop()
        self.statements(body, statement.update)
        body.depth -= 1

    def _call(self, body: Body, call: str, copy_out: Sequence[ir.Assign]) -> None:
        if not copy_out:
            body.add(call)
            return
        body.add("try:")
        body.add(f"    {call}")
        body.add("finally:")
        self._block_of(body, copy_out)

    # --- assignments

    def _set_variable(self, body: Body, variable: ir.Variable, value: str) -> None:
        name = self.variable(variable)
        body.assigned.add(name)
        body.add(f"{name} = {value}")

    def assign(self, body: Body, statement: ir.Assign) -> None:
        """`target = value`: objects are copied into the target, scalars stored."""
        if isinstance(statement.value, ir.Invalid):
            body.add(f"{self.expressions.text(statement.target)}.clear()")
        else:
            self.store(body, statement.target, self.expressions.text(statement.value))

    def store(self, body: Body, target: ir.Expression, value: str) -> None:
        """Store the value of source `value` in an l-value."""
        text = self.expressions.text
        if isinstance(target, ir.Slice):
            self._store_slice(body, target, value)
        elif is_object(target.type):
            if isinstance(target, ir.Field) and isinstance(target.base.type, Union):
                body.add(f"{text(target.base)}.set_member('f_{target.name}', {value})")
            else:
                body.add(f"{text(target)}.assign({value})")
        elif isinstance(target, ir.Read):
            self._set_variable(body, target.variable, value)
        elif isinstance(target, ir.Field):
            body.add(f"{text(target.base)}.f_{target.name} = {value}")
        else:
            raise TypeError(f"not an l-value: {target!r}")

    def _store_slice(self, body: Body, target: ir.Slice, value: str) -> None:
        """`base[high:low] = value` puts the bits between the others of base."""
        kind = target.base.type
        assert isinstance(kind, Bits)
        hole = mask_of(target.high - target.low + 1)
        kept = mask_of(kind.width) & ~(hole << target.low)
        base = self.expressions.text(target.base)
        whole = f"{base} & {kept} | (({value}) & {hole}) << {target.low}"
        if kind.signed:
            whole = signed_text(whole, kind.width)
        self.store(body, target.base, whole)

    def _set_valid(self, body: Body, header: ir.Expression, valid: bool) -> None:
        """BMv2 keeps the packet's length in step with setValid and setInvalid, so do we."""
        assert isinstance(header.type, ir.Header)
        name = body.temporary()
        body.add(f"{name} = {self.expressions.text(header)}")
        varbits = any(isinstance(field.type, ir.Varbit) for field in header.type.fields)
        width = f"{name}.bits()[1]" if varbits else str(bit_width(header.type))
        union = header.base if isinstance(header, ir.Field) else None
        in_union = union is not None and isinstance(union.type, Union)
        if valid:
            body.add(f"if not {name}.valid: length_changed({width})")
            if in_union and isinstance(header, ir.Field):
                body.add(f"{self.expressions.text(header.base)}.only('f_{header.name}')")
            body.add(f"{name}.valid = True")
        else:
            body.add(f"if {name}.valid: length_changed(-{width})")
            if in_union and isinstance(header, ir.Field):
                body.add(f"{self.expressions.text(header.base)}.clear()")
            else:
                body.add(f"{name}.clear()")

    # --- tables

    def _apply(self, body: Body, statement: ir.ApplyTable) -> None:
        table = statement.table
        name = self._function(table, table.name, lambda n: self._table(n, table))
        body.add(f"hit, index = {name}()")
        if statement.hit is not None:
            self._set_variable(body, statement.hit, "hit")
        if statement.action_run is not None:
            self._set_variable(body, statement.action_run, "index")

    def _table(self, name: str, table: ir.Table) -> None:
        """Evaluate the keys, then let the table's runtime look up and run the action."""
        body = Body()
        self.statements(body, table.key_code)
        parts: dict[bool, list[str]] = {False: [], True: []}
        for key in table.keys:
            text = to_bits_text(key.expression.type, self.expressions.text(key.expression))
            if key.match_kind == "selector":
                parts[True].append(f"({text}, {key.width})")
            else:
                parts[False].append(text)
        key_text = "".join(f"{part}, " for part in parts[False])
        selector = "".join(f"{part}, " for part in parts[True])
        runtime = f"{name}_runtime"
        self.namespace[runtime] = self.host.table_runtime(table)
        body.add(f"return {runtime}.apply(({key_text}), ({selector}))")
        self._close(name, body)
        actions = []
        for number, table_action in enumerate(table.actions):
            self._table_action(f"{name}_{number}", table_action)
            actions.append(f"{name}_{number}")
        self._sources.append(f"{runtime}.actions = [{', '.join(actions)}]")

    def _table_action(self, name: str, table_action: ir.TableAction) -> None:
        """Return a function of the action's data: as the control plane gives it, unsigned."""
        body = Body()
        data = table_action.action.data
        for number, parameter in enumerate(data):
            value = from_bits_text(parameter.variable.type, f"d{number}")
            self._set_variable(body, parameter.variable, value)
        self.statements(body, table_action.copy_in)
        self._call(body, f"{self.callable(table_action.action)}()", table_action.copy_out)
        self._close(name, body, ", ".join(f"d{i}" for i in range(len(data))))

    # --- externs

    def _call_extern(self, body: Body, call: ir.CallExtern) -> None:
        bound = self.host.bind_extern(call)
        self._bound += 1
        name = f"x{self._bound}_{call.method}"
        self.namespace[name] = bound.function
        given: list[str] = []
        outputs: list[ir.Expression] = []
        for argument in call.arguments:
            scalar = not is_object(argument.value.type)
            if argument.direction != "out" or not scalar:
                given.append(self.expressions.text(argument.value))
            if argument.direction in ("out", "inout") and scalar:
                outputs.append(argument.value)
        given.extend(self.expressions.text(extra) for extra in bound.extra)
        invocation = f"{name}({', '.join(given)})"
        if call.result is not None:
            outputs.append(ir.Read(call.result.type, call.result))
        if not outputs:
            body.add(invocation)
        elif len(outputs) == 1:
            self.store(body, outputs[0], invocation)
        else:
            names = [body.temporary() for _ in outputs]
            body.add(f"{', '.join(names)} = {invocation}")
            for output, temporary in zip(outputs, names, strict=True):
                self.store(body, output, temporary)

    # --- packets

    def _extract(self, body: Body, statement: ir.Extract) -> None:
        """Extract; advance nextIndex of a stack, make a union's member the valid one."""
        text = self.expressions.text
        target = statement.target
        name = body.temporary()
        body.add(f"{name} = {text(target)}")
        if statement.varbit_width is None:
            body.add(f"packet.extract({name})")
        else:
            body.add(f"packet.extract_varbit({name}, {text(statement.varbit_width)})")
        if isinstance(target, ir.Field) and isinstance(target.base.type, Union):
            body.add(f"{text(target.base)}.only('f_{target.name}')")
        part: ir.Expression = target
        while isinstance(part, ir.Field | ir.Element | ir.StackNext | ir.StackLast):
            if isinstance(part, ir.StackNext):
                body.add(f"{text(part.base)}.next_index += 1")
            part = part.base

    def _lookahead(self, body: Body, target: ir.Expression) -> None:
        if is_object(target.type):
            name = body.temporary()
            body.add(f"{name} = {self.classes.new_text(target.type)}")
            body.add(f"packet.peek_into({name})")
            self.store(body, target, name)
        else:
            name = body.temporary()
            body.add(f"{name} = packet.peek({bit_width(target.type)})")
            self.store(body, target, from_bits_text(target.type, name))


def _reject_explicitly() -> None:
    """`transition reject`: no error goes with it."""
    raise RejectSignal(0)
