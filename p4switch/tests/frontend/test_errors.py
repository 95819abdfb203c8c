"""Errors of the checker: what they say and where they point."""

from __future__ import annotations

import pytest

from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.position import P4Error, UnsupportedError

PROGRAM = """#include <core.p4>
#include <v1model.p4>
header h_t {{ bit<8> a; varbit<16> v; }}
struct headers {{ h_t h; h_t[2] stack; }}
struct meta_t {{ bit<8> i; bit<16> w; int<8> s; bool flag; }}
parser P(packet_in b, out headers hdr, inout meta_t m, inout standard_metadata_t sm) {{
    state start {{ transition accept; }} }}
control V(inout headers hdr, inout meta_t m) {{ apply {{ }} }}
control C(inout headers hdr, inout meta_t m, inout standard_metadata_t sm) {{
{line}
    apply {{
{body}
    }}
}}
control D(packet_out b, in headers hdr) {{ apply {{ }} }}
V1Switch(P(), V(), C(), C(), V(), D()) main;
"""


def failure(body: str = "", line: str = "") -> P4Error:
    text = PROGRAM.format(body=body, line=line)
    with pytest.raises(P4Error) as caught:
        compile_program(parse_text(text, "test.p4"))
    return caught.value


def test_an_error_shows_the_line_and_the_place() -> None:
    assert str(failure("        m.i = m.w;")) == (
        "test.p4:12:15: error: the value assigned must be of type 'bit<8>', not a value of type "
        "'bit<16>'; write a cast, '(bit<8>)', if that is meant\n"
        "            m.i = m.w;\n"
        "                  ^"
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("m.j = 1;", "'meta_t' has no field 'j'"),
        ("x = 1;", "nothing is called 'x' here"),
        ("hdr.h.b = 1;", "'h_t' has no field 'b'"),
        ("hdd.h.a = 1;", "nothing is called 'hdd' here; did you mean 'hdr'?"),
        (
            "m.i = m.i + m.w;",
            "'+' needs two numbers of one type, not 'bit<8>' and 'bit<16>'; cast one, as in "
            "'(bit<8>) ...'",
        ),
        ("m.i = m.i / 0;", "division by zero"),
        ("m.s = m.s / 2;", "'/' is not defined for signed numbers ('int<8>')"),
        ("m.i = m.i << m.s;", "the amount of a shift must be unsigned, not 'int<8>'"),
        (
            "m.i = 1 << m.i;",
            "the width of the left operand is not known; write one, as in '32w1 << x'",
        ),
        (
            "m.i = (bit<8>)m.s ++ 1;",
            "'++' needs bit<> or int<>, not 'int' without a width",
        ),
        ("m.i[9:2] = 0;", "bit 9 does not exist; 'bit<8>' has 8 bits"),
        (
            "m.w = (int<16>)m.i;",
            "'bit<8>' cannot be cast to 'int<16>'; cast in two steps, first the width and then "
            "the sign",
        ),
        ("hdr.stack[2].a = 1;", "index 2 is outside the stack, which has 2 elements"),
        (
            "if (m.i) { }",
            "the condition of 'if' must be of type 'bool', not a value of type 'bit<8>'",
        ),
        ("hdr.stack.next.a = 1;", "'next' of a stack can only be used in a parser"),
        ("const bit<8> k = 1; k = m.i;", "this cannot be assigned to"),
        ("const bit<8> k = m.i;", "the value of 'k' must be known when compiling"),
        ("bit<8> x; bit<8> x;", "'x' is declared twice; first at test.p4:12:1"),
        ("break;", "'break' can only be used in a loop"),
        ("mark_to_drop(m);", "'standard_metadata' of 'mark_to_drop'"),
        (
            "hdr.h.setValid(1);",
            "'setValid' takes no arguments",
        ),
        ('static_assert(1 == 2, "no");', "static_assert failed: no"),
        (
            "random(m.i, 0);",
            "'random' takes 3 arguments (result, lo, hi); nothing is given for 'hi'",
        ),
        (
            "random(5, 8w0, 8w1);",
            "the argument for 'result' must be something that can be written to",
        ),
        (
            "m.flag = m.i == m.w;",
            "the operands of '==' must have one type, not a value of type "
            "'bit<8>' and a value of type 'bit<16>'",
        ),
        ("switch (m.i) { 1: { } 1: { } }", "this label is in the switch twice"),
        ("m.i = error.NoMach;", "no error is called 'NoMach'; did you mean 'NoMatch'?"),
    ],
)
def test_messages_in_code(body: str, message: str) -> None:
    assert message in failure(body).message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "table t { key = { m.i + 1: exact; } actions = { NoAction; } }",
            "this key has no name for the control plane; give it one with '@name(\"...\")' after "
            "the match kind",
        ),
        (
            "table t { key = { m.i: exat; } actions = { NoAction; } }",
            "no match kind is called 'exat'; did you mean 'exact'?",
        ),
        ("table t { actions = { nothing; } }", "no action is called 'nothing'"),
        (
            "action a() { } table t { actions = { NoAction; } default_action = a; }",
            "'a' is not in the table's list of actions",
        ),
        (
            "table t { key = { m.i: exact; } actions = { NoAction; } "
            "const entries = { 1 &&& 3: NoAction; } }",
            "a mask cannot be used here: the key is exact",
        ),
        (
            "table t { key = { m.i: lpm; } actions = { NoAction; } "
            "const entries = { 1 &&& 0x0f: NoAction; } }",
            "the mask of an lpm key must be a prefix; 0xf is none",
        ),
        (
            "table t { key = { m.i: exact; } actions = { NoAction; } "
            "const entries = { (1, 2): NoAction; } }",
            "the table has 1 key, this entry has 2",
        ),
        ("register<bit<8>>(m) r;", "'size' of the constructor of 'register'"),
        ("bit<4000> x;", "width 4000 is larger than 2048, the largest allowed"),
        (
            "action a(bit<8> x, in bit<8> y) { }",
            "parameters without a direction (the control plane's) come after all others",
        ),
    ],
)
def test_messages_in_declarations(line: str, message: str) -> None:
    assert message in failure(line=line).message


def test_recursion_is_refused() -> None:
    text = PROGRAM.format(body="", line="").replace(
        "parser P(", "bit<8> f(in bit<8> x) { return f(x); }\nparser P("
    )
    with pytest.raises(P4Error, match="'f' calls itself; P4 has no recursion"):
        compile_program(parse_text(text, "test.p4"))


def test_a_program_without_main() -> None:
    with pytest.raises(P4Error, match="the program makes no package called 'main'"):
        compile_program(parse_text("#include <core.p4>\nconst bit<8> x = 1;", "test.p4"))


def test_code_that_main_does_not_reach_is_checked_too() -> None:
    text = PROGRAM.format(body="", line="").replace(
        "parser P(", "control Unused<T>(inout T x) { apply { x = 1; } }\nparser P("
    )
    with pytest.raises(P4Error, match="must be of type 'T', not a value of type 'int'"):
        compile_program(parse_text(text, "test.p4"))


def test_a_package_wants_blocks_of_its_types() -> None:
    text = PROGRAM.format(body="", line="").replace("V(), D()", "C(), D()")
    with pytest.raises(P4Error) as caught:
        compile_program(parse_text(text, "test.p4"))
    assert "its parameters must be (inout H hdr, inout M meta), but 'C' has (" in str(caught.value)


def test_unsupported_says_so() -> None:
    found = failure(line="bit<8>[4] x;")
    assert isinstance(found, UnsupportedError)
    assert "unsupported: arrays of 'bit<8>' are not supported" in str(found)


def test_two_tables_of_one_name() -> None:
    found = failure(
        "t.apply(); u.apply();",
        'table t { actions = { NoAction; } } @name("t") table u { actions = { NoAction; } }',
    )
    assert found.message == (
        "two tables of the program go by the name 'C.t'; tell them apart with '@name'"
    )


def test_a_table_needs_core_p4s_no_action() -> None:
    text = "action NoAction(bit t) { } control c() { table t { actions = { } } apply { } }"
    with pytest.raises(P4Error, match=r"'NoAction' has parameters; include core\.p4"):
        compile_program(parse_text(text, "x.p4"))
