"""Tables, parsers and instances: names for the control plane, order, specialisation."""

from __future__ import annotations

import pytest

from p4switch import ir
from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from tests.support.ir_text import dump

PROGRAM = """
#include <core.p4>
#include <v1model.p4>
type bit<9> port_t;
enum bit<8> Kind {{ one = 1, two = 2 }}
header h_t {{ bit<8> a; @name("other") bit<16> b; }}
header v_t {{ bit<8> n; varbit<64> v; }}
header_union u_t {{ h_t h; v_t v; }}
struct headers {{ h_t h; v_t v; h_t[3] stack; u_t u; }}
struct meta_t {{ bit<8> i; bit<32> w; port_t port; }}
error {{ Mine }}
{top}
parser P(packet_in b, out headers hdr, inout meta_t m, inout standard_metadata_t sm) {{
    {states}
}}
control V(inout headers hdr, inout meta_t m) {{ apply {{ }} }}
control C(inout headers hdr, inout meta_t m, inout standard_metadata_t sm) {{
    {local}
    apply {{ {body} }}
}}
control E(inout headers hdr, inout meta_t m, inout standard_metadata_t sm) {{ apply {{ }} }}
control D(packet_out b, in headers hdr) {{ apply {{ b.emit(hdr); }} }}
V1Switch(P(), V(), C(), E(), V(), D()) main;
"""


def program(
    body: str = "", local: str = "", top: str = "", states: str = "state start { }"
) -> ir.Program:
    text = PROGRAM.format(body=body, local=local, top=top, states=states)
    return compile_program(parse_text(text, "test.p4"), by_reference=False)


def the_table(local: str, top: str = "") -> ir.Table:
    (table,) = program("t.apply();", local, top).tables
    return table


# --- Tables ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("hdr.h.a: exact", "hdr.h.a"),
        ("hdr.h.b: exact", "hdr.h.other"),
        ("hdr.h.isValid(): exact", "hdr.h.$valid$"),
        ("hdr.u.v.isValid(): exact", "hdr.u.v.$valid$"),
        ("hdr.stack[1].a: exact", "hdr.stack[1].a"),
        ("hdr.h.b[11:4]: exact", "hdr.h.other[11:4]"),
        ("hdr.h.b & 0xF0: exact", "hdr.h.other & 0xf0"),
        ('m.i + 1: exact @name("sum")', "sum"),
    ],
)
def test_names_of_keys(key: str, name: str) -> None:
    table = the_table(f"table t {{ key = {{ {key}; }} actions = {{ NoAction; }} }}")
    assert [k.name for k in table.keys] == [name]


def test_a_table_without_default_action_gets_no_action_for_that_only() -> None:
    table = the_table("action a() { } table t { actions = { a; } }")
    assert [x.action.name for x in table.actions] == ["C.a", "NoAction"]
    assert table.default_action.index == 1
    assert [x.default_only for x in table.actions] == [False, True]


def test_entries_with_every_match_kind() -> None:
    table = the_table(
        """action a(bit<8> x, bool y) { }
        table t {
            key = { m.i: exact; m.w: lpm; hdr.h.a: ternary; hdr.h.b: range; hdr.v.n: optional; }
            actions = { a; NoAction; }
            const entries = {
                (1, 0x0a000000 &&& 0xff000000, 2 &&& 6, 3 .. 9, 4): a(7, true);
                (2, _, _, _, _): NoAction();
            }
        }"""
    )
    first, second = table.entries
    assert table.entries_constant and first.constant
    assert [(k.value, k.mask, k.high, k.any) for k in first.keys] == [
        (1, 0xFF, None, False),
        (0x0A000000, 0xFF000000, None, False),
        (2, 6, None, False),
        (3, 0xFFFF, 9, False),
        (4, 0xFF, None, False),
    ]
    assert (first.action.index, first.action.arguments) == (0, (7, 1))
    assert [k.any for k in second.keys] == [False, True, True, True, True]
    assert first.priority is None


@pytest.mark.parametrize(
    ("properties", "entries", "priorities"),
    [
        ("", "0 &&& 1: a; 1 &&& 1: a; 2 &&& 2: a;", [3, 2, 1]),
        ("largest_priority_wins = false;", "0 &&& 1: a; 1 &&& 1: a;", [1, 2]),
        ("priority_delta = 10;", "priority = 50: 0 &&& 1: a; 1 &&& 1: a;", [50, 40]),
        ("", "priority = 5: 0 &&& 1: a; priority = 9: 1 &&& 1: a;", [5, 9]),
    ],
)
def test_priorities_of_entries(properties: str, entries: str, priorities: list[int]) -> None:
    table = the_table(
        f"""action a() {{ }}
        table t {{ key = {{ m.i: ternary; }} actions = {{ a; }} default_action = a;
            {properties} entries = {{ {entries} }} }}"""
    )
    assert [e.priority for e in table.entries] == priorities


def test_directional_arguments_are_bound_by_the_list_of_actions() -> None:
    made = program(
        "t.apply();",
        """action a(in bit<8> x, out bit<8> y, bit<8> z) { y = x + z; }
        table t { key = { m.i: exact; } actions = { a(m.i, hdr.h.a); }
            default_action = a(m.i, hdr.h.a, 5); }""",
    )
    assert (
        "  action C.a\n"
        "    C_a_x = C_m.i\n"
        "    declare C_a_y\n"
        "    C_hdr.h.a = C_a_y\n"
        "  default C.a(5)\n"
    ) in dump(made)
    (table,) = made.tables
    assert [p.name for p in table.actions[0].action.data] == ["z"]


def test_properties() -> None:
    made = program(
        "t.apply();",
        """direct_counter(CounterType.bytes) c;
        direct_meter<bit<8>>(MeterType.packets) d;
        action a() { d.read(m.i); }
        table t { key = { m.i: exact; hdr.h.a: selector; } actions = { a; }
            const default_action = a; size = 4 * 256; support_timeout = true;
            counters = c; meters = d;
            @name("ap") implementation = action_selector(HashAlgorithm.crc16, 32w8, 32w4); }""",
    )
    (table,) = made.tables
    assert (table.size, table.support_timeout, table.default_constant) == (1024, True, True)
    assert [x.name for x in (*table.counters, *table.meters)] == ["C.c", "C.d"]
    assert table.implementation is not None
    assert (table.implementation.name, table.implementation.extern) == ("ap", "action_selector")
    assert table.implementation.arguments == (2, 8, 4)


def test_calls_in_keys_run_before_the_match() -> None:
    table = the_table(
        'table t { key = { f(m.i): exact @name("k"); } actions = { NoAction; } }',
        "bit<8> f(inout bit<8> x) { x = 1; return x; }",
    )
    assert [type(s).__name__ for s in table.key_code] == ["Assign", "Call"]


def test_new_types_are_bits_with_a_name() -> None:
    table = the_table("table t { key = { m.port: exact; } actions = { NoAction; } }")
    (key,) = table.keys
    assert key.expression.type == ir.Bits(9)
    assert (key.type_name.kind, key.type_name.name) == ("newtype", "port_t")


# --- Instances and names ---------------------------------------------------------------------

INNER = """
control Inner(inout meta_t m)(bit<8> start, register<bit<8>> r) {
    action go() { r.write(0, start); m.i = m.i + start; }
    @name("renamed") action other() { }
    @name(".flat") action absolute() { }
    table t { key = { m.i: exact; } actions = { go; other; absolute; } default_action = go; }
    apply { t.apply(); }
}
"""


def test_instances_are_specialised_and_named_by_their_path() -> None:
    made = program(
        "one.apply(m); two.apply(m);",
        'register<bit<8>>(4) r; Inner(1, r) one; @name("second") Inner(2, r) two;',
        INNER,
    )
    assert [t.name for t in made.tables] == ["C.one.t", "C.second.t"]
    assert [a.name for a in made.actions] == [
        "C.one.go",
        "C.one.renamed",
        "flat",
        "C.second.go",
        "C.second.renamed",
        "flat",
    ]
    assert [b.name for b in made.blocks if b.type_name == "Inner"] == ["C.one", "C.second"]
    assert [x.name for x in made.externs] == ["C.r"]
    text = dump(made)
    assert "C.r.write(in 32w0, in 8w1)" in text and "C.r.write(in 32w0, in 8w2)" in text


def test_unreachable_tables_are_omitted() -> None:
    made = program(
        "if (false) { unused.apply(); } t.apply();",
        """action b() { } action inner() { } action a() { inner(); }
        table t { actions = { a; } default_action = a; }
        table unused { actions = { b; } default_action = b; }""",
    )
    assert [t.name for t in made.tables] == ["C.t"]
    assert [a.name for a in made.actions] == ["C.a"]
    assert [f.name for f in made.functions] == ["C.inner"]


def test_an_action_called_in_apply_gets_nothing_from_the_control_plane() -> None:
    made = program("a(1);", "action a(bit<8> x) { m.i = x; }")
    (action,) = made.actions
    assert action.data == () and action.parameters[0].direction == "in"


def test_generic_controls_and_parsers() -> None:
    made = program(
        "Copy<bit<32>>.apply(m.w); Copy<bit<8>>.apply(m.i);",
        top="control Copy<T>(inout T x) { apply { T y = x; x = y; } }",
    )
    kinds = [b.parameters[0].variable.type for b in made.blocks if b.type_name == "Copy"]
    assert kinds == [ir.Bits(32), ir.Bits(8)]


def test_errors_and_enums_are_numbered() -> None:
    made = program()
    assert made.errors[0] == "NoError" and made.errors[-1] == "Mine"
    assert made.enums["Kind"] == (("one", 1), ("two", 2))
    assert made.enums["CounterType"][2] == ("packets_and_bytes", 2)


def test_annotations_are_folded_and_kept() -> None:
    made = program(
        top="""const bit<8> k = 2;
        @controller_header("packet_in") header in_t {
            @field_list(k, 1 + 2, Kind.one) @id(0x10) bit<8> x; }"""
    )
    header = made.types["in_t"]
    assert header.annotations[0] == ir.Annotation(
        "controller_header", ("packet_in",), (), header.annotations[0].tokens
    )
    lists, number = header.fields[0].annotations
    assert lists.arguments == (2, 3, 1) and number.arguments == (16,)


# --- Parsers ---------------------------------------------------------------------------------


def parser_text(states: str, top: str = "") -> str:
    text = dump(program(states=states, top=top))
    start = text.index("parser P(")
    return text[text.index("\n", start) + 1 : text.index("\ncontrol V(")].replace("P_", "")


def test_extract_select_and_masks() -> None:
    assert parser_text(
        """state start { b.extract(hdr.h); transition select(hdr.h.a, hdr.h.b) {
            (1, _): more; (2 &&& 3, 4 .. 5): accept; default: reject; } }
        state more { b.extract(hdr.stack.next);
            transition select(hdr.stack.last.a) { 0: more; _: accept; } }"""
    ) == (
        "  state start\n"
        "    extract hdr.h\n"
        "    select hdr.h.a, hdr.h.b\n"
        "      8w1, _: more\n"
        "      8w2 &&& 8w3, 16w4 .. 16w5: accept\n"
        "      _, _: reject\n"
        "  state more\n"
        "    extract hdr.stack.next\n"
        "    select hdr.stack.last.a\n"
        "      8w0: more\n"
        "      _: accept"
    )


def test_varbits_lookahead_and_verify() -> None:
    assert parser_text(
        """state start {
            b.extract(hdr.v, (bit<32>)b.lookahead<bit<8>>() << 3);
            verify(hdr.v.n < 9, error.Mine);
            b.advance(8);
            transition accept; }"""
    ) == (
        "  state start\n"
        "    lookahead tmp\n"
        "    extract hdr.v, ((bit<32>)tmp << 2w3)\n"
        "    verify (hdr.v.n < 8w9), 32w7\n"
        "    advance 32w8\n"
        "    goto accept"
    )


def test_value_sets_and_struct_subjects() -> None:
    made = program(
        states="""value_set<s_t>(4) vs;
        state start { b.extract(hdr.h); transition select(hdr.h.a, hdr.h.b) {
            vs: accept; (1, 2): accept; } }""",
        top="struct s_t { @match(ternary) bit<8> x; bit<16> y; }",
    )
    (value_set,) = made.value_sets
    assert value_set.name == "P.vs" and value_set.match_kinds == ("ternary", "exact")
    assert "      P.vs: accept\n      8w1, 16w2: accept\n" in dump(made)


def test_a_sub_parser_is_a_block_of_its_own() -> None:
    made = program(
        states="Sub() sub; state start { sub.apply(b, hdr.h); transition accept; }",
        top="""parser Sub(packet_in p, out h_t h) {
            state start { p.extract(h); transition accept; } }""",
    )
    assert "declare P_sub_h\n    call P.sub\n      P_hdr.h = P_sub_h\n" in dump(made)


@pytest.mark.slow
def test_a_wide_program_keeps_its_order() -> None:
    lanes = 352
    fields = "".join(f"bit<32> l{i};" for i in range(lanes))
    registers = "".join(f"register<bit<32>>(8) r{i};" for i in range(lanes))
    code = "".join(f"r{i}.read(m.w, 0);" for i in range(lanes))
    chain = " | ".join(f"hdr.h.a[{i % 8}:{i % 8}]" for i in range(lanes))
    made = program(f"{code} m.i[0:0] = {chain};", registers, f"header wide_t {{ {fields} }}")
    assert [x.name for x in made.externs] == [f"C.r{i}" for i in range(lanes)]
