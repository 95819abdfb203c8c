"""All errors of a program at once, and warnings of what is legal but probably not meant."""

from __future__ import annotations

import pytest

from p4switch.frontend.program import Analysis, analyse
from p4switch.frontend.syntax.parser import parse_text
from p4switch.position import P4Errors
from tests.frontend.test_errors import PROGRAM


def analysed(body: str = "", line: str = "", before: str = "") -> Analysis:
    text = PROGRAM.format(body=body, line=line).replace("parser P", f"{before}\nparser P", 1)
    egress = (
        "control E(inout headers hdr, inout meta_t m, inout standard_metadata_t sm) { apply { } }"
    )
    text = text.replace("V1Switch", f"{egress}\nV1Switch").replace("C(), C()", "C(), E()")
    return analyse(parse_text(text, "test.p4"))


def messages(found: Analysis) -> list[str]:
    assert found.error is not None
    return [f"{e.position.line}: {e.message}" for e in found.error.errors]


def warned(**parts: str) -> list[str]:
    found = analysed(**parts)
    assert found.error is None
    return [message for position, message in found.warnings]


def test_errors_of_several_statements_and_declarations() -> None:
    found = analysed(
        body="x = 1;\nif (m.flag) {\n  m.i = m.w;\n  m.j = 2;\n} else\n  y = 3;",
        line="action a() {\n  z = 1;\n  m.q = 2; }\n"
        "table t { key = { m.v: exact; } actions = { b; a; } }",
    )
    assert [message.split(";")[0].split(", not")[0] for message in messages(found)] == [
        "12: nothing is called 'z' here",
        "13: 'meta_t' has no field 'q'",
        "14: 'meta_t' has no field 'v'",
        "14: no action is called 'b'",
        "16: nothing is called 'x' here",
        "18: the value assigned must be of type 'bit<8>'",
        "19: 'meta_t' has no field 'j'",
        "21: nothing is called 'y' here",
    ]
    assert isinstance(found.error, P4Errors)
    assert str(found.error).count("error:") == 8
    assert found.program is None


def test_what_is_broken_causes_no_further_errors() -> None:
    found = analysed(
        body="t.apply(); c = m.i; d(); m.w = f(m.w);",
        line="bit<8> c = nothing;\naction d() { c = 1; }\n"
        "table t { key = { m.none: exact; } actions = { NoAction; } }",
        before="const bit<8> K = missing;\nheader i_t { bit<K> a; }\n"
        "bit<16> f(bit<16> x) { return x + wrong; }",
    )
    assert [message.split(" here")[0] for message in messages(found)] == [
        "6: nothing is called 'missing'",
        "8: nothing is called 'wrong'",
        "13: nothing is called 'nothing'",
        "15: 'meta_t' has no field 'none'",
    ]


def test_an_error_in_a_control_that_is_used_twice_is_one() -> None:
    text = PROGRAM.format(body="x = 1;", line="")
    assert len(messages(analyse(parse_text(text, "test.p4")))) == 1


def test_errors_in_states() -> None:
    text = PROGRAM.format(body="", line="").replace(
        "transition accept;", "m.i = m.w; transition next; }\n state next { q = 1; transition end;"
    )
    found = analyse(parse_text(text, "test.p4"))
    assert [message.split(" ", 1)[1][:25] for message in messages(found)] == [
        "the value assigned must b",
        "no state is called 'end'",
        "nothing is called 'q' her",
    ]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"line": "action a() { }"}, "action 'a' is not used"),
        ({"line": "table t { actions = { NoAction; } }"}, "table 't' is not used"),
        ({"line": "register<bit<8>>(4) r;"}, "object 'r' is not used"),
        ({"body": "bit<8> x = 1;"}, "variable 'x' is not used"),
        ({"body": "m.i = 8w300;"}, "300 does not fit 'bit<8>': it is 44 here"),
        ({"body": "m.i = 300;"}, "300 does not fit 'bit<8>': it is 44 here"),
        ({"body": "m.i = -129;"}, "-129 does not fit 'bit<8>': it is 127 here"),
        ({"body": "m.s = 128;"}, "128 does not fit 'int<8>': it is -128 here"),
        ({"body": "bit<8> x; m.i = x;"}, "'x' may have no value yet here"),
        ({"body": "bool x; if (m.flag) { x = true; } m.flag = x;"}, "'x' may have no value yet"),
        ({"line": "bit<8> x = 1;", "body": "m.i = x; { bit<8> x = 2; m.i = x; }"}, "'x' hides"),
    ],
)
def test_warnings(parts: dict[str, str], message: str) -> None:
    found = warned(**parts)
    assert len(found) == 1
    assert message in found[0]


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"line": '@noWarn("unused") action a() { }'},
        {"line": "action a() { }", "body": "a();"},
        {"line": "action a() { } table t { actions = { a; } }", "body": "t.apply();"},
        {"body": "bit<8> x; if (m.flag) { x = 1; } else { x = 2; } m.i = x;"},
        {"body": "bit<8> x; if (m.flag) { x = 1; } else { return; } m.i = x;"},
        {"body": "bit<8> x; random(x, 0, 1); m.i = x;"},
        {"line": "bit<8> x; action a() { x = 1; }", "body": "a(); m.i = x;"},
        {"body": "m.i = -1; m.s = -128; m.i = 255;"},
        {"body": "m.i = (bit<8>)300;"},
    ],
)
def test_no_warnings(parts: dict[str, str]) -> None:
    assert warned(**parts) == []


def test_calls_and_tables_may_give_values() -> None:
    line = "bit<8> x; action a() { x = 1; } table t { actions = { a; } }"
    assert warned(line=line, body="if (m.flag) { t.apply(); } else { x = 2; } m.i = x;") == []
