"""Negative numbers as data of actions, of the source and of the control plane."""

from __future__ import annotations

from collections.abc import Callable

from p4switch.ir import ActionChoice, Program
from p4switch.targets.v1model.engine import Engine, KeyMatch, TableEntry

TEXT = """
#include <core.p4>
#include <v1model.p4>
header op_t { bit<8> key; int<8> narrow; int<100> wide; bit<4> rest; }
struct headers_t { op_t op; }
struct meta_t { }
parser P(packet_in packet, out headers_t hdr, inout meta_t meta,
         inout standard_metadata_t s) {
    state start { packet.extract(hdr.op); transition accept; }
}
#include "no_checksums.p4"
control I(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t s) {
    action set(int<8> narrow, int<100> wide, bit<9> port) {
        hdr.op.narrow = narrow;
        hdr.op.wide = wide;
        s.egress_spec = port;
    }
    table t {
        key = { hdr.op.key : exact; }
        actions = { set; }
        default_action = set(-2, -3, 1);
        const size = 4;
    }
    apply { t.apply(); }
}
control E(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t s) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.op); } }
V1Switch(P(), NoVerify(), I(), E(), NoCompute(), D()) main;
"""


def sent(key: int) -> tuple[int, bytes]:
    return 5, bytes([key]) + bytes(14)


def got(port: int, key: int, narrow: int, wide: int) -> tuple[int, bytes]:
    bits = key << 112 | (narrow & 0xFF) << 104 | (wide & (1 << 100) - 1) << 4
    return port, bits.to_bytes(15, "big")


def test_negative_data_of_actions(
    make_engine: Callable[..., Engine], compile_text: Callable[[str], Program]
) -> None:
    engine = make_engine(compile_text(TEXT))
    # The control plane gives the bits.
    data = (-5 & 0xFF, -6 & (1 << 100) - 1, 2)
    engine.insert_entry("I.t", TableEntry((KeyMatch(7),), ActionChoice(0, data)))
    assert engine.process([sent(1), sent(7)]) == [got(1, 1, -2, -3), got(2, 7, -5, -6)]
