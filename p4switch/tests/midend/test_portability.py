"""Warnings of what p4c refuses for BMv2."""

from __future__ import annotations

import pytest

from p4switch.frontend.program import compile_file, compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.midend.portability import bmv2_limits
from tests.support.paths import PROGRAMS

TEXT = """#include <core.p4>
#include <v1model.p4>
header number_t { bit<32> value; bit<8> narrow; bit<16> wide; }
struct headers_t { number_t n; }
struct metadata_t { }
parser P(packet_in p, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start { p.extract(h.n); transition accept; }
}
control N(inout headers_t h, inout metadata_t m) { apply { } }
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    apply {
        if (h.n.narrow != 0) {
            SHIFT
        }
    }
}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { } }
control D(packet_out p, in headers_t h) { apply { p.emit(h); } }
V1Switch(P(), N(), I(), E(), N(), D()) main;
"""


@pytest.mark.parametrize(
    ("shift", "widths"),
    [
        ("h.n.value = h.n.value << h.n.wide;", [16]),
        ("h.n.value = 1 + (h.n.value >> h.n.value);", [32]),
        ("if (h.n.value >> h.n.wide == 0) { exit; }", [16]),
        ("h.n.value = h.n.value << h.n.narrow;", []),
        ("h.n.value = h.n.value << 31;", []),
        ("h.n.value = h.n.value << (bit<8>)h.n.wide;", []),
    ],
)
def test_wide_shift_amounts(shift: str, widths: list[int]) -> None:
    found = list(bmv2_limits(compile_program(parse_text(TEXT.replace("SHIFT", shift), "x.p4"))))
    line = 1 + TEXT.splitlines().index("            SHIFT")
    assert [(p.file, p.line) for p, _ in found] == [("x.p4", line)] * len(widths)
    for (_, message), width in zip(found, widths, strict=True):
        assert f"amount of {width} bits" in message


LOOP = "for (bit<8> i = 0; i < 4; i = i + 1) { h.n.value = h.n.value + 1; }"
ADD = """bit<8> add(in bit<8> a) {
    bit<8> b = a;
    for (bit<8> i = 0; i < 4; i = i + 1) { b = b + 1; }
    return b;
}
"""


@pytest.mark.parametrize(
    ("before", "local", "apply", "lines"),
    [
        ("", "", LOOP, [12]),
        ("", f"action act() {{ {LOOP} }}", "act();", []),
        (ADD, "", "h.n.narrow = add(h.n.narrow);", [12]),
        (ADD, "action act() { h.n.narrow = add(h.n.narrow); }", "act();", []),
    ],
    ids=["apply", "action", "function", "function of an action"],
)
def test_loops_that_p4c_makes_a_single_pass_of(
    before: str, local: str, apply: str, lines: list[int]
) -> None:
    text = TEXT.replace("SHIFT", apply).replace("    apply {\n        if", f"{local} apply {{ if")
    text = text.replace("control I(", f"{before}control I(")
    found = list(bmv2_limits(compile_program(parse_text(text, "x.p4"))))
    assert [position.line for position, _ in found] == lines
    assert all("a loop outside of an action" in message for _, message in found)


def test_a_common_program_has_no_warning() -> None:
    assert list(bmv2_limits(compile_file(PROGRAMS / "router.p4"))) == []
