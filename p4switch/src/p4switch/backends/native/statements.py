"""Statements and parser states, and whole C functions."""

from __future__ import annotations

from collections.abc import Sequence

from p4switch import ir
from p4switch.backends.native.tables import Tables
from p4switch.backends.native.types import (
    is_scalar,
    is_wide,
    literal,
    scalar_width,
    varbit_of,
    wire_width,
)
from p4switch.backends.native.unit import Unit
from p4switch.midend import visit
from p4switch.midend.call_graph import Function
from p4switch.midend.cycles import has_cycle
from p4switch.position import NOWHERE, UnsupportedError

PARSER_STATES_LIMIT = 100_000
"""State transitions after which a parser counts as endless and rejects with ParserTimeout."""


class Statements(Tables):
    """Translates statements. A C function returns 1 if the program exits or rejects, else 0."""

    def __init__(self, unit: Unit) -> None:
        super().__init__(unit)
        self._updates: list[list[ir.Statement]] = []
        self._counts_states = False

    def statements(self, body: Sequence[ir.Statement]) -> None:
        """Write a list of statements."""
        for statement in body:
            self.position = statement.position
            try:
                self._statement(statement)
            except UnsupportedError as error:
                if error.position != NOWHERE:
                    raise
                raise UnsupportedError(statement.position, error.message) from None

    def _statement(self, statement: ir.Statement) -> None:
        match statement:
            case ir.Declare():
                self._declare(statement.variable)
            case ir.Assign():
                self.assign(statement)
            case ir.If():
                self._if(statement)
            case ir.Switch():
                self._switch(statement)
            case ir.Loop():
                self._loop(statement)
            case ir.Break():
                self.line("break;")
            case ir.Continue():
                self.statements(self._updates[-1])
                self.line("continue;")
            case ir.Return():
                self.line("return 0;")
            case ir.Exit():
                self.line("return 1;")
            case ir.Call():
                self._call(statement)
            case ir.ApplyTable():
                self._apply(statement)
            case ir.CallExtern():
                self.call_extern(statement)
            case ir.Extract():
                self.extract(statement)
            case ir.Lookahead():
                self.lookahead(statement.target)
            case ir.Advance():
                with self.block(""):
                    bits = self.temporary("u64", self.index(statement.bits))
                    self.reject(f"{bits} > (u64)p->length * 8 - p->cursor", "PacketTooShort")
                    self.line(f"p->cursor += (u32){bits};")
            case ir.PacketLength():
                self.store(statement.target, "p->length")
            case ir.Emit():
                with self.block(""):
                    self.emit(statement.value)
            case ir.Verify():
                with self.block(""):
                    condition = self.scalar(statement.condition)
                    with self.block(f"if (UNLIKELY(!{condition}))"):
                        self.line(f"p->parser_error = {self.scalar(statement.error)};")
                        self.line("return 1;")
            case ir.SetValid():
                with self.block(""):
                    self._set_valid(statement)
            case ir.Push():
                with self.block(""):
                    self._push(statement)
            case _:
                raise self.unsupported(f"statement {type(statement).__name__}")

    def _declare(self, variable: ir.Variable) -> None:
        place = self.unit.place(variable)
        if is_scalar(variable.type):
            self.line(f"{place} = 0;")
        else:
            self.line(f"memset(&{place}, 0, sizeof {place});")

    # --- assignments

    def assign(self, statement: ir.Assign) -> None:
        """`target = value`."""
        target, value = statement.target, statement.value
        kind = target.type
        with self.block(""):
            if isinstance(target, ir.Slice):
                self.store_slice(target, value)
            elif is_scalar(kind):
                text = self.scalar(value)
                place = self.place(target, write=True)
                self.line(f"{place} = ({self.unit.types.name(kind)}){text};")
            elif is_wide(kind):
                place = self.place(target, write=True)
                self.wide_into(f"{place}.w", value)
            elif isinstance(value, ir.Invalid):
                self.invalidate(self.place(target, write=True), kind)
            elif isinstance(target, ir.Field) and isinstance(target.base.type, ir.Union):
                self._assign_member(target, value)
            elif (
                isinstance(kind, ir.Header)
                and not isinstance(target, ir.Read)
                and not isinstance(value, ir.Build)
            ):
                self._assign_header(target, value)
            else:
                place = self.place(target, write=True)
                self._copy(place, value, visit.root(target))

    def _assign_header(self, target: ir.Expression, value: ir.Expression) -> None:
        """Copy a valid header; after an invalid one only the validity changes, as in BMv2."""
        place = self.place(target, write=True)
        if isinstance(value, ir.Mux):
            source = self.name()
            self.line(f"{self.unit.types.name(value.type)} {source};")
            self.build_into(source, value)
        else:
            source = self.place(value)
        self.line(f"if ({source}.valid) {place} = {source};")
        self.line(f"else {place}.valid = 0;")

    def _copy(self, place: str, value: ir.Expression, owner: ir.Variable) -> None:
        if isinstance(value, ir.Build | ir.Mux) and owner in visit.reads(value):
            name = self.name()
            self.line(f"{self.unit.types.name(value.type)} {name};")
            self.build_into(name, value)
            self.line(f"{place} = {name};")
        else:
            self.build_into(place, value)

    def _assign_member(self, target: ir.Field, value: ir.Expression) -> None:
        """Make a valid header the union's only one; after an invalid one none is valid."""
        union = self.place(target.base, write=True)
        name = self.name()
        self.line(f"{self.unit.types.name(value.type)} {name};")
        self.build_into(name, value)
        self.invalidate(union, target.base.type)
        self.line(f"if ({name}.valid) {union}.f_{target.name} = {name};")

    def build_into(self, place: str, expression: ir.Expression) -> None:
        """Set a place of any type; the expression must not read it."""
        kind = expression.type
        match expression:
            case ir.Build():
                assert isinstance(kind, ir.Header | ir.Struct)
                for member, value in zip(kind.fields, expression.values, strict=True):
                    self.build_into(f"{place}.f_{member.name}", value)
                if isinstance(kind, ir.Header):
                    self.line(f"{place}.valid = 1;")
            case ir.Invalid():
                self.line(f"memset(&{place}, 0, sizeof {place});")
            case ir.Mux() if not (is_scalar(kind) or is_wide(kind)):
                condition = self.scalar(expression.condition)
                with self.block(f"if ({condition})"):
                    self.build_into(place, expression.then)
                with self.block("else"):
                    self.build_into(place, expression.other)
            case _ if is_scalar(kind):
                self.line(f"{place} = ({self.unit.types.name(kind)}){self.scalar(expression)};")
            case _ if is_wide(kind):
                self.wide_into(f"{place}.w", expression)
            case _:
                self.line(f"{place} = {self.place(expression)};")

    # --- control flow

    def _if(self, statement: ir.If) -> None:
        with self.block(""):
            condition = self.scalar(statement.condition)
            with self.block(f"if ({condition})"):
                self.statements(statement.then)
            if statement.other:
                with self.block("else"):
                    self.statements(statement.other)

    def _switch(self, statement: ir.Switch) -> None:
        """Write a chain of tests: in a C switch, `break` would not leave a surrounding loop."""
        kind = statement.subject.type
        with self.block(""):
            if is_wide(kind):
                subject = self.wide_operand(statement.subject)
            else:
                width = scalar_width(kind)
                subject = self.temporary("u64", self.scalar(statement.subject))
            head = "if"
            for values, body in statement.cases:
                if is_wide(kind):
                    tests = [
                        self.wide_compare("==", statement.subject, ir.Const(kind, value))
                        for value in values
                    ]
                else:
                    tests = [f"{subject} == {literal(value, width)}" for value in values]
                with self.block(f"{head} ({' || '.join(tests) or '0'})"):
                    self.statements(body)
                head = "else if"
            if head == "if":
                self.statements(statement.default)
            elif statement.default:
                with self.block("else"):
                    self.statements(statement.default)

    def _loop(self, statement: ir.Loop) -> None:
        with self.block("for (;;)"):
            self.statements(statement.condition_code)
            condition = self.scalar(statement.condition)
            self.line(f"if (!{condition}) break;")
            self.line("STEP")
            self._updates.append(statement.update)
            self.statements(statement.body)
            self._updates.pop()
            self.statements(statement.update)

    def _call(self, statement: ir.Call) -> None:
        name = self.unit.function_name(statement.callee)
        with self.block(""):
            if not statement.copy_out:
                self.line(f"if ({name}(sw, p, f)) return 1;")
                return
            self.line(f"const int stop = {name}(sw, p, f);")
            self.statements(statement.copy_out)
            self.line("if (stop) return 1;")

    def _apply(self, statement: ir.ApplyTable) -> None:
        name = self.unit.function_name(statement.table)
        with self.block(""):
            self.line("u32 hit, run;")
            self.line(f"if ({name}(sw, p, f, &hit, &run)) return 1;")
            if statement.hit is not None:
                self.line(f"{self.unit.place(statement.hit)} = (u8)hit;")
            if statement.action_run is not None:
                self.line(f"{self.unit.place(statement.action_run)} = run;")

    # --- headers

    def _set_valid(self, statement: ir.SetValid) -> None:
        """Update the packet's length on setValid and setInvalid, as BMv2 does.

        As there, fields keep their values when a header becomes invalid, and lose them when it
        becomes valid.
        """
        header = statement.header
        place = self.place(header, write=True)
        bits = wire_width(header.type)
        varbit = varbit_of(header.type)
        if statement.valid:
            self.only_member(header)
            with self.block(f"if (!{place}.valid)"):
                if varbit is None:
                    self.line(f"p->current_length += {bits // 8};")
                self.line(f"memset(&{place}, 0, sizeof {place});")
                self.line(f"{place}.valid = 1;")
            return
        size = f"{bits}u" if varbit is None else f"({bits}u + {place}{varbit.path}.width)"
        self.line(f"if ({place}.valid) p->current_length -= ({size} + 7) / 8;")
        if isinstance(header, ir.Field) and isinstance(header.base.type, ir.Union):
            self.invalidate(self.place(header.base, write=True), header.base.type)
        else:
            self.invalidate(place, header.type)

    def _push(self, statement: ir.Push) -> None:
        """Swap elements as BMv2 does (stacks.cpp): the new ones are those pushed out, invalid."""
        assert isinstance(statement.stack.type, ir.Stack)
        stack = self.place(statement.stack, write=True)
        kind = statement.stack.type
        size, count = kind.size, abs(statement.count)
        moved = min(count, size)
        pushed = statement.count > 0
        first, last = (0, moved) if pushed else (size - moved, size)
        if 0 < moved < size:
            loop = f"for (u32 i = {size - 1}; i >= {moved}; i--)"
            other = f"{stack}.e[i - {moved}]"
            if not pushed:
                loop = f"for (u32 i = 0; i < {size - moved}; i++)"
                other = f"{stack}.e[i + {moved}]"
            with self.block(loop):
                self.line(f"{self.unit.types.name(kind.element)} element = {stack}.e[i];")
                self.line(f"{stack}.e[i] = {other};")
                self.line(f"{other} = element;")
        if moved:
            with self.block(f"for (u32 i = {first}; i < {last}; i++)"):
                self.invalidate(f"{stack}.e[i]", kind.element)
        if pushed:
            self.line(
                f"{stack}.next = {stack}.next + {moved}u > {size}u ? {size}u : "
                f"{stack}.next + {moved}u;"
            )
        else:
            self.line(f"{stack}.next = {stack}.next > {count}u ? {stack}.next - {count}u : 0;")

    # --- parsers

    def parser(self, block: ir.Block) -> None:
        """Write the locals, then the states as labels."""
        self._counts_states = has_cycle(block)
        if self._counts_states:
            self.line("u32 states = 0;")
        self.statements(block.body)
        self.line("goto state_start;")
        for state in block.states.values():
            if state.name in ("accept", "reject"):
                continue
            self.line(f"state_{state.name}: __attribute__((unused));")
            if self._counts_states:
                self.reject(f"states++ == {PARSER_STATES_LIMIT}", "ParserTimeout")
                self.line("STEP")
            with self.block(""):
                self.statements(state.body)
                if isinstance(state.transition, ir.Goto):
                    self._goto(state.transition.state)
                else:
                    self._select(state.transition)

    def _goto(self, state: str) -> None:
        if state == "accept":
            self.line("return 0;")
        elif state == "reject":
            self.line("return 1;")
        else:
            self.line(f"goto state_{state};")

    def _select(self, select: ir.Select) -> None:
        if self._simple(select):
            self._select_switch(select)
            return
        subjects: list[ir.Expression] = []
        for subject in select.subjects:
            name = self.name("s")
            self.line(f"{self.unit.types.name(subject.type)} {name};")
            self.build_into(name, subject)
            subjects.append(self.unit.named(name, subject.type))
        for keys, state in select.cases:
            with self.block(""):
                if len(keys) == 1 and isinstance(keys[0], ir.InValueSet):
                    tests = [self._value_set_test(subjects, keys[0].value_set)]
                else:
                    pairs = zip(subjects, keys, strict=True)
                    tests = [t for s, key in pairs for t in self._key_tests(s, key)]
                with self.block(f"if ({' && '.join(tests) or '1'})"):
                    self._goto(state)
        self.line(f"p->parser_error = {self.unit.error('NoMatch')};")
        self.line("return 1;")

    def _simple(self, select: ir.Select) -> bool:
        """Return whether there is one scalar subject, and only constants and defaults."""
        return (
            len(select.subjects) == 1
            and is_scalar(select.subjects[0].type)
            and all(
                (isinstance(keys[0], ir.Exactly) and isinstance(keys[0].value, ir.Const))
                or isinstance(keys[0], ir.Anything)
                for keys, _ in select.cases
            )
        )

    def _select_switch(self, select: ir.Select) -> None:
        width = scalar_width(select.subjects[0].type)
        seen: set[str] = set()
        with self.block(f"switch ({self.scalar(select.subjects[0])})"):
            for (key,), state in select.cases:
                if isinstance(key, ir.Anything):
                    self.line("default:")
                    self._goto(state)
                    return
                assert isinstance(key, ir.Exactly) and isinstance(key.value, ir.Const)
                text = literal(int(key.value.value), width)
                if text not in seen:
                    seen.add(text)
                    self.line(f"case {text}:")
                    self._goto(state)
        self.line(f"p->parser_error = {self.unit.error('NoMatch')};")
        self.line("return 1;")

    def _key_tests(self, subject: ir.Expression, key: ir.KeySet) -> list[str]:
        kind = subject.type

        def masked(value: ir.Expression, mask: ir.Expression) -> ir.Expression:
            return ir.Binary(kind, "&", value, mask)

        def test(operator: str, left: ir.Expression, right: ir.Expression) -> str:
            return self.scalar(ir.Binary(ir.BOOL, operator, left, right))

        match key:
            case ir.Exactly():
                return [test("==", subject, key.value)]
            case ir.Masked():
                return [test("==", masked(subject, key.mask), masked(key.value, key.mask))]
            case ir.Between():
                return [test("<=", key.low, subject), test("<=", subject, key.high)]
            case ir.InValueSet():
                raise self.unsupported("a value set next to other key sets")
        return []

    def _value_set_test(self, subjects: list[ir.Expression], value_set: ir.ValueSet) -> str:
        number = self.unit.program.value_sets.index(value_set)
        layout = self.unit.layout.value_sets[number]
        count = self.unit.layout.value_set_words[number]
        self.line(f"u64 key[{max(count, 1)}] = {{0}};")
        for part, subject in zip(layout, subjects, strict=True):
            if part.match_kind == "range" and part.width > 64:
                # value_set_has compares word by word.
                raise self.unsupported(
                    f"value set {value_set.name!r}: a range of more than 64 bits"
                )
            self._key_part(subject, part.word, part.shift)
        return f"value_set_has(&sw->value_sets[{number}], key, {count})"

    # --- functions

    def function(self, function: Function) -> str:
        """Return the whole C function."""
        arguments = "p4_switch *restrict sw, packet *restrict p, frame *restrict f"
        if isinstance(function, ir.Table):
            arguments += ", u32 *hit, u32 *run"
            self.table(function, self.unit.program.tables.index(function))
        elif isinstance(function, ir.Block) and function.kind == "parser":
            self.parser(function)
        else:
            self.statements(function.body)
            self.line("return 0;")
        head = [f"static int {self.unit.function_name(function)}({arguments}) {{"]
        head.append("    (void)sw; (void)p; (void)f;")
        for variable in self.unit.locals_of(function):
            head.append(f"    {self.unit.types.name(variable.type)} {self.unit.place(variable)};")
        for group in sorted(self.register_groups):
            head.append(f"    row{group} *const restrict R{group} = sw->registers.g{group};")
        return "\n".join([*head, *self.lines, "}"])
