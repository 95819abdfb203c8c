"""Ternary and range tables of many entries against the interpreter, while they change."""

from __future__ import annotations

import random

import pytest

from p4switch.backends.native.engine import NativeEngine
from p4switch.backends.reference.interpreter import Interpreter
from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.ir import ActionChoice
from p4switch.targets.v1model.engine import KeyMatch, TableEntry

TEXT = """
#include <core.p4>
#include <v1model.p4>
header h_t { bit<32> a; bit<40> b; bit<16> r; }
struct headers_t { h_t h; }
struct metadata_t { }
parser P(packet_in p, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start { p.extract(h.h); transition accept; }
}
control N(inout headers_t h, inout metadata_t m) { apply { } }
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    action mark(bit<16> v) { h.h.r = v; }
    action miss() { h.h.r = 0xffff; }
    table t {
        key = { h.h.a : ternary; h.h.b : ternary; h.h.r : range; }
        actions = { mark; miss; }
        default_action = miss();
        size = 4096;
    }
    apply { t.apply(); s.egress_spec = 1; }
}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { } }
control D(packet_out p, in headers_t h) { apply { p.emit(h); } }
V1Switch(P(), N(), I(), E(), N(), D()) main;
"""


def masked(source: random.Random, width: int, masks: str) -> KeyMatch:
    full = (1 << width) - 1
    mask = {
        "random": lambda: source.getrandbits(width),
        "full": lambda: full,
        "prefixes": lambda: full << source.randrange(width) & full,
        "few bits": lambda: 1 << source.randrange(width) | 1 << source.randrange(width),
    }[masks]()
    return KeyMatch(source.getrandbits(width) & mask, mask=mask) if mask else KeyMatch(any=True)


@pytest.mark.slow
@pytest.mark.parametrize("masks", ["random", "full", "prefixes", "few bits"])
def test_large_tables_match_as_the_interpreter(masks: str) -> None:
    program = compile_program(parse_text(TEXT))
    native, slow = NativeEngine(program), Interpreter(program)
    source = random.Random(masks)
    entries: list[TableEntry] = []

    def insert(number: int) -> None:
        low = source.randrange(1 << 16)
        wide = source.random() < 0.8
        entry = TableEntry(
            (
                masked(source, 32, masks),
                masked(source, 40, masks),
                KeyMatch(any=True) if wide else KeyMatch(low, high=low | 0xFFF),
            ),
            ActionChoice(0, (number,)),
            source.randrange(1, 50),
        )
        key = entry.matches, entry.priority
        if any((e.matches, e.priority) == key for e in entries):
            return
        entries.append(entry)
        for engine in (native, slow):
            engine.insert_entry("I.t", entry)

    def delete(gone: TableEntry) -> None:
        entries.remove(gone)
        for engine in (native, slow):
            engine.delete_entry("I.t", gone)

    def frame() -> bytes:
        """A key that some entry is likely to match."""
        near = source.choice(entries)
        a, b, r = (
            source.getrandbits(width) & ~match.mask | match.value
            for width, match in zip((32, 40, 16), near.matches, strict=True)
        )
        return a.to_bytes(4, "big") + b.to_bytes(5, "big") + r.to_bytes(2, "big")

    for number in range(400):
        insert(number)
    for number in range(400, 1000, 100):
        # Enough packets for the index to be made, then a change, and some more.
        packets = [(0, frame()) for _ in range(400)]
        assert native.process(packets) == slow.process(packets)
        # One change, and then many of them between two packets.
        for change in range(2 if number < 700 else 2 * source.randrange(1, 90)):
            if source.random() < 0.5 or change == 0:
                insert(number + change)
            else:
                delete(entries[-1] if source.random() < 0.2 else source.choice(entries))
        packets = [(0, frame()) for _ in range(50)]
        assert native.process(packets) == slow.process(packets)
    native.close()
