"""Expressions and statements of controls: types, folding, order of evaluation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4switch import ir
from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.position import P4Error
from tests.support.ir_text import dump, dump_code

PROGRAM = """
#include <core.p4>
#include <v1model.p4>
enum bit<8> Kind {{ one = 1, two = 2 }}
enum Colour {{ red, green }}
header h_t {{ bit<8> a; bit<8> b; bit<32> w; int<8> s; }}
struct headers {{ h_t h; h_t[3] stack; }}
struct pair_t {{ bit<8> x; bit<16> y; }}
struct meta_t {{ bit<8> i; bit<8> j; bit<32> w; bool flag; pair_t pair; Kind kind; Colour colour; }}
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

F = """
    bit<8> f(inout bit<8> x) { x = x + 1; return x; }
"""


def program(body: str, local: str = "", top: str = "") -> ir.Program:
    text = PROGRAM.format(body=body, local=local, top=top)
    return compile_program(parse_text(text, "test.p4"), by_reference=False)


def code(body: str, local: str = "", top: str = "") -> str:
    made = program(body, local, top)
    return dump_code(made.package.blocks["ig"].body).replace("C_m.", "m.").replace("C_hdr.", "hdr.")


# --- Types and folding -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "lowered"),
    [
        ("m.i = 3;", "m.i = 8w3"),
        ("m.i = 257;", "m.i = 8w1"),
        ("m.i = -1;", "m.i = 8w255"),
        ("hdr.h.s = -1;", "hdr.h.s = 8s-1"),
        ("m.i = 3 + m.j;", "m.i = (8w3 + m.j)"),
        ("m.i = (2 + 3) * 4;", "m.i = 8w20"),
        ("m.i = (bit<8>)(1 << 7);", "m.i = 8w128"),
        ("m.w = (bit<32>)m.i;", "m.w = (bit<32>)m.i"),
        ("m.i = (bit<8>)(bit<1>)m.flag;", "m.i = (bit<8>)(bit<1>)m.flag"),
        ("m.i = 8w200 |+| 8w100;", "m.i = 8w255"),
        ("m.i = m.w[15:8];", "m.i = m.w[15:8]"),
        ("m.w[7:0] = m.i;", "m.w[7:0] = m.i"),
        ("m.i = 32w0x12345678[15:8];", "m.i = 8w86"),
        ("m.w = m.i ++ m.j ++ 16w1;", "m.w = ((m.i ++ m.j) ++ 16w1)"),
        ("m.i = m.i << 3;", "m.i = (m.i << 2w3)"),
        ("m.i = m.i << 1000;", "m.i = (m.i << 4w8)"),
        ("m.kind = Kind.two;", "m.kind = 8w2"),
        ("m.i = m.kind;", "m.i = m.kind"),
        ("m.i = m.kind + 1;", "m.i = (m.kind + 8w1)"),
        ("m.kind = (Kind)m.i;", "m.kind = m.i"),
        ("m.colour = Colour.green;", "m.colour = 32w1"),
        ("m.flag = m.colour == Colour.red;", "m.flag = (m.colour == 32w0)"),
        ("m.pair = {1, 2};", "m.pair = {8w1, 16w2}"),
        ("m.pair = {y = 1, x = m.i};", "m.pair = {m.i, 16w1}"),
        ("m.pair = {x = 7, ...};", "m.pair = {8w7, 16w0}"),
        ("m.pair = ...;", "m.pair = {8w0, 16w0}"),
        ("m.flag = m.pair == {1, 2};", "m.flag = (m.pair == {8w1, 16w2})"),
        ("hdr.h = {#};", "hdr.h = {#}"),
        ("m.i = m.flag ? m.j : 0;", "m.i = (m.flag ? m.j : 8w0)"),
        ("m.i = true ? 1 : m.j;", "m.i = 8w1"),
        ("m.w = hdr.stack.size;", "m.w = 32w3"),
        ("m.w = hdr.h.minSizeInBytes();", "m.w = 32w7"),
        ("m.i = hdr.stack[m.j].a;", "m.i = hdr.stack[m.j].a"),
        ("m.i += 2;", "m.i = (m.i + 8w2)"),
        ("m.i <<= 2;", "m.i = (m.i << 2w2)"),
        (
            "hdr.stack.push_front(1); hdr.stack.pop_front(2);",
            "push hdr.stack, 1\npush hdr.stack, -2",
        ),
        ("hdr.h.setValid(); hdr.h.setInvalid();", "setValid hdr.h\nsetInvalid hdr.h"),
        ("m.flag = hdr.h.isValid() && m.i > 1;", "m.flag = (hdr.h.isValid() && (m.i > 8w1))"),
        ("m.flag = false && m.i > 1;", "m.flag = false"),
        ("if (1 == 2) { m.i = 1; } else { m.i = 2; }", "m.i = 8w2"),
        ("const bit<8> k = 4; m.i = k * 2;", "m.i = 8w8"),
        ("m.i = m.w[m.j +: 8];", "m.i = (m.w >> m.j)[7:0]"),
    ],
)
def test_lowering(source: str, lowered: str) -> None:
    assert code(source) == lowered


@pytest.mark.parametrize(
    ("source", "lowered"),
    [
        ("m.w = 1 << k;", "m.w = (32w1 << k)"),
        ("m.w = m.w | 1 << k;", "m.w = (m.w | (32w1 << k))"),
        ("m.w = (1 << k) - 1;", "m.w = ((32w1 << k) - 32w1)"),
        ("m.w = -(1 << k);", "m.w = -(32w1 << k)"),
        ("m.i = (bit<8>)(256 >> k >> 1);", "m.i = ((8w0 >> k) >> 1w1)"),
        ("m.i = 1 << (k - 1);", "m.i = (8w1 << (k - 8w1))"),
        ("m.flag = m.w & 1 << k != 0;", "m.flag = ((m.w & (32w1 << k)) != 32w0)"),
        ("m.flag = m.w == 1 << k;", "m.flag = (m.w == (32w1 << k))"),
        ("m.pair = {1 << k, 1 << k};", "m.pair = {(8w1 << k), (16w1 << k)}"),
    ],
)
def test_a_shift_by_an_action_parameter_takes_its_width_from_the_context(
    source: str, lowered: str
) -> None:
    """As in p4c, where parameters without a direction count as known when compiling."""
    local = f"action a(bit<8> k) {{ {source} }} table t {{ actions = {{ a; }} }}"
    made = program("t.apply();", local)
    [body] = [action.body for action in made.actions if action.name == "C.a"]
    assert dump_code(body).replace("C_m.", "m.").replace("C_a_k", "k") == lowered


@pytest.mark.parametrize("use", ["m.flag = 1 << k > 5;", 'log_msg("{}", {1 << k});'])
def test_a_shift_by_an_action_parameter_needs_a_context_with_a_width(use: str) -> None:
    with pytest.raises(P4Error, match="the width of this integer is not known"):
        program("t.apply();", f"action a(bit<8> k) {{ {use} }} table t {{ actions = {{ a; }} }}")


@pytest.mark.slow
@given(
    st.sampled_from(["+", "-", "*", "&", "|", "^", "|+|", "|-|"]),
    st.integers(0, 255),
    st.integers(0, 255),
)
def test_folding_stays_within_the_type(operator: str, left: int, right: int) -> None:
    exact = {
        "+": left + right,
        "-": left - right,
        "*": left * right,
        "&": left & right,
        "|": left | right,
        "^": left ^ right,
        "|+|": min(left + right, 255),
        "|-|": max(left - right, 0),
    }[operator]
    assert code(f"m.i = 8w{left} {operator} 8w{right};") == f"m.i = 8w{exact % 256}"


def test_a_run_time_slice_is_assigned_by_masks() -> None:
    assert code("m.w[m.j +: 8] = m.i;") == (
        "m.w = ((m.w & ~(32w255 << m.j)) | ((bit<32>)m.i << m.j))"
    )


# --- Order of evaluation ---------------------------------------------------------------------


def test_a_left_operand_is_saved_from_a_later_side_effect() -> None:
    assert code("m.i = m.j + f(m.j);", top=F) == (
        "tmp = m.j\nf_x = m.j\ncall f\n  m.j = f_x\nm.i = (tmp + f_result)"
    )


def test_a_right_operand_needs_no_saving() -> None:
    assert code("m.i = f(m.j) + m.j;", top=F) == (
        "f_x = m.j\ncall f\n  m.j = f_x\nm.i = (f_result + m.j)"
    )


def test_nested_calls_of_one_function() -> None:
    assert code("m.i = f(m.i) + f(m.i);", top=F) == (
        "f_x = m.i\ncall f\n  m.i = f_x\n"
        "tmp = f_result\n"
        "f_x = m.i\ncall f\n  m.i = f_x\n"
        "m.i = (tmp + f_result)"
    )


def test_short_circuit_keeps_the_call_in_a_branch() -> None:
    assert code("m.flag = m.flag && f(m.i) > 3;", top=F) == (
        "tmp = m.flag\n"
        "if tmp\n"
        "  f_x = m.i\n"
        "  call f\n"
        "    m.i = f_x\n"
        "  tmp = (f_result > 8w3)\n"
        "m.flag = tmp"
    )


def test_mux_runs_one_branch() -> None:
    assert code("m.j = m.flag ? f(m.i) : 1;", top=F) == (
        "if m.flag\n"
        "  f_x = m.i\n"
        "  call f\n"
        "    m.i = f_x\n"
        "  tmp = f_result\n"
        "else\n"
        "  tmp = 8w1\n"
        "m.j = tmp"
    )


def test_the_index_of_an_l_value_is_evaluated_before_the_value() -> None:
    assert code("hdr.stack[m.i].a = f(m.i);", top=F) == (
        "tmp = m.i\nf_x = m.i\ncall f\n  m.i = f_x\nhdr.stack[tmp].a = f_result"
    )


def test_an_inout_argument_is_copied_in_before_later_arguments_change_it() -> None:
    top = F + "void g(inout bit<8> p, in bit<8> q) { p = q; }"
    assert code("g(m.i, f(m.i));", top=top) == (
        "tmp = m.i\nf_x = m.i\ncall f\n  m.i = f_x\ng_p = tmp\ng_q = f_result\ncall g\n  m.i = g_p"
    )


def test_out_parameters_start_uninitialised_and_are_copied_back_in_order() -> None:
    top = "void g(out bit<8> p, out bit<8> q) { p = 1; q = 2; }"
    assert code("g(m.i, m.i);", top=top) == (
        "declare g_p\ndeclare g_q\ncall g\n  m.i = g_p\n  m.i = g_q"
    )


def test_named_and_default_arguments() -> None:
    top = "bit<8> g(in bit<8> p, in bit<8> q = 7) { return p - q; }"
    assert code("m.i = g(p = m.j);", top=top) == ("g_p = m.j\ng_q = 8w7\ncall g\nm.i = g_result")


# --- Calls -----------------------------------------------------------------------------------


def test_a_generic_function_is_specialised_for_each_type() -> None:
    made = program(
        "m.i = pick(m.i, 1); m.w = pick(m.w, m.w);",
        top="T pick<T>(in T a, in T b) { return a; }",
    )
    assert [f.result.type for f in made.functions if f.result] == [ir.Bits(8), ir.Bits(32)]


def test_type_arguments_of_externs_are_inferred() -> None:
    made = program(
        "r.read(m.w, (bit<32>)m.i); hash(m.i, HashAlgorithm.crc16, 8w0, {m.w, hdr.h.a}, 8w9);",
        local="register<bit<32>>(16) r;",
    )
    read, hashed = made.package.blocks["ig"].body
    assert isinstance(read, ir.CallExtern) and read.instance is made.externs[0]
    assert made.externs[0].name == "C.r" and made.externs[0].type_arguments == (ir.Bits(32),)
    assert isinstance(hashed, ir.CallExtern)
    data = hashed.type_arguments[2]
    assert isinstance(data, ir.Struct)
    assert [f.type for f in data.fields] == [ir.Bits(32), ir.Bits(8)]
    assert [t for i, t in enumerate(hashed.type_arguments) if i != 2] == [ir.Bits(8)] * 3


def test_exit_and_return() -> None:
    assert code("if (m.flag) { exit; } return;") == "if m.flag\n  exit\nreturn"


# --- Loops and switches ----------------------------------------------------------------------


def test_for_loop() -> None:
    assert code("for (bit<8> k = 0; k < 4; k = k + 1) { if (k == 2) continue; m.i = k; }") == (
        "C_k = 8w0\n"
        "loop\n"
        "while (C_k < 8w4)\n"
        "  if (C_k == 8w2)\n"
        "    continue\n"
        "  m.i = C_k\n"
        "update\n"
        "  C_k = (C_k + 8w1)"
    )


def test_a_loop_to_the_largest_value_of_its_type_ends() -> None:
    assert code("for (bit<8> k in 250..255) { m.i = k; }") == (
        "C_count = 8w250\n"
        "C_more = (C_count <= 8w255)\n"
        "loop\n"
        "while C_more\n"
        "  C_k = C_count\n"
        "  m.i = C_k\n"
        "update\n"
        "  C_more = (C_count != 8w255)\n"
        "  C_count = (C_count + 8w1)"
    )


def test_loop_over_a_stack_takes_a_copy() -> None:
    assert code("for (h_t e in hdr.stack) { m.i = e.a; }").startswith(
        "tmp = hdr.stack\nC_count = 32w0\nloop\nwhile (C_count < 32w3)\n  C_e = tmp[C_count]\n"
    )


def test_switch_on_a_value_with_fallthrough() -> None:
    assert code("switch (m.kind) { Kind.one: Kind.two: { m.i = 1; } default: { m.i = 2; } }") == (
        "switch m.kind\ncase 1, 2\n  m.i = 8w1\ndefault\n  m.i = 8w2"
    )


def test_switch_on_the_action_that_ran() -> None:
    local = """
    action a() { } action b() { }
    table t { key = { m.i: exact; } actions = { a; b; } default_action = a; }"""
    assert code("switch (t.apply().action_run) { b: { m.i = 1; } a: { m.i = 2; } }", local) == (
        "apply C.t action_run=tmp\nswitch tmp\ncase 1\n  m.i = 8w1\ncase 0\n  m.i = 8w2"
    )


def test_hit_and_miss() -> None:
    local = "table t { key = { m.i: exact; } actions = { NoAction; } }"
    assert code("if (t.apply().miss) { m.i = 1; } m.flag = t.apply().hit;", local) == (
        "apply C.t hit=tmp\nif !tmp\n  m.i = 8w1\napply C.t hit=tmp_1\nm.flag = tmp_1"
    )


def test_a_local_shadows_and_its_name_stays_unique() -> None:
    made = program("bit<8> x = 1; { bit<16> x = 2; m.w = (bit<32>)x; } m.i = x;")
    assert "C_x = 8w1\n  C_x_1 = 16w2\n" in dump(made)
    assert len({v.name for v in made.variables}) == len(made.variables)
