"""Registers of structs, tuples, headers, unions and stacks (p4c has them not, the language has)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from p4switch.ir import Program
from p4switch.targets.v1model.engine import ControlError, Engine

TEXT = """
#include <core.p4>
#include <v1model.p4>
header op_t { bit<8> index; bit<8> first; bit<8> second; }
header item_t { bit<8> value; }
header wide_t { bit<96> value; }
header_union either_t { item_t item; wide_t wide; }
struct pair_t { bit<8> x; bool odd; }
struct nested_t { pair_t pair; item_t item; bit<96> wide; }
struct headers_t { op_t op; item_t item; item_t[2] items; either_t either; }
struct meta_t { }
parser P(packet_in packet, out headers_t hdr, inout meta_t meta,
         inout standard_metadata_t s) {
    state start { packet.extract(hdr.op); transition accept; }
}
#include "no_checksums.p4"
control I(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t s) {
    register<TYPE>(4) r;
    apply { s.egress_spec = 1; bit<32> i = (bit<32>) hdr.op.index; APPLY }
}
control E(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t s) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.op); } }
V1Switch(P(), NoVerify(), I(), E(), NoCompute(), D()) main;
"""
KINDS = {
    "struct": (
        "pair_t",
        "pair_t v; r.read(v, i); v.x = v.x + 1; v.odd = !v.odd; r.write(i, v); v.x = 99;"
        "r.read(v, i); hdr.op.first = v.x; hdr.op.second = v.odd ? 8w1 : 0;",
    ),
    "nested": (
        "nested_t",
        "nested_t v; r.read(v, i); v.pair.x = v.pair.x + 1; v.wide = v.wide + 1;"
        "if (v.pair.odd) { v.item.setValid(); } v.pair.odd = !v.pair.odd; r.write(i, v);"
        "nested_t w; r.read(w, i); hdr.op.first = w.pair.x + w.wide[7:0] - w.wide[7:0];"
        "hdr.op.second = w.pair.odd ? 8w1 : 0;",
    ),
    "tuple": (
        "tuple<bit<8>, bool>",
        "tuple<bit<8>, bool> v; r.read(v, i); r.write(i, {v[0] + 1, !v[1]}); r.read(v, i);"
        "hdr.op.first = v[0]; hdr.op.second = v[1] ? 8w1 : 0;",
    ),
    "header": (
        "item_t",
        "item_t v; r.read(v, i); bit<8> n = v.isValid() ? v.value : 0; hdr.item = {n + 1};"
        "r.write(i, hdr.item); hdr.item.value = 99; r.read(hdr.item, i);"
        "hdr.op.first = hdr.item.value; hdr.op.second = hdr.item.value & 1;",
    ),
    "union": (
        "either_t",
        "r.read(hdr.either, i); bit<8> n = hdr.either.item.isValid() ? hdr.either.item.value : 0;"
        "hdr.either.item = {n + 1}; r.write(i, hdr.either); hdr.either.wide.setValid();"
        "r.read(hdr.either, i); hdr.op.first = hdr.either.item.value;"
        "hdr.op.second = hdr.either.item.value & 1;",
    ),
    "stack": (
        "item_t[2]",
        "r.read(hdr.items, i); bit<8> n = hdr.items[1].isValid() ? hdr.items[1].value : 0;"
        "hdr.items[1] = {n + 1}; r.write(i, hdr.items); hdr.items[1].value = 99;"
        "r.read(hdr.items, i); hdr.op.first = hdr.items[1].value;"
        "hdr.op.second = hdr.items[1].value & 1;",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_register_holds_copies(
    make_engine: Callable[..., Engine], compile_text: Callable[[str], Program], kind: str
) -> None:
    type_name, code = KINDS[kind]
    engine = make_engine(compile_text(TEXT.replace("TYPE", type_name).replace("APPLY", code)))
    packets = [(0, bytes([index, 0, 0])) for index in (1, 1, 2, 1)]
    found = [tuple(data) for _, data in engine.process(packets)]
    assert found == [(1, 1, 1), (1, 2, 0), (2, 1, 1), (1, 3, 1)]
    # There is no cell 4: reads give zeros, or an invalid header, which leaves the fields.
    [(_, data)] = engine.process([(0, bytes([4, 7, 7]))])
    assert data[1] == (99 if kind == "header" else 0)
    with pytest.raises(ControlError, match=r"'I\.r' holds values with fields"):
        engine.read_register("I.r", 1)
