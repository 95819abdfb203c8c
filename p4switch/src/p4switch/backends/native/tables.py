"""The function of a table: keys, look-up, counters and meters, and the action."""

from __future__ import annotations

from abc import abstractmethod

from p4switch import ir
from p4switch.backends.native.externs import Externs
from p4switch.backends.native.layout import TableLayout
from p4switch.backends.native.types import NARROW, is_scalar, is_wide, scalar_width, words
from p4switch.backends.native.wire import Item
from p4switch.targets.v1model.matches import match_keys


class Tables(Externs):
    """Translates tables."""

    @abstractmethod
    def statements(self, body: list[ir.Statement] | list[ir.Assign]) -> None:
        """Write a list of statements; implemented by the class for statements."""

    def table(self, table: ir.Table, number: int) -> None:
        """Write the body of the table's function: sets *hit and *run, 1 if the action stopped."""
        self.position = table.position
        layout = self.unit.layout.tables[number]
        self.statements(table.key_code)
        self.line(f"table *const t = &sw->tables[{number}];")
        selector = self._selector_items(table)
        self.line("const choice *c = &t->miss->own;")
        self.line("*hit = 0;")
        if table.meters:
            self.line(f"sw->colors[{number}] = 0;")
        if layout.fields:
            self._look_up(table, layout)
            with self.block("if (handle != NO_ENTRY)"):
                self.line("entry *const e = table_entry(t, handle);")
                self.line("*hit = 1;")
                self._observe(table, number)
                self._choose(table, selector)
        self.line("*run = c->action;")
        self.line("int stop = 0;")
        with self.block("switch (c->action)"):
            for index, action in enumerate(table.actions):
                self._action(index, action, layout)
        self.line("return stop;")

    def _look_up(self, table: ir.Table, layout: TableLayout) -> None:
        keys = match_keys(table)
        if layout.direct_bits:
            parts, shift = [], 0
            for part in layout.fields:
                text = f"(u32){self.scalar(keys[part.place].expression)}"
                parts.append(f"{text} << {shift}" if shift else text)
                shift += part.width
            self.line(f"const u32 handle = table_find_direct(t, {' | '.join(parts)});")
            return
        self.line(f"u64 key[{layout.key_words}] = {{0}};")
        for part in layout.fields:
            self._key_part(keys[part.place].expression, part.word, part.shift)
        call = {
            "exact": f"table_find_exact(t, key, {layout.key_words})",
            "lpm": f"table_find_lpm(t, key, {layout.key_words})",
            "scan": f"table_find_scan(t, key, {layout.key_words}, {layout.range_word}, "
            f"{int(layout.range_word < layout.key_words)})",
        }[layout.kind]
        self.line(f"const u32 handle = {call};")

    def _key_part(self, expression: ir.Expression, word: int, shift: int) -> None:
        kind = expression.type
        if is_scalar(kind):
            if scalar_width(kind):
                self.line(f"key[{word}] |= (u64){self.scalar(expression)} << {shift};")
        elif is_wide(kind):
            self.wide_into(f"(key + {word})", expression, fresh=True)
        elif isinstance(kind, ir.Varbit):
            raise self.unsupported("a varbit as a key")
        else:
            raise self.unsupported("a key that is no number")

    def _selector_items(self, table: ir.Table) -> list[Item]:
        return [
            item
            for key in table.keys
            if key.match_kind == "selector"
            for item in self.value_items(key.expression)
        ]

    def _observe(self, table: ir.Table, number: int) -> None:
        if not (table.counters or table.meters or table.support_timeout):
            return
        self.line("e->packets++;")
        self.line("e->bytes += p->input_length;")
        self.line("e->last_hit = sw->now;")
        if table.meters:
            amount = "p->input_length" if self.unit.meters_bytes(table.meters[0]) else "1"
            self.line(f"sw->colors[{number}] = meter_execute(&e->meter, {amount}, sw->now);")

    def _choose(self, table: ir.Table, selector: list[Item]) -> None:
        """Choose an entry's own action, its member's, or that of a member of its group.

        An empty group runs the default action and counts as a hit.
        """
        if table.implementation is None:
            self.line("c = &e->own;")
            return
        instance = table.implementation
        number = self.unit.layout.profiles.index(instance.name)
        self.line(f"const profile *const members = &sw->profiles[{number}];")
        self.line("if (e->kind == ENTRY_ACTION) c = &e->own;")
        with self.block("else if (e->kind == ENTRY_MEMBER)"):
            self.line("c = profile_member(members, e->reference);")
        with self.block("else if (members->groups[e->reference].count)"):
            self.line("const member_group *const group = &members->groups[e->reference];")
            if instance.extern == "action_selector":
                algorithm = ir.Const(ir.BIT32, instance.number(0))
                number_text = self.selector_hash(algorithm, selector)
                self.line(f"const u32 chosen = (u32){number_text} % group->count;")
            else:
                self.line("const u32 chosen = 0;")
            self.line("c = profile_member(members, group->members[chosen]);")

    def _action(self, index: int, entry: ir.TableAction, layout: TableLayout) -> None:
        with self.block(f"case {index}:"):
            for parameter, at in zip(entry.action.data, layout.arguments[index], strict=False):
                place = self.unit.place(parameter.variable)
                kind = parameter.variable.type
                if is_wide(kind):
                    size = words(scalar_width(kind)) * 8
                    self.line(f"memcpy({place}.w, c->arguments + {at}, {size});")
                elif is_scalar(kind):
                    assert scalar_width(kind) <= NARROW
                    c_type = self.unit.types.name(kind)
                    self.line(f"{place} = ({c_type})c->arguments[{at}];")
                else:
                    raise self.unsupported(f"action data of type {type(kind).__name__}")
            self.statements(entry.copy_in)
            self.line(f"stop = {self.unit.function_name(entry.action)}(sw, p, f);")
            self.statements(entry.copy_out)
            self.line("break;")
