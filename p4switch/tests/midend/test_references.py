"""Parameters that become what they are given, and those that must not."""

from __future__ import annotations

import pytest

from p4switch import ir
from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from tests.support.ir_text import dump

PROGRAM = """
#include <core.p4>
#include <v1model.p4>
header h_t {{ bit<8> a; bit<8> b; }}
struct headers {{ h_t h; h_t g; h_t[3] stack; }}
struct meta_t {{ bit<8> i; bit<8> j; }}
{top}
parser P(packet_in b, out headers hdr, inout meta_t m, inout standard_metadata_t sm) {{
    state start {{ transition accept; }} }}
control V(inout headers hdr, inout meta_t m) {{ apply {{ }} }}
control C(inout headers hdr, inout meta_t m, inout standard_metadata_t sm) {{
    {local}
    apply {{ {body} }}
}}
control E(inout headers hdr, inout meta_t m, inout standard_metadata_t sm) {{ apply {{ }} }}
control D(packet_out b, in headers hdr) {{ apply {{ }} }}
V1Switch(P(), V(), C(), E(), V(), D()) main;
"""

INNER = """
control Leaf(inout h_t h, in bit<8> x) { apply { h.a = x; } }
control Inner(inout headers hdr, in bit<8> x) {
    Leaf() leaf;
    apply { leaf.apply(hdr.h, x); }
}
"""


def program(body: str, local: str = "", top: str = INNER) -> ir.Program:
    text = PROGRAM.format(body=body, local=local, top=top)
    return compile_program(parse_text(text, "test.p4"))


def test_places_are_passed_down_through_all_calls() -> None:
    made = program("inner.apply(hdr, m.i);", "Inner() inner;")
    text = dump(made)
    assert "control C.inner.leaf()\n  C_hdr.h.a = C_m.i\n" in text
    assert "control C.inner()\n  call C.inner.leaf\n" in text
    names = {v.name for v in made.variables}
    assert "C_hdr" in names and not any("inner" in name for name in names)


def test_a_value_inside_a_place_that_is_written_is_copied() -> None:
    text = dump(program("inner.apply(hdr, hdr.h.a);", "Inner() inner;"))
    assert "control C.inner(in bit<8> C_inner_x)\n" in text
    assert "  C_inner_x = C_hdr.h.a\n  call C.inner\n" in text


def test_two_places_that_overlap_are_both_copied() -> None:
    top = "control Two(inout headers p, inout h_t q) { apply { p.h.a = 1; q.a = 2; } }"
    text = dump(program("two.apply(hdr, hdr.h);", "Two() two;", top))
    assert "control C.two(inout headers C_two_p, inout h_t C_two_q)\n" in text
    assert "  call C.two\n    C_hdr = C_two_p\n    C_hdr.h = C_two_q\n" in text


def test_two_places_side_by_side_are_not_copied() -> None:
    top = "control Two(inout h_t p, inout h_t q) { apply { p.a = 1; q.a = 2; } }"
    text = dump(program("two.apply(hdr.h, hdr.stack[1]);", "Two() two;", top))
    assert "control C.two()\n  C_hdr.h.a = 8w1\n  C_hdr.stack[32w1].a = 8w2\n" in text


def test_an_instance_called_with_different_places_copies() -> None:
    text = dump(program("leaf.apply(hdr.h, 1); leaf.apply(hdr.g, 2);", "Leaf() leaf;"))
    assert "control C.leaf(inout h_t C_leaf_h, in bit<8> C_leaf_x)\n" in text


@pytest.mark.parametrize("place", ["hdr.stack[m.i]", "hdr.stack[m.i % 3]"])
def test_a_place_known_at_run_time_only_is_copied(place: str) -> None:
    text = dump(program(f"leaf.apply({place}, m.j);", "Leaf() leaf;"))
    assert "control C.leaf(inout h_t C_leaf_h)\n" in text


def test_out_parameters_start_uninitialised() -> None:
    top = "void fresh(out h_t p) { p.a = 1; }"
    text = dump(program("fresh(hdr.h);", "", top))
    assert "  declare fresh_p\n  call fresh\n    C_hdr.h = fresh_p\n" in text


def test_actions_keep_their_parameters() -> None:
    local = "action a(inout headers p) { p.h.a = hdr.h.b; }"
    assert "action C.a(inout headers C_a_p)\n" in dump(program("a(hdr);", local))
