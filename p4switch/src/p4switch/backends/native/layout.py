"""Memory layouts: table keys and action data, register rows, records.

The C generator writes code for these layouts, and the engine packs the control plane's data by
them. They depend only on the program and are cached with the compiled object.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from p4switch import ir
from p4switch.backends.native.types import NARROW, scalar_width, words
from p4switch.targets.v1model.engine import KeyMatch, TableEntry
from p4switch.targets.v1model.matches import PRIORITY_KINDS, match_keys, ternary_form

DIRECT_LIMIT = 12
"""Widest key, in bits, of tables that are indexed directly (tables.h)."""


@dataclass(frozen=True, slots=True)
class KeyField:
    """A key: `place` in the table's match keys, at bit `shift` of word `word` on."""

    place: int
    match_kind: str
    width: int
    word: int
    shift: int


@dataclass
class TableLayout:
    """A table's key words and the words of each action's data."""

    kind: str
    """`exact`, `lpm` or `scan`."""
    key_words: int
    fields: tuple[KeyField, ...]
    range_word: int
    """First word of range keys, which do not share words."""
    arguments: tuple[tuple[int, ...], ...]
    """For each action, the first word of each datum, then the number of words."""

    @cached_property
    def argument_words(self) -> int:
        """Return the words of the longest action data."""
        return max((words[-1] for words in self.arguments), default=0)

    @cached_property
    def direct_bits(self) -> int:
        """Return the total width of the keys if the table is indexed directly, else 0."""
        total = sum(f.width for f in self.fields)
        narrow = all(f.width <= NARROW for f in self.fields)
        return total if narrow and 0 < total <= DIRECT_LIMIT else 0

    def pack(self, entry: TableEntry) -> tuple[bytes, bytes]:
        """Return value and mask words (ranges: low, high); lpm: followed by the prefix length."""
        values = masks = 0
        for part in self.fields:
            match = entry.matches[part.place]
            value, mask = _bounds(match, part)
            shift = 64 * part.word + part.shift
            values |= value << shift
            masks |= mask << shift
            if part.match_kind == "lpm" and self.kind == "lpm":
                values |= match.prefix_length << 64 * self.key_words
        size = self.key_words + 1 if self.kind == "lpm" else self.key_words
        return pack_words(values, size), pack_words(masks, size)

    def pack_arguments(self, choice: ir.ActionChoice) -> bytes:
        """Return an action's data as words."""
        packed = 0
        places = self.arguments[choice.index]
        for place, end, value in zip(places, places[1:], choice.arguments, strict=False):
            # A negative number, of a source's default action, in two's complement.
            packed |= (value & (1 << 64 * (end - place)) - 1) << 64 * place
        return pack_words(packed, self.argument_words)


def pack_words(value: int, size: int) -> bytes:
    """Return a number as words in C's memory, the least significant first."""
    return value.to_bytes(8 * size, "little")


def _bounds(match: KeyMatch, part: KeyField) -> tuple[int, int]:
    if part.match_kind == "range":
        return (0, (1 << part.width) - 1) if match.any else (match.value, match.high)
    return ternary_form(match, part.match_kind, part.width)


def place_fields(widths: list[int]) -> tuple[list[tuple[int, int]], int]:
    """Return (word, shift) of each field, packed within words, and the number of words."""
    places = []
    word, used = 0, 0
    for width in widths:
        if width > NARROW or used + width > 64:
            if used:
                word, used = word + 1, 0
            if width > NARROW:
                places.append((word, 0))
                word += words(width)
                continue
        places.append((word, used))
        used += width
    return places, word + (1 if used else 0)


def table_layout(table: ir.Table) -> TableLayout:
    """Return the layout of a table."""
    keys = match_keys(table)
    kinds = [key.match_kind for key in keys]
    if any(kind in PRIORITY_KINDS for kind in kinds) or kinds.count("lpm") > 1:
        kind = "scan"
    else:
        kind = "lpm" if "lpm" in kinds else "exact"
    masked = [i for i, k in enumerate(kinds) if k != "range"]
    ranges = [i for i, k in enumerate(kinds) if k == "range"]
    places, range_word = place_fields([keys[i].width for i in masked])
    fields = [
        KeyField(i, kinds[i], keys[i].width, *place)
        for i, place in zip(masked, places, strict=True)
    ]
    word = range_word
    for i in ranges:
        fields.append(KeyField(i, "range", keys[i].width, word, 0))
        word += words(keys[i].width)
    arguments = []
    for action in table.actions:
        firsts = [0]
        for parameter in action.action.data:
            firsts.append(firsts[-1] + words(scalar_width(parameter.variable.type)))
        arguments.append(tuple(firsts))
    return TableLayout(kind, word, tuple(fields), range_word, tuple(arguments))


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """A record that the program writes for Python: a digest, or a message with `text`."""

    name: str
    widths: tuple[int, ...]
    """Width of each value; a value takes whole words."""
    text: str = ""
    position: str = ""

    def values(self, record: list[int]) -> tuple[int, ...]:
        """Return the values in a record's words."""
        found = []
        at = 0
        for width in self.widths:
            count = words(width)
            found.append(sum(record[at + i] << (64 * i) for i in range(count)))
            at += count
        return tuple(found)


@dataclass(slots=True)
class Layout:
    """All layouts of a program."""

    tables: list[TableLayout]
    registers: list[str] = field(default_factory=list)
    """Names of registers in the order of the C table; likewise below."""
    counters: list[str] = field(default_factory=list)
    meters: list[str] = field(default_factory=list)
    profiles: list[str] = field(default_factory=list)
    value_sets: list[tuple[KeyField, ...]] = field(default_factory=list)
    value_set_words: list[int] = field(default_factory=list)
    digests: list[RecordLayout] = field(default_factory=list)
    messages: list[RecordLayout] = field(default_factory=list)
