"""Field lists of deprecated calls; their packets: tests/packet/programs/clone_data.p4."""

from __future__ import annotations

import pytest

from p4switch import ir
from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.position import UnsupportedError

PROGRAM = """
#include <core.p4>
#include <v1model.p4>
header h_t {{ bit<8> a; }}
struct headers {{ h_t h; }}
struct inner_t {{ @field_list(2) bit<8> x; bit<8> y; }}
struct meta_t {{ @field_list(1, 2) bit<8> i; @field_list(1) inner_t inner; }}
parser P(packet_in b, out headers hdr, inout meta_t m, inout standard_metadata_t sm) {{
    state start {{ transition accept; }} }}
control V(inout headers hdr, inout meta_t m) {{ apply {{ }} }}
control C(inout headers hdr, inout meta_t m, inout standard_metadata_t sm) {{ apply {{ {body} }} }}
control E(inout headers hdr, inout meta_t m, inout standard_metadata_t sm) {{ apply {{ }} }}
control D(packet_out b, in headers hdr) {{ apply {{ }} }}
V1Switch(P(), V(), C(), E(), V(), D()) main;
"""
ANNOTATED = {
    1: (("metadata", "i"), ("metadata", "inner")),
    2: (("metadata", "i"), ("metadata", "inner", "x")),
}


def program(body: str) -> ir.Program:
    return compile_program(parse_text(PROGRAM.format(body=body), "test.p4"))


def test_each_call_has_a_list_of_its_own() -> None:
    made = program(
        "resubmit({m.inner.y, sm.ingress_port}); if (m.i == 1) { recirculate(m); }"
        " clone3(CloneType.I2E, 5, {{sm, m.i}, m.i});"
    )
    assert made.field_lists == ANNOTATED | {
        257: (("metadata", "inner", "y"), ("standard", "ingress_port")),
        258: (("metadata",),),
        259: (("standard",), ("metadata", "i")),
    }


@pytest.mark.parametrize("data", ["{m.i + 1}", "{8w1}", "{hdr.h.a}", "hdr.h", "{m.i, m.i[3:0]}"])
def test_data_that_are_not_metadata_are_refused(data: str) -> None:
    with pytest.raises(UnsupportedError, match=r"'resubmit' can preserve fields of metadata only"):
        program(f"resubmit({data});")
