"""Random v1model programs, one for each seed, within what p4c takes for BMv2."""

from __future__ import annotations

import random

WIDTHS = (1, 3, 4, 7, 8, 9, 12, 16, 24, 31, 32, 33, 48, 64)
ARITHMETIC = ("+", "-", "*", "&", "|", "^", "|+|", "|-|")
COMPARISONS = ("==", "!=", "<", ">", "<=", ">=")
PORTS = 4
"""Packets leave at ports 1..3; they come in at 0."""
CELLS = 8

FRAME = """#include <core.p4>
#include <v1model.p4>
{headers}
struct headers_t {{ first_t first; second_t second; item_t[3] items; }}
struct metadata_t {{ {metadata} }}
parser P(packet_in p, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {{
    state start {{
        {zero}
        p.extract(h.first);
        transition select(h.first.kind) {{
            {select}
        }}
    }}
    state parse_second {{ p.extract(h.second); transition accept; }}
    state parse_items {{
        p.extract(h.items.next);
        transition select(h.items.last.last) {{ 0 : parse_items; _ : accept; }}
    }}
}}
control V(inout headers_t h, inout metadata_t m) {{ apply {{ }} }}
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {{
    register<bit<32>>({cells}) memory;
    action drop() {{ mark_to_drop(s); }}
    action pass() {{ }}
    {actions}
    {tables}
    apply {{
        if (!h.first.isValid()) {{ drop(); exit; }}
        s.egress_spec = (bit<9>) h.first.kind[0:0] + 1;
        {ingress}
    }}
}}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {{
    apply {{
        {egress}
    }}
}}
control C(inout headers_t h, inout metadata_t m) {{ apply {{ }} }}
control D(packet_out p, in headers_t h) {{ apply {{ p.emit(h); }} }}
V1Switch(P(), V(), I(), E(), C(), D()) main;
"""


class Generator:
    """Makes the text of one program."""

    def __init__(self, seed: int, beyond: bool) -> None:
        self.rng = random.Random(seed)
        self._beyond = beyond
        self.fields: list[tuple[str, int]] = []
        """(name, width) of what statements may read and write: it always has a value."""
        self.second: list[tuple[str, int]] = []
        """Fields of a header that may be invalid: for statements where it is known to be valid."""
        self.tables: list[str] = []
        self.padded = False
        """Whether the second header has padding."""
        self._locals = 0

    def text(self) -> str:
        """Return the program."""
        headers = "\n".join(
            [
                self.header("first_t", "h.first", "bit<8> kind;", self.fields),
                self.header("second_t", "h.second", "", self.second),
                "header item_t { bit<7> value; bit<1> last; }",
            ]
        )
        metadata = []
        for number in range(self.rng.randint(1, 4)):
            width = self.rng.choice(WIDTHS)
            metadata.append(f"bit<{width}> m{number};")
            self.fields.append((f"m.m{number}", width))
        zero = " ".join(f"m.m{n} = 0;" for n in range(len(metadata)))
        names = [f"a{number}" for number in range(self.rng.randint(1, 3))]
        actions = "\n    ".join(self.action(name) for name in names)
        tables = "\n    ".join(
            self.table(f"t{number}", names) for number in range(self.rng.randint(1, 3))
        )
        return FRAME.format(
            headers=headers,
            metadata=" ".join(metadata),
            zero=zero,
            select=self.select(),
            cells=CELLS,
            actions=actions,
            tables=tables,
            ingress="\n        ".join(self.statements(2, self.rng.randint(3, 8), "memory")),
            egress="\n        ".join(self.statements(1, self.rng.randint(0, 4), "")),
        )

    def header(self, name: str, place: str, before: str, known: list[tuple[str, int]]) -> str:
        """Declare a header of whole bytes; its fields become known."""
        widths = [self.rng.choice(WIDTHS) for _ in range(self.rng.randint(1, 5))]
        fields = [f"bit<{width}> f{number};" for number, width in enumerate(widths)]
        known += [(f"{place}.f{number}", width) for number, width in enumerate(widths)]
        padding = -sum(widths) % 8
        if padding:
            fields.append(f"bit<{padding}> padding;")
        self.padded = bool(padding)
        return f"header {name} {{ {before} {' '.join(fields)} }}"

    def select(self) -> str:
        """Cases of the first select."""
        cases = [
            f"{self.rng.randrange(256)} &&& {self.rng.choice((0x0F, 0xF0, 0x81, 0x03))}",
            f"{self.rng.randrange(100)} .. {self.rng.randrange(100, 256)}",
            str(self.rng.randrange(256)),
        ]
        self.rng.shuffle(cases)
        targets = ("parse_second", "parse_items", "accept")
        lines = [f"{case} : {self.rng.choice(targets)};" for case in cases]
        return " ".join([*lines, "_ : accept;"])

    def action(self, name: str) -> str:
        """An action with data, which is used where its width fits."""
        width = self.rng.choice((9, 16, 32))
        before = list(self.fields)
        self.fields.append(("d", width))
        value = self.expression(2, self.rng.choice(before)[1])
        self.fields = before
        place, place_width = self.rng.choice(before)
        body = f"{place} = (bit<{place_width}>) ({value});"
        return f"action {name}(bit<{width}> d) {{ {body} s.egress_spec = (bit<9>) d[1:0]; }}"

    def table(self, name: str, actions: list[str]) -> str:
        """A table with constant entries, so that no control plane is needed."""
        self.tables.append(name)
        keys = [self.rng.choice(self.fields) for _ in range(self.rng.randint(1, 2))]
        # BMv2 matches too few bits of constant lpm entries whose key is not of whole bytes.
        kinds = [
            self.rng.choice(("exact", "ternary", "lpm") if width % 8 == 0 else ("exact", "ternary"))
            for _, width in keys
        ]
        if kinds.count("lpm") > 1:
            kinds = ["lpm", "exact"]
        priorities = "ternary" in kinds
        seen: set[tuple[str, ...]] = set()
        entries = []
        for _ in range(self.rng.randint(0, 6)):
            matches = tuple(
                self.match(kind, width) for kind, (_, width) in zip(kinds, keys, strict=True)
            )
            if matches in seen:
                continue
            seen.add(matches)
            call = f"{self.rng.choice(actions)}({self.rng.randrange(1 << 9)})"
            entries.append(
                f"({', '.join(matches)}) : {self.rng.choice((call, 'drop()', 'pass()'))};"
            )
        if "lpm" in kinds and not priorities:
            entries = entries[:1]
        key = " ".join(
            f'{f} : {kind} @name("k{n}");'
            for n, ((f, _), kind) in enumerate(zip(keys, kinds, strict=True))
        )
        listed = "; ".join((*actions, "drop", "pass"))
        constant = f"const entries = {{ {' '.join(entries)} }}" if entries else ""
        return (
            f"table {name} {{ key = {{ {key} }} actions = {{ {listed}; }} "
            f"default_action = {self.rng.choice(('drop()', 'pass()'))}; {constant} }}"
        )

    def match(self, kind: str, width: int) -> str:
        """A key set, small numbers more often than others."""
        value = self.rng.getrandbits(self.rng.choice((1, 3, width)) if width > 3 else width)
        full = (1 << width) - 1
        value &= full
        if kind == "ternary":
            mask = self.rng.choice((full, self.rng.getrandbits(width) | 1))
            return f"{value & mask} &&& {mask}"
        if kind == "lpm":
            length = self.rng.randint(1, width)
            mask = full & ~(full >> length)
            return f"{value & mask} &&& {mask}"
        return str(value)

    def statements(self, depth: int, count: int, register: str) -> list[str]:
        """Some statements; tables are applied at the outermost level of ingress, once each."""
        made = []
        for _ in range(count):
            kind = self.rng.randrange(8)
            if kind < 4:
                place, width = self.rng.choice(self.fields)
                made.append(f"{place} = {self.expression(3, width)};")
            elif kind == 4 and depth and self.rng.random() < 0.4:
                made.append(self.where_valid(depth))
            elif kind == 4 and depth:
                inner = " ".join(self.statements(depth - 1, self.rng.randint(1, 2), ""))
                other = " ".join(self.statements(depth - 1, self.rng.randint(0, 2), ""))
                made.append(f"if ({self.condition(2)}) {{ {inner} }} else {{ {other} }}")
            elif kind == 5:
                header = self.rng.choice(("h.second", "h.items[1]"))
                made.append(f"{header}.set{self.rng.choice(('Valid', 'Invalid'))}();")
                if made[-1].endswith("setValid();"):
                    made.append(self.filled(header))
            elif kind == 6 and register:
                made.append(self.cell(register))
            elif kind == 7 and register and self.tables:
                made.append(f"{self.tables.pop()}.apply();")
        return made

    def where_valid(self, depth: int) -> str:
        """Assignments that may use the second header."""
        outer, self.fields = self.fields, self.fields + self.second
        inner = []
        for _ in range(self.rng.randint(1, 3)):
            place, width = self.rng.choice(self.fields)
            inner.append(f"{place} = {self.expression(depth, width)};")
        self.fields = outer
        return f"if (h.second.isValid()) {{ {' '.join(inner)} }}"

    def filled(self, header: str) -> str:
        """Set all fields: those of a header that has just become valid are unspecified."""
        if header == "h.items[1]":
            return "h.items[1].value = 5; h.items[1].last = 1;"
        return " ".join(
            f"{f} = {self.rng.getrandbits(w)};" for f, w in self.fields if f.startswith(header)
        )

    def cell(self, register: str) -> str:
        """Read, change and write a cell of the register."""
        self._locals += 1
        name = f"c{self._locals}"
        index = self.rng.randrange(CELLS + 1)  # one is out of bounds
        if not self._beyond:
            index = min(index, CELLS - 1)
        return (
            f"bit<32> {name} = 0; {register}.read({name}, {index}); "
            f"{name} = {name} + {self.expression(1, 32)}; {register}.write({index}, {name});"
        )

    def condition(self, depth: int) -> str:
        """A Boolean expression."""
        if depth and self.rng.random() < 0.3:
            joined = self.rng.choice(("&&", "||"))
            return f"({self.condition(depth - 1)} {joined} {self.condition(depth - 1)})"
        if self.rng.random() < 0.2:
            return f"{self.rng.choice(('', '!'))}h.second.isValid()"
        width = self.rng.choice(WIDTHS)
        sign = self.rng.choice(COMPARISONS)
        return f"{self.expression(depth, width)} {sign} {self.expression(depth, width)}"

    def expression(self, depth: int, width: int) -> str:
        """An unsigned expression of a width."""
        choice = self.rng.randrange(10) if depth else self.rng.randrange(3)
        if choice == 0:
            return f"{width}w{self.rng.getrandbits(self.rng.choice((min(width, 3), width)))}"
        if choice < 3:
            place, own = self.rng.choice(self.fields)
            if own == width:
                return place
            if own > width and self.rng.random() < 0.5:
                low = self.rng.randint(0, own - width)
                return f"{place}[{low + width - 1}:{low}]"
            return f"(bit<{width}>) {place}"
        left = self.expression(depth - 1, width)
        if choice < 7:
            return f"({left} {self.rng.choice(ARITHMETIC)} {self.expression(depth - 1, width)})"
        if choice == 7:
            return f"({left} {self.rng.choice(('<<', '>>'))} {self.rng.randrange(width + 2)})"
        if choice == 8:
            return f"({self.rng.choice(('~', '-'))}{left})"
        other = self.expression(depth - 1, width)
        return f"({self.condition(depth - 1)} ? {left} : {other})"


def program_of(seed: int, *, beyond: bool = True) -> str:
    """Return the text of a seed's program.

    `beyond`: with indices beyond registers, too, which BMv2 does not check if it is built with
    -DNDEBUG.
    """
    return Generator(seed, beyond).text()


def frames_of(seed: int, count: int) -> list[bytes]:
    """Return a seed's frames: all lengths, small numbers and all ones more often than others."""
    rng = random.Random(seed ^ 0x5EED)
    frames = []
    for _ in range(count):
        frame = bytearray(rng.randbytes(rng.choice((14, 20, 40, 60, 60, 90))))
        for place in range(len(frame)):
            if rng.random() < 0.4:
                frame[place] = rng.choice((0, 1, 2, 3, 0x80, 0xFF))
        frames.append(bytes(frame))
    return frames
