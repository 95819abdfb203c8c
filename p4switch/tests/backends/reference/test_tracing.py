"""Traces: every kind of event, text and JSON, filters; and that tracing changes nothing."""

from __future__ import annotations

import json

import pytest

from p4switch.backends.reference.interpreter import Interpreter
from p4switch.backends.reference.trace import PacketTrace, TraceFilter, Tracer, match_text
from p4switch.frontend.program import compile_file, compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.ir import ActionChoice
from p4switch.targets.v1model.engine import (
    CloneSession,
    KeyMatch,
    MeterConfig,
    Replica,
    TableEntry,
)
from tests.support.paths import PROGRAMS

TEXT = """#include <core.p4>
#include <v1model.p4>
header kind_t { bit<8> kind; }
header item_t { bit<7> value; bit<1> last; }
struct headers_t { kind_t kind; item_t[2] items; }
struct metadata_t { }
parser P(packet_in p, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start {
        p.extract(h.kind);
        transition select(h.kind.kind) { 0xee : items; _ : accept; }
    }
    state items {
        p.extract(h.items.next);
        transition select(h.items.last.last) { 1 : accept; _ : items; }
    }
}
control N(inout headers_t h, inout metadata_t m) { apply { } }
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    register<bit<16>>(4) seen;
    action deny() {
        mark_to_drop(s);
    }
    action forward(bit<9> port) { s.egress_spec = port; }
    action count(in bit<16> amount) { seen.write(2, amount); }
    table kinds {
        key = { h.kind.kind : ternary; }
        actions = { forward; deny; }
        default_action = deny();
    }
    apply {
        kinds.apply();
        count(7);
        clone(CloneType.I2E, 5);
        if (h.items[0].isValid()) { h.items[0].setInvalid(); }
    }
}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { } }
control D(packet_out p, in headers_t h) { apply { p.emit(h); } }
V1Switch(P(), N(), I(), E(), N(), D()) main;
"""
LINES = TEXT.splitlines()
PROGRAM = compile_program(parse_text(TEXT, "prog.p4"))
ENTRY = TableEntry((KeyMatch(0xE0, mask=0xF0),), ActionChoice(0, (3,)), 10)


def line_of(text: str) -> str:
    number = next(i for i, line in enumerate(LINES, 1) if text in line)
    return f"prog.p4:{number}"


def traced(*frames: str, chosen: TraceFilter | None = None) -> list[PacketTrace]:
    """Traces of frames that come in at ports 0, 1, ..."""
    traces: list[PacketTrace] = []
    engine = Interpreter(PROGRAM, None, Tracer(traces.append, chosen))
    plain = Interpreter(PROGRAM)
    packets = [(port, bytes.fromhex(frame)) for port, frame in enumerate(frames)]
    for each in (engine, plain):
        each.insert_entry("I.kinds", ENTRY)
        each.set_clone_session(5, CloneSession((Replica(8, 1),)))
    assert sorted(engine.process(packets)) == sorted(plain.process(packets))
    assert engine.statistics() == plain.statistics()
    return traces


def test_a_packet_that_hits() -> None:
    [trace] = traced("ee0205")
    assert trace.text().splitlines() == [
        "packet 1: port 0, 3 bytes ee0205",
        "  ingress (port=0, length=3)",
        "    state P.start",
        f"    extract h.kind: kind=0xee  [{line_of('p.extract(h.kind)')}]",
        "    state P.items",
        f"    extract h.items[0]: value=1, last=0  [{line_of('items.next')}]",
        "    state P.items",
        f"    extract h.items[1]: value=2, last=1  [{line_of('items.next')}]",
        f"    table I.kinds: h.kind.kind=0xee  [{line_of('table kinds')}]",
        "      hit h.kind.kind=0xe0 &&& 0xf0, priority 10 -> I.forward(port=3)",
        f"    s.egress_spec = 3  [{line_of('action forward')}]",
        f"    action I.count(amount=7)  [{line_of('count(7)')}]",
        f"    register write I.seen(index=2, value=7)  [{line_of('seen.write')}]",
        f"    clone clone(type=0, session=5)  [{line_of('clone(')}]",
        f"    set invalid h.items[0]()  [{line_of('setInvalid')}]",
        "  ingress clone, parsed again (session=5)",
        "    state P.start",
        f"    extract h.kind: kind=0xee  [{line_of('p.extract(h.kind)')}]",
        "    state P.items",
        f"    extract h.items[0]: value=1, last=0  [{line_of('items.next')}]",
        "    state P.items",
        f"    extract h.items[1]: value=2, last=1  [{line_of('items.next')}]",
        "  egress (port=3, instance_type=0)",
        "  egress (port=8, instance_type=1)",
        "  sent: port 3, 2 bytes ee05",
        "  sent: port 8, 3 bytes ee0205",
    ]


def test_drops_say_why_and_where() -> None:
    [trace] = traced("11")
    lines = trace.text().splitlines()
    assert "      miss -> I.deny()" in lines
    drop = f"    DROP: after ingress egress_spec is the drop port 511  [{line_of('mark_to_drop')}]"
    assert drop in lines
    assert lines[-1] == "  sent: port 8, 1 bytes 11"


def test_parser_errors_have_their_names() -> None:
    [trace] = traced("ee020202")
    assert "    parser error StackOutOfBounds" in trace.text().splitlines()


def test_json_is_a_line_a_packet() -> None:
    for trace in traced("ee05", "11"):
        found = json.loads(trace.json())
        assert "\n" not in trace.json()
        assert found["frame"] == trace.frame.hex()
        [table] = [event for event in found["events"] if event["kind"] == "table"]
        assert table["keys"] == {"h.kind.kind": trace.frame[0]}
        assert table["hit"] == (trace.number == 1)
        assert table["at"] == line_of("table kinds")
        assert {"port": 8, "frame": trace.frame.hex()} in found["out"]


@pytest.mark.parametrize(
    ("chosen", "numbers"),
    [
        (TraceFilter(), [1, 2]),
        (TraceFilter(ports=frozenset({1})), [2]),
        (TraceFilter(tables=frozenset({"kinds"})), [1, 2]),
        (TraceFilter(tables=frozenset({"other"})), []),
        (TraceFilter(headers=frozenset({"h.items[0]"})), [1]),
        (TraceFilter(ports=frozenset({1}), headers=frozenset({"items[0]"})), []),
        (TraceFilter(fields=frozenset({("h.kind", "kind", 0x11)})), [2]),
        (TraceFilter(fields=frozenset({("kind", "kind", 0xEE), ("items[0]", "last", 1)})), [1]),
        (TraceFilter(fields=frozenset({("kind", "kind", 0xEE), ("items[0]", "last", 0)})), []),
        (TraceFilter(fields=frozenset({("kind", "no_such_field", 0)})), []),
    ],
)
def test_filters(chosen: TraceFilter, numbers: list[int]) -> None:
    assert [trace.number for trace in traced("ee05", "11", chosen=chosen)] == numbers


def test_matches_are_shown_as_key_sets() -> None:
    assert match_text(KeyMatch(any=True), "lpm") == "_"
    assert match_text(KeyMatch(10, prefix_length=8), "lpm") == "0xa/8"
    assert match_text(KeyMatch(1, high=9), "range") == "0x1..0x9"
    assert match_text(KeyMatch(9), "exact") == "0x9"


def test_nothing_is_noted_without_a_tracer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a tracer received an event")

    monkeypatch.setattr(Tracer, "note", fail)
    plain = Interpreter(PROGRAM)
    assert plain.process([(0, b"\xee\x05")]) == []
    with pytest.raises(AssertionError, match="received an event"):
        Interpreter(PROGRAM, None, Tracer(lambda _: None)).process([(0, b"\xee\x05")])


def test_a_traced_packet_meets_the_same_meter_colors() -> None:
    program = compile_file(PROGRAMS / "policing.p4")
    table, entry = "PolicingIngress.policed", TableEntry((KeyMatch(1),), ActionChoice(0))
    hit, miss = b"\x02\0\0\1\0\0", b"\x02\0\0\7\0\0"
    seen = []
    for tracer in (None, Tracer(lambda _: None)):
        engine = Interpreter(program, None, tracer)
        engine.insert_entry(table, entry)
        engine.set_default(table, ActionChoice(0))
        engine.set_direct_meter(table, entry, MeterConfig(1, 1, 1, 1))
        seen.append([engine.process([(5, frame)]) for frame in (hit, hit, miss)])
    assert seen[0] == seen[1]
