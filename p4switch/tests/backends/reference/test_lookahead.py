"""`lookahead` of structs with header stacks, on both executors."""

from __future__ import annotations

import pytest

from p4switch.backends.native.engine import NativeEngine
from p4switch.backends.reference.interpreter import Interpreter
from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.targets.v1model.engine import Engine

TEXT = """
#include <core.p4>
#include <v1model.p4>
header byte_t { bit<8> f; }
header half_t { bit<4> high; bit<4> low; }
struct headers_t { half_t head; byte_t[3] bytes; half_t tail; }
struct metadata_t { }
parser P(packet_in p, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start {
        headers_t ahead = p.lookahead<headers_t>();
        h.head = ahead.tail;
        h.bytes = ahead.bytes;
        h.bytes[1].setInvalid();
        transition accept;
    }
}
control N(inout headers_t h, inout metadata_t m) { apply { } }
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    apply { s.egress_spec = s.parser_error == error.NoError ? 9w1 : 9w2; }
}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { } }
control D(packet_out p, in headers_t h) { apply { p.emit(h); } }
V1Switch(P(), N(), I(), E(), N(), D()) main;
"""


@pytest.mark.parametrize("engine_of", [Interpreter, NativeEngine])
def test_a_struct_with_a_stack_is_looked_ahead_at(engine_of: type[Engine]) -> None:
    engine = engine_of(compile_program(parse_text(TEXT)))  # type: ignore[call-arg]
    frame = bytes.fromhex("12a0b0c034ff")
    assert engine.process([(0, frame)]) == [(1, bytes.fromhex("34a0c0") + frame)]
    assert engine.process([(0, frame[:4])]) == [(2, frame[:4])]
