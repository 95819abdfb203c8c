"""Programs that break a rule of the language and that p4c refuses too, each by its error."""

from __future__ import annotations

import pytest

from p4switch.backends.native.engine import NativeEngine
from p4switch.backends.reference.interpreter import Interpreter
from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.position import P4Error
from p4switch.targets.v1model.engine import Engine

PROGRAM = """
#include <core.p4>
#include <v1model.p4>
header h_t { bit<8> a; int<8> s; bit<16> w; }
struct pair_t { bit<8> x; bit<8> y; }
struct headers { h_t h; h_t[3] stack; }
struct meta_t { bit<8> i; bit<16> w; }
TOP
parser P(packet_in b, out headers hdr, inout meta_t m, inout standard_metadata_t sm) {
    state start { b.extract(hdr.h); PARSER }
    state again { transition again; }
}
control V(inout headers hdr, inout meta_t m) { apply { } }
control C(inout headers hdr, inout meta_t m, inout standard_metadata_t sm) {
    action set(inout bit<8> target, bit<8> value) { target = value; }
    action other() { }
    LOCAL
    apply { APPLY }
}
control E(inout headers hdr, inout meta_t m, inout standard_metadata_t sm) { apply { } }
control D(packet_out b, in headers hdr) { apply { b.emit(hdr.h); } }
V1Switch(P(), V(), C(), E(), V(), D()) main;
"""
ACCEPT = "transition accept;"
KEY = "key = { m.i : ternary; }"


def text_with(top: str = "", parser: str = ACCEPT, local: str = "", apply: str = "") -> str:
    program = PROGRAM.replace("TOP", top).replace("PARSER", parser)
    return program.replace("LOCAL", local).replace("APPLY", apply)


def table(body: str) -> dict[str, str]:
    return {"local": f"table t {{ {body} }}", "apply": "t.apply();"}


REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "a table without actions": (table(KEY), "table 't' needs a property 'actions'"),
    "a default action before the actions": (
        table("default_action = other; actions = { other; }"),
        "'default_action' of table 't' must come after its actions",
    ),
    "a structured annotation twice": (
        {"local": "@x[1] @x(2) action third() { }", "apply": "third();"},
        "'@x[...]' must be the only annotation of that name here",
    ),
    "another argument in the default action": (
        table(f"{KEY} actions = {{ set(m.i); other; }} default_action = set(hdr.h.a, 1);"),
        "'target' of action 'set' must be one of the list of actions",
    ),
    "another argument in an entry": (
        table(
            f"{KEY} actions = {{ set(m.i); other; }} default_action = other();"
            "const entries = { 1 : set(hdr.h.a, 1); }"
        ),
        "'target' of action 'set' must be one of the list of actions",
    ),
    "the first entry without a priority": (
        table(
            f"{KEY} actions = {{ other; }} default_action = other();"
            "entries = { 1 : other(); priority = 5 : 2 : other(); }"
        ),
        "the first entry needs a priority, since others have one",
    ),
    "entries before the key": (
        table(f"entries = {{ 1 : other(); }} {KEY} actions = {{ other; }}"),
        "the entries of table 't' must come after its key",
    ),
    "a table in an action's argument": (
        {
            "local": "table s { key = { m.i : exact; } actions = { other; } "
            "const default_action = other(); } action take(in bit<8> v) { m.i = v; }"
            "table t { key = { m.i : exact; } actions = { take(s.apply().hit ? 8w1 : 8w2); other; }"
            " default_action = other(); }",
            "apply": "t.apply();",
        },
        "action 'take': its arguments cannot apply a table",
    ),
    "two actions of one name": (
        {
            "local": '@name(".one") action first() { m.i = 1; }'
            '@name(".one") action second() { m.i = 2; }',
            "apply": "first(); second();",
        },
        "two actions go by the name 'one'; tell them apart with '@name'",
    ),
    "a variable that hides a parameter": (
        {"apply": "bit<8> m = 1;"},
        "'m' would hide the parameter at test.p4:",
    ),
    "a type that nothing says": (
        {
            "top": "control none<T>(inout T x) { apply { } } control Any<T>(inout T x);"
            "package Box<T>(Any<T> inner = none<T>()); Box() box;"
        },
        "the type argument 'T' of 'Box' cannot be inferred",
    ),
    "an object of an abstract extern": (
        {"top": "extern maker { maker(); abstract void make(); } maker() it;"},
        "'maker' has the abstract method 'make': a declaration with a body must give it",
    ),
    "values of a type parameter compared": (
        {
            "top": "bool alike<T>(in T x, in T y) { return x == y; }",
            "apply": "if (alike(m.i, 8w3)) { m.i = 0; }",
        },
        "values of type 'T' cannot be compared",
    ),
    "a string with a direction": (
        {"top": "extern void show<T>(in T value);", "apply": 'show("text");'},
        "'value' becomes a string here, which cannot have a direction",
    ),
    "a stack sized by a parameter": (
        {
            "top": "control Sized()(bit<32> size) { apply { h_t[size] all; } }",
            "local": "Sized(3) sized;",
            "apply": "sized.apply();",
        },
        "the size must be a constant, not the parameter 'size'",
    ),
    "a struct in a select": (
        {"parser": "pair_t p = { 1, 2 }; transition select(p) { _ : accept; }"},
        "a select cannot match a struct ('pair_t'); list its fields instead",
    ),
    "a mask that is not known": (
        {"parser": "transition select(8w1) { hdr.h.a &&& 8w3 : accept; _ : reject; }"},
        "masks and ranges must be known when compiling",
    ),
    "a range that is not known": (
        {"parser": "transition select(8w1) { 1 .. hdr.h.a : accept; _ : reject; }"},
        "masks and ranges must be known when compiling",
    ),
    "a parser that never ends": (
        {"parser": "transition again;"},
        "parser 'P' never ends: no transition leads to accept or reject",
    ),
    "a translation to bool": (
        {"top": '@p4runtime_translation("example", bool) type bit<8> number_t;'},
        "'@p4runtime_translation' takes a string and 'bit<N>', 'string' or a number",
    ),
    "an int shifts": (
        {"apply": "m.w = m.w << (int) m.i;"},
        "the amount of a shift must be unsigned, not 'int'",
    ),
    "an int divided": (
        {"apply": "m.w = (bit<16>) ((int) m.w / 3);"},
        "'/' needs operands with a width, not 'int'",
    ),
    "a default for what an action writes": (
        {"local": "action take(out bit<8> v = 1) { v = 2; }", "apply": ""},
        "an out parameter cannot have a default value",
    ),
    "an extern that takes itself": (
        {"top": "extern node { node(); void link(in bit<8> place, node other); }"},
        "a method of extern 'node' cannot take a 'node'",
    ),
    "a structured annotation of a constant twice": (
        {"top": "@number(3) @number[] const bit<8> three = 3;"},
        "'@number[...]' must be the only annotation of that name here",
    ),
    "a package annotation that says nothing": (
        {"top": "@pkginfo const bit<8> three = 3;"},
        "'@pkginfo' takes a list of NAME=VALUE",
    ),
    "a deprecation that is no string": (
        {"top": "@deprecated(3) void old() { }"},
        "'@deprecated' takes one string",
    ),
    "a match that is no match kind": (
        {"top": "struct set_t { @match(ternary) bit<8> x; @match(1 + 1) bit<8> y; }"},
        "'@match' takes one match kind",
    ),
    "a structured annotation of what is no value": (
        {"top": "extern e { e(); } e() one; e() two; @x[one == two] typedef bit<8> byte_t;"},
        "the operands of '==' must have one type, not the extern object 'one'",
    ),
    "a structured annotation that is not known": (
        {"local": "@x[m.i + 1] action third() { }", "apply": "third();"},
        "an annotation's argument must be a constant",
    ),
    "a length that stands behind": (
        {"top": "header v_t { @length(size) varbit<16> data; bit<32> size; }"},
        "'size' of '@length' is neither declared nor an earlier field",
    ),
    "a packet method with another type argument": (
        {"top": "control Out(packet_out p) { apply { p.emit<int>((h_t) { 0, 1, 2 }); } }"},
        "the argument of 'packet_out.emit' must be of type 'int', not",
    ),
    "a struct as its own type argument": (
        {"top": "struct box<T> { T x; } struct other<T> { T x; } typedef box<other<box<bit>>> t;"},
        "'box' cannot be a type argument of itself",
    ),
    "a string in a tuple": (
        {"top": "extern maker { maker(tuple<bit<8>, string> parts); }"},
        "an element of a tuple cannot be of type 'string'",
    ),
    "something left open in a tuple": (
        {"top": "extern maker { maker(); tuple<_, bit> parts(); }"},
        "an element of a tuple cannot be of type '_'",
    ),
    "a default that its type does not have": (
        {"top": "struct none<T> { } extern maker { maker(list<none<bit<32>>> data = ...); }"},
        "a value of type 'list<none<bit<32>>>' cannot exist at run time",
    ),
    "a default of another type": (
        {"top": "extern maker { maker(bool data = 8w3); }"},
        "the default of 'data' must be of type 'bool', not a value of type 'bit<8>'",
    ),
    "the default of a type as an operand": (
        {"apply": "if ((...) && m.i == 1) { m.i = 2; }"},
        "the operand of '&&' cannot be '...'",
    ),
    "a table's own name as its key": (
        {
            "top": "control Inner(in bit<8> t) { table t { key = { t : exact; } actions = { } }"
            "apply { } }",
            "local": "Inner() inner;",
            "apply": "inner.apply(m.i);",
        },
        "'t' is the table here, which is not a value",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    places, message = REFUSED[name]
    with pytest.raises(P4Error) as caught:
        compile_program(parse_text(text_with(**places), "test.p4"))
    assert caught.value.message.startswith(message)


ACCEPTED: dict[str, dict[str, str]] = {
    "the arguments of the list again": table(
        f"{KEY} actions = {{ set(m.i); }} default_action = set(m.i, 1);"
    ),
    "a local of a control hides a parameter": {"local": "bit<8> m = 1;", "apply": ""},
    "an action's parameter hides the control's": {
        "local": "action take(bit<8> m) { hdr.h.a = m; }",
        "apply": "take(1);",
    },
    "entries of nothing before the key": table(f"entries = {{ }} {KEY} actions = {{ other; }}"),
    "a parser that may match nothing": {
        "parser": "transition select(hdr.h.a) { 1 : again; 2 : again; }"
    },
    "types left open on purpose": {
        "top": "control none<T>(inout T x) { apply { } } control Any<T>(inout T x);"
        "package Box<T>(Any<T> inner = none<T>()); Box<_>() box;"
    },
    "annotations as they should be": {
        "top": '@deprecated("use none") void old() { } @number[3] const bit<8> three = 3;'
        "struct set_t { @match(ternary) bit<8> x; bit<8> y; } const bit<32> two = 2;"
        '@mixed[1, "text", true, 1 == 2, 5 + two] @kv[a=1, b="x"] typedef bit<8> byte_t;'
        "header v_t { bit<8> size; @length((bit<32>)size * 8 - two) varbit<16> data; }"
    },
    "packet methods with type arguments": {
        "top": "control Out(packet_out p, in h_t h) { apply { p.emit<h_t>(h); } }"
    },
    "a match kind in a tuple": {
        "top": "const tuple<match_kind> once = { exact };",
    },
    "type arguments within each other": {
        "top": "struct box<T> { T x; } struct other<T> { T x; } typedef box<other<bit>> t;"
    },
    "two actions of one name, one of them not used": {
        "local": '@name(".one") action first() { m.i = 1; } @name(".one") action second() { }',
        "apply": "first();",
    },
}


@pytest.mark.parametrize("version", ["-6419018", "20000101", "20200409"])
def test_unknown_versions_of_v1model(version: str) -> None:
    with pytest.raises(P4Error) as caught:
        parse_text(f"#define V1MODEL_VERSION {version}\n{text_with()}", "test.p4")
    assert "versions are 20180101 to 20200408" in caught.value.message


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name: str) -> None:
    compile_program(parse_text(text_with(**ACCEPTED[name]), "test.p4"))


@pytest.mark.parametrize("engine_of", [Interpreter, NativeEngine])
def test_casts_to_int_lose_nothing(engine_of: type[Engine]) -> None:
    apply = """
        sm.egress_spec = 1;
        hdr.h.w = (bit<16>) ((int) hdr.h.a * (int) hdr.h.s - 1);
        if ((int) hdr.h.a == (int) hdr.h.s) { hdr.h.w = 0; }
        if ((int) hdr.h.s < -100) { hdr.stack[(int) hdr.h.a - 254].setValid(); hdr.h.a =
            (bit<8>) ((hdr.stack[1].isValid() ? 8w1 : 8w0)); }
    """
    program = compile_program(parse_text(text_with(apply=apply)))
    engine = engine_of(program)  # type: ignore[call-arg]

    def run(frame: str) -> str:
        [(port, data)] = engine.process([(0, bytes.fromhex(frame))])
        assert port == 1
        return data.hex()

    assert run("ff7f0000") == "ff7f" + f"{255 * 127 - 1:04x}"
    assert run("ff800000") == "0180" + f"{(255 * -128 - 1) & 0xFFFF:04x}"
    assert run("fff60000") == "fff6" + f"{(255 * -10 - 1) & 0xFFFF:04x}"
