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


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("h.n.value = p.length();", "packet.length() in a parser"),
        ("h.more.push_front(1);", "push_front in a parser"),
        ("h.more.pop_front(2);", "pop_front in a parser"),
        ("p.extract(h.more.next);", None),
    ],
)
def test_what_p4c_refuses_in_parsers(state: str, message: str | None) -> None:
    text = TEXT.replace("p.extract(h.n);", f"p.extract(h.n); {state}").replace("SHIFT", "")
    text = text.replace("{ number_t n; }", "{ number_t n; number_t[3] more; }")
    found = list(bmv2_limits(compile_program(parse_text(text, "x.p4"))))
    assert [m.split(":")[0] for _, m in found] == ([message] if message else [])
    assert [position.line for position, _ in found] == ([7] if message else [])


@pytest.mark.parametrize(
    ("apply", "message"),
    [
        ("h.n.value = h.n.value / h.n.value;", "'/' at run time"),
        ("h.n.narrow = h.n.narrow % 3;", "'%' at run time"),
        ("h.n.narrow = h.n.narrow / 4;", None),
        ("h.n.narrow = 0 / h.n.narrow;", None),
        ("chosen();", "a switch in an action"),
        ("pair_t p; pairs.read(p, 0);", "'read' returns a struct"),
        ("pairs.write(0, { 1, 2 });", None),
        ("h.u[h.n.narrow].one.setValid();", "an index at run time"),
        ("h.u[1].one.setValid();", None),
    ],
)
def test_what_p4c_for_bmv2_does_not_do(apply: str, message: str | None) -> None:
    local = """register<pair_t>(4) pairs;
        action chosen() { switch (h.n.narrow) { 1: { h.n.wide = 2; } } }"""
    text = TEXT.replace("SHIFT", apply).replace("    apply {\n        if", f"{local} apply {{ if")
    text = text.replace(
        "struct headers_t { number_t n; }",
        """struct pair_t { bit<8> a; bit<8> b; }
header_union either_t { number_t one; } struct headers_t { number_t n; either_t[2] u; }""",
    )
    found = list(bmv2_limits(compile_program(parse_text(text, "x.p4"))))
    assert [m.split(":")[0] for _, m in found] == ([message] if message else [])


def test_control_plane_names_of_two_controls() -> None:
    action = '@name(".drop") action drop() { s.egress_spec = 511; } apply { drop();'
    text = TEXT.replace("SHIFT", "").replace("    apply {\n        if", f"{action} if")
    text = text.replace(
        "inout standard_metadata_t s) { apply {", f"inout standard_metadata_t s) {{ {action}"
    )
    [(position, message)] = bmv2_limits(compile_program(parse_text(text, "x.p4")))
    assert message.startswith("two actions have the control-plane name 'drop'")
    assert text.splitlines()[position.line - 1].startswith("control E(")


def test_a_package_of_another_architecture_has_no_ingress() -> None:
    text = "control c(inout bit<8> a) { apply { a = a / a; } }\n"
    text += "control proto(inout bit<8> a); package top(proto p); top(c()) main;"
    found = list(bmv2_limits(compile_program(parse_text(text, "x.p4"))))
    assert [m.split(":")[0] for _, m in found] == ["'/' at run time"]


TABLES = """
action set(bit<8> x) { h.n.narrow = x; }
table first { key = { h.n.value: exact; } actions = { set; } }
table second { key = { h.n.value: exact; } actions = { set; } }
"""


@pytest.mark.parametrize(
    ("apply", "names"),
    [
        ("first.apply(); second.apply();", []),
        ("first.apply(); second.apply(); first.apply();", ["I.first"]),
        ("if (first.apply().hit) { second.apply(); } first.apply();", ["I.first"]),
        ("if (h.n.wide == 1) { first.apply(); } else { first.apply(); }", []),
        ("if (h.n.wide == 1) { first.apply(); exit; } first.apply();", []),
        ("if (h.n.wide == 1) { first.apply(); return; } first.apply();", []),
        ("if (h.n.wide == 1) { first.apply(); } first.apply();", ["I.first"]),
        ("switch (first.apply().action_run) { set: { return; } } first.apply();", ["I.first"]),
        ("first.apply(); first.apply(); first.apply();", ["I.first"]),
    ],
)
def test_tables_that_lead_back_to_themselves(apply: str, names: list[str]) -> None:
    text = TEXT.replace("SHIFT", apply).replace("    apply {\n        if", f"{TABLES} apply {{ if")
    found = list(bmv2_limits(compile_program(parse_text(text, "x.p4"))))
    expected = [f"table {name} leads back to itself" for name in names]
    assert [message.split(":")[0] for _, message in found] == expected


def test_a_control_that_is_applied_twice_leads_back() -> None:
    sub = f"control Sub(inout headers_t h) {{ {TABLES} apply {{ first.apply(); return; }} }}\n"
    text = TEXT.replace("control I(", f"{sub}control I(")
    text = text.replace("SHIFT", "sub.apply(h); sub.apply(h);")
    text = text.replace("    apply {\n        if", " Sub() sub; apply { if")
    found = list(bmv2_limits(compile_program(parse_text(text, "x.p4"))))
    assert [message.split(":")[0] for _, message in found] == [
        "table I.sub.first leads back to itself"
    ]


def test_a_common_program_has_no_warning() -> None:
    assert list(bmv2_limits(compile_file(PROGRAMS / "router.p4"))) == []
