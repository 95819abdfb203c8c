"""The parser's errors for texts that are not P4."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4switch.frontend.syntax.parser import parse_text
from p4switch.position import P4Error


def message(text: str) -> str:
    """Return the whole error that a text leads to."""
    with pytest.raises(P4Error) as caught:
        parse_text(text, "t.p4")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "control C() {\n  apply {\n    x = 1\n  }\n}\n",
            "t.p4:3:10: error: expected ';' after an assignment, found '}'\n"
            "        x = 1\n"
            "             ^",
        ),
        (
            "header h {\n  bit<8> a;\n  bitt<8> b;\n}",
            "t.p4:3:8: error: expected a type argument, found integer 8\n"
            "      bitt<8> b;\n           ^",
        ),
        (
            "const bit<8> c = 1 +;",
            "t.p4:1:21: error: expected an expression, found ';'\n"
            "    const bit<8> c = 1 +;\n"
            "                        ^",
        ),
        (
            "control C(in undeclared x) { apply { foo x; } }",
            "t.p4:1:38: error: 'foo' is not a type that is declared here",
        ),
        ("counter(3) c;", "t.p4:1:1: error: 'counter' is not a type that is declared here"),
        ("bit<8> x;", "t.p4:1:8: error: a variable cannot be declared at the top level"),
        ("42", "t.p4:1:1: error: expected a declaration, found integer 42"),
        ("struct s { bit<8> in; }", "expected the name of a field, found keyword 'in'"),
        ("control C() { apply { if (a) { }", "t.p4:1:21: error: expected '}' to close this '{'"),
        ("control C() { apply { a + 1; } }", "expected an assignment or a call: '=' or '(', found"),
        ("control C() { apply { f() = 1; } }", "t.p4:1:23: error: expected an l-value before '='"),
        ("control C() { apply { f()(); } }", "the result of a call cannot be called"),
        ("control C() { apply { case; } }", "t.p4:1:27: error: expected an assignment or a call"),
        ("control C() { apply { else; } }", "expected a statement, found keyword 'else'"),
        ("control C() { apply { @a return; } }", "expected a block, a loop or a declaration after"),
        ("control C() { apply { for (i in a) ; } }", "expected the type of the loop's variable"),
        ("control C() { apply { for (", "expected a statement, found end of file"),
        ("control C() { foo x; apply { } }", "1:15: error: 'foo' is not a type that is declared"),
        ("control C() { return; }", "expected a declaration or the apply block of control 'C'"),
        ("control C() { apply { } T x; }", "expected '}' after the apply block of control 'C'"),
        ("parser P() { }", "expected a state in parser 'P', found none"),
        ("parser P() { state s { exit; } }", "or 'transition' in state 's', found keyword 'exit'"),
        ("parser P() { state s { transition 3; } }", "expected the name of a state or 'select'"),
        ("parser P() { state s { transition a; x = 1; } }", "after the transition of state 's'"),
        ("parser P() { state s { } bit<8> x; }", "expected a state of parser 'P' or '}'"),
        ("struct S { } const S c = { a = 1, a = 2 };", "t.p4:1:35: error: 'a' is given twice"),
        ("struct S { } const bit<8> c = S;", "expected '.' or '(' after a type in an expression"),
        ("const bit<8> c = bit<8>(1);", "expected an expression, found keyword 'bit'"),
        ("const int c = 8w;", "t.p4:1:15: error: malformed integer literal '8w'; expected digits"),
        ("const bit<8> c = a[1;", "expected ']' to close '[', found ';'"),
        ("const bit<8> c = (1;", "expected ')' to close '(', found ';'"),
        ("const bit<8> c = f(1;", "expected ',' or ')' after an argument, found ';'"),
        ("const bit<8> c = f<bit<8>> 1;", "expected '(' after type arguments, found integer 1"),
        ("const bit<8> c = $;", "t.p4:1:18: error: expected an expression, found '$'"),
        ("@a(1 const T c = 1;", "t.p4:1:3: error: expected ')' to close the '(' of an annotation"),
        ("@a[x = 1, 2] const bit<8> c = 1;", "t.p4:1:11: error: expected a field's name"),
        ("@3 const bit<8> c = 1;", "expected the name of an annotation, found integer 3"),
        ("enum E { }", "expected a member of enum 'E', found '}'"),
        ("enum bit<8> E { a }", "expected '=' after 'a': enum 'E' has a type, found '}'"),
        ("error { A, }", "expected a member of error, found '}'"),
        ("extern E { m(); }", "'m' lacks the type it returns, or 'void'; only a constructor"),
        ("extern E { E<T>(); }", "a constructor cannot have type parameters"),
        ("control C() { table t { key = { } key = { } } apply { } }", "two properties named 'key'"),
        ("control C() { table t { const key = { } } }", "property 'key' cannot be const"),
        ("control C() { table t { @a actions = { } } }", "'actions' cannot be annotated"),
        ("control C() { table t { actions = { 3; } } }", "expected the name of an action"),
        ("typedef bit<8>;", "expected the new name of a type, found ';'"),
        ("list<bit<8>> f();", "t.p4:1:17: error: expected '{', found ';'"),
    ],
)
def test_errors_say_what_and_where(text: str, expected: str) -> None:
    assert expected in message(text)


@pytest.mark.parametrize("text", ["(", "-", "{", "a[", "(bit<8>)", "f("])
def test_nesting_without_end_is_an_error(text: str) -> None:
    assert "the program is nested too deeply here" in message("const bit<8> c = " + text * 3000)


_SAMPLE = """
struct S { bit<8> f; } header H { bit<8> g; } enum E { a, b } typedef bit<8> T;
extern X { X(int n); void run<U>(in U u); } struct G<A> { A a; }
const T c = (T) 1 ++ f<T>(a[3:0]) + { x = 1, ... }.x;
parser P(in H h) { state start { transition select(h.g) { (1 &&& 2): accept; _: reject; } } }
control C(inout H h) {
    @name("a") action a(in T t) { h.g = t; }
    table t { key = { h.g : exact; } actions = { a(1); } const entries = { 1 : a(2); } }
    apply { for (T i in 1 .. 2) { if (t.apply().hit) { exit; } else { G<G<T>> g; } } }
}
"""


@pytest.mark.slow
@given(st.data())
def test_no_text_makes_the_parser_fail_otherwise(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(_SAMPLE)))
    end = data.draw(st.integers(start, len(_SAMPLE)))
    new = data.draw(
        st.one_of(
            st.just(""),
            st.sampled_from([*"(){}<;.@T#1", '"', ">>", "/*"]),
            st.text(max_size=4),
        )
    )
    try:
        parse_text(_SAMPLE[:start] + new + _SAMPLE[end:])
    except P4Error as error:
        assert error.position.line >= 1
        assert error.source_line is not None
