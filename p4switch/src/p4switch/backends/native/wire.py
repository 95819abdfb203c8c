"""Reading and writing headers, and packing values into bytes for hashes and checksums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from p4switch import ir
from p4switch.backends.native.types import (
    NARROW,
    Leaf,
    has_stack,
    is_composite,
    is_scalar,
    leaves,
    mask_of,
    scalar_width,
    storage,
    varbit_of,
    wire_width,
)
from p4switch.backends.native.wide import Wide

SHORTEST_RUN = 4
"""Minimum number of equal adjacent fields that are read and written in a loop."""


@dataclass(frozen=True, slots=True)
class Item:
    """Something to pack: C text of a scalar, or of an array of words, or of a varbit struct."""

    text: str
    width: int
    kind: str  # scalar, wide, varbit
    leaf: Leaf | None = None


class Wire(Wide):
    """Translates accesses to the packet's bytes."""

    # --- reading

    def read_fields(self, place: str, kind: ir.Type, source: str, bit: str | None) -> None:
        """Set all leaves of `place` from the bytes at C pointer `source`.

        `bit`: C text of the bit offset there, None if it is 0. A varbit's width is already set.
        """
        found = leaves(kind)
        position = 0
        shift = ""  # Of fields after a varbit.
        while position < len(found):
            leaf = found[position]
            at = leaf.offset
            if isinstance(leaf.type, ir.Varbit):
                size = max(1, (leaf.width + 7) // 8)
                varbit = f"{place}{leaf.path}"
                offset = f"{bit or 0} + {at}"
                self.line(f"get_varbit(&{varbit}, {size}, {source}, {offset}, {varbit}.width);")
                shift = f" + {varbit}.width"
                position += 1
                continue
            if bit is not None or shift:
                self._read_anywhere(place, leaf, source, f"{bit or 0} + {at}{shift}")
                position += 1
                continue
            run = run_length(found, position)
            if run >= SHORTEST_RUN:
                pointer = run_pointer(place, leaf)
                self.line(f"get_run{leaf.width}({pointer}, {source} + {at // 8}, {run});")
                position += run
                continue
            self._read_fixed(place, leaf, source)
            position += 1

    def _read_anywhere(self, place: str, leaf: Leaf, source: str, at: str) -> None:
        if leaf.width > NARROW:
            self.line(f"get_wide({place}{leaf.path}.w, {source}, {at}, {leaf.width});")
        else:
            kind = storage(leaf.width)
            self.line(f"{place}{leaf.path} = ({kind})get_bits({source}, {at}, {leaf.width});")

    def _read_fixed(self, place: str, leaf: Leaf, source: str) -> None:
        at, width = leaf.offset, leaf.width
        target = f"{place}{leaf.path}"
        if width > NARROW:
            self.line(f"get_wide({target}.w, {source}, {at}, {width});")
            return
        first, end = at // 8, (at + width + 7) // 8
        kind = storage(width)
        if width == 0:
            self.line(f"{target} = 0;")
        elif end - first > 8:
            self.line(f"{target} = get_bits({source}, {at}, {width});")
        else:
            text = f"load_be({source} + {first}, {end - first})"
            below = end * 8 - at - width
            if below:
                text = f"{text} >> {below}"
            if (end - first) * 8 - below != width:
                text = (
                    f"({text}) & {mask_of(width):#x}u"
                    if width <= 32
                    else (f"({text}) & {mask_of(width):#x}ull")
                )
            self.line(f"{target} = ({kind})({text});")

    # --- writing

    def write_items(self, items: Sequence[Item], target: str, bit: str | None) -> None:
        """Write consecutive items at C pointer `target`.

        `bit`: C text of the bit offset there, None if it is 0. Whole bytes are written only if the
        items fill them; bits after the items in a last byte become zero if `bit` is None.
        """
        if bit is not None or any(item.kind == "varbit" for item in items):
            self._write_anywhere(items, target, bit or "0")
            return
        at = 0
        position = 0
        while position < len(items):
            item = items[position]
            if at % 8 == 0 and item.leaf is not None:
                run = item_run(items, position)
                if run >= SHORTEST_RUN:
                    pointer = run_pointer(item.text.removesuffix(item.leaf.path), item.leaf)
                    self.line(f"put_run{item.width}({target} + {at // 8}, {pointer}, {run});")
                    at += run * item.width
                    position += run
                    continue
            group = group_length(items, position) if at % 8 == 0 else 0
            if group:
                parts = items[position : position + group]
                total = sum(part.width for part in parts)
                size = (total + 7) // 8
                self.line(f"store_be({target} + {at // 8}, {joined(parts, size * 8)}, {size});")
                at += total
                position += group
                continue
            self._write_one(item, target, str(at))
            at += item.width
            position += 1

    def _write_anywhere(self, items: Sequence[Item], target: str, bit: str) -> None:
        at = 0
        shift = ""
        for item in items:
            self._write_one(item, target, f"{bit} + {at}{shift}")
            if item.kind == "varbit":
                shift += f" + {item.text}.width"
            else:
                at += item.width

    def _write_one(self, item: Item, target: str, at: str) -> None:
        if item.kind == "wide":
            self.line(f"put_wide({target}, {at}, {item.width}, {item.text});")
        elif item.kind == "varbit":
            self.line(f"put_varbit({target}, {at}, &{item.text});")
        elif item.width:
            self.line(f"put_bits({target}, {at}, {item.width}, {item.text});")

    def place_items(self, place: str, kind: ir.Type) -> list[Item]:
        """Return items for all leaves of a place of header or struct type."""
        if has_stack(kind):
            # Only its valid elements count, which are known only at run time.
            raise self.unsupported("a stack as data")
        found = []
        for leaf in leaves(kind):
            text = f"{place}{leaf.path}"
            if isinstance(leaf.type, ir.Varbit):
                found.append(Item(text, leaf.width, "varbit", leaf))
            elif leaf.width > NARROW:
                found.append(Item(f"{text}.w", leaf.width, "wide"))
            else:
                found.append(Item(text, leaf.width, "scalar", leaf))
        return found

    def value_items(self, expression: ir.Expression) -> Iterator[Item]:
        """Return items for a value: scalars, or all leaves of a tuple or struct."""
        kind = expression.type
        if isinstance(expression, ir.Build):
            for value in expression.values:
                yield from self.value_items(value)
        elif isinstance(kind, ir.Varbit):
            yield Item(self.value_place(expression), kind.max_width, "varbit")
        elif is_composite(kind):
            yield from self.place_items(self.value_place(expression), kind)
        elif is_scalar(kind):
            width = scalar_width(kind)
            yield Item(self.temporary("u64", self.scalar(expression)), width, "scalar")
        elif isinstance(kind, ir.Bits):
            yield Item(self.wide_operand(expression), kind.width, "wide")
        else:
            raise self.unsupported(f"{type(kind).__name__} as data")

    def packed_items(self, items: Sequence[Item]) -> tuple[str, str]:
        """Return a C array with the items packed, padded to whole bytes, and its length."""
        most = sum(item.width for item in items)
        name = self.name("b")
        self.line(f"u8 {name}[{max(1, (most + 7) // 8)}];")
        varbits = [item for item in items if item.kind == "varbit"]
        if varbits or any(item.width % 8 for item in items):
            self.line(f"memset({name}, 0, sizeof {name});")
        self.write_items(items, name, None)
        if not varbits:
            return name, str((most + 7) // 8)
        fixed = most - sum(item.width for item in varbits)
        total = " + ".join([str(fixed), *(f"{item.text}.width" for item in varbits)])
        return name, f"({total} + 7) / 8"

    # --- statements

    def extract(self, statement: ir.Extract) -> None:
        """`packet.extract`: the checks in BMv2's order (parser.cpp, extract_VL)."""
        target = statement.target
        kind = target.type
        place = self.place(target, write=True)
        width = wire_width(kind)
        varbit = varbit_of(kind)
        size = str(width)
        with self.block(""):
            if statement.varbit_width is not None and varbit is not None:
                bits = self.temporary("u64", self.index(statement.varbit_width))
                self.reject(f"{bits} % 8", "ParserInvalidArgument")
                size = f"({width} + {bits})"
                self.reject(f"p->cursor + {size} > (u64)p->length * 8", "PacketTooShort")
                self.reject(f"{bits} > {varbit.width}", "HeaderTooShort")
                self.line(f"{place}{varbit.path}.width = (u32){bits};")
            else:
                self.reject(f"p->cursor + {size}ull > (u64)p->length * 8", "PacketTooShort")
            self._read_at_cursor(place, kind)
            if isinstance(kind, ir.Header):
                self.line(f"{place}.valid = 1;")
            self.line(f"p->cursor += (u32){size};")
            self.only_member(target)
        part: ir.Expression = target
        while isinstance(part, ir.Field | ir.Element | ir.StackNext | ir.StackLast):
            if isinstance(part, ir.StackNext):
                self.line(f"{self.place(part.base, write=True)}.next++;")
            part = part.base

    def _read_at_cursor(self, place: str, kind: ir.Type) -> None:
        if self.unit.aligned:
            source = self.temporary("u8 *", "p->data + p->cursor / 8", "d")
            self.read_fields(place, kind, source, None)
        else:
            self.read_fields(place, kind, "p->data", "p->cursor")

    def lookahead(self, target: ir.Expression) -> None:
        """`target = packet.lookahead<T>()`."""
        kind = target.type
        width = wire_width(kind)
        with self.block(""):
            self.reject(f"p->cursor + {width}ull > (u64)p->length * 8", "PacketTooShort")
            name = self.name("ahead")
            self.line(f"{self.unit.types.name(kind)} {name};")
            if is_composite(kind):
                self.line(f"memset(&{name}, 0, sizeof {name});")
            self._read_at_cursor(name, kind)
            for path in header_paths(kind):
                self.line(f"{name}{path}.valid = 1;")
            self.line(f"{self.place(target, write=True)} = {name};")

    def only_member(self, target: ir.Expression) -> None:
        """If the target is a union's member, make the others invalid."""
        if isinstance(target, ir.Field) and isinstance(target.base.type, ir.Union):
            union = self.place(target.base, write=True)
            for member in target.base.type.fields:
                if member.name != target.name:
                    self.invalidate(f"{union}.f_{member.name}", member.type)

    def invalidate(self, place: str, kind: ir.Type) -> None:
        """Make a header, or all of a union's, invalid; the fields keep their values."""
        if isinstance(kind, ir.Union):
            for member in kind.fields:
                self.invalidate(f"{place}.f_{member.name}", member.type)
        else:
            self.line(f"{place}.valid = 0;")

    def emit(self, expression: ir.Expression) -> None:
        """`packet.emit`: valid headers, in order."""
        self._emit(self.value_place(expression), expression.type)

    def _emit(self, place: str, kind: ir.Type) -> None:
        if isinstance(kind, ir.Struct | ir.Union):
            for member in kind.fields:
                if is_composite(member.type):
                    self._emit(f"{place}.f_{member.name}", member.type)
        elif isinstance(kind, ir.Stack):
            index = self.name("i")
            with self.block(f"for (u32 {index} = 0; {index} < {kind.size}; {index}++)"):
                self._emit(f"{place}.e[{index}]", kind.element)
        elif isinstance(kind, ir.Header):
            with self.block(f"if ({place}.valid)"):
                varbit = varbit_of(kind)
                bits = str(wire_width(kind))
                if varbit is not None:
                    bits += f" + {place}{varbit.path}.width"
                self.line(f"u8 *const out = emit_room(sw, {bits});")
                self.line("if (UNLIKELY(!out)) return 1;")
                bit = None if self.unit.aligned else "sw->emitted % 8"
                self.write_items(self.place_items(place, kind), "out", bit)
                self.line(f"sw->emitted += {bits};")


def header_paths(kind: ir.Type, prefix: str = "") -> Iterator[str]:
    """Yield C paths to the headers in a type."""
    if isinstance(kind, ir.Header):
        yield prefix
    if isinstance(kind, ir.Header | ir.Struct):
        for member in kind.fields:
            yield from header_paths(member.type, f"{prefix}.f_{member.name}")
    elif isinstance(kind, ir.Stack):
        for index in range(kind.size):
            yield from header_paths(kind.element, f"{prefix}.e[{index}]")


def run_length(found: Sequence[Leaf], start: int) -> int:
    """Return how many leaves from `start` on are adjacent and of one whole-byte storage width."""
    first = found[start]
    if first.width not in (8, 16, 32, 64) or first.offset % 8 or isinstance(first.type, ir.Bool):
        return 1
    end = start + 1
    while (
        end < len(found)
        and found[end].width == first.width
        and found[end].parent == first.parent
        and not isinstance(found[end].type, ir.Varbit | ir.Bool)
    ):
        end += 1
    return end - start


def item_run(items: Sequence[Item], start: int) -> int:
    """Return the `run_length` of items, which must be the leaves of one place."""
    end = start
    run: list[Leaf] = []
    first = items[start].leaf
    assert first is not None
    prefix = items[start].text.removesuffix(first.path)
    while end < len(items):
        leaf = items[end].leaf
        if leaf is None or items[end].kind != "scalar" or items[end].text != prefix + leaf.path:
            break
        run.append(leaf)
        end += 1
    return run_length(run, 0) if run else 1


def run_pointer(place: str, leaf: Leaf) -> str:
    """Return a pointer to a run of fields, derived from their struct to cover them all."""
    parent = f"{place}{leaf.parent}"
    field = leaf.path.removeprefix(leaf.parent).removeprefix(".")
    kind = storage(leaf.width)
    return f"({kind} *)(void *)((u8 *)&{parent} + offsetof(__typeof__({parent}), {field}))"


def group_length(items: Sequence[Item], start: int) -> int:
    """Return how many scalars from `start` on fill whole bytes, at most eight; 0 if they do not.

    At the end of the items, the last byte need not be full.
    """
    total = 0
    for position in range(start, len(items)):
        if items[position].kind != "scalar":
            return 0
        total += items[position].width
        if total > NARROW:
            return 0
        if total % 8 == 0 and total:
            return position + 1 - start
    return len(items) - start if total else 0


def joined(parts: Sequence[Item], bits: int) -> str:
    """Return the C text of concatenated scalars at the top of `bits` bits."""
    texts = []
    for part in parts:
        if not part.width:
            continue
        bits -= part.width
        texts.append(f"(u64){part.text} << {bits}" if bits else f"(u64){part.text}")
    return " | ".join(texts)
