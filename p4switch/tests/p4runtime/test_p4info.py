"""P4Info from our compiler: ids, names, and agreement with p4c."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from finsy.proto import p4i
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from p4switch.frontend.program import compile_file, compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.ir import Annotation
from p4switch.p4runtime.ids import IdKind, aliases, assign_ids, one_at_a_time
from p4switch.p4runtime.p4info import p4info
from p4switch.p4runtime.p4info_match import difference
from p4switch.position import P4Error
from tests.support.paths import EVERYTHING_P4

PROGRAM = """
#include <core.p4>
#include <v1model.p4>
{declarations}
struct headers_t {{ {headers} }}
struct metadata_t {{ bit<8> a; {fields} }}
parser P(packet_in b, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {{
    state start {{ transition accept; }}
}}
control C(inout headers_t h, inout metadata_t m) {{ apply {{}} }}
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {{
    {ingress}
}}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {{ apply {{}} }}
control D(packet_out b, in headers_t h) {{ apply {{}} }}
{package}
V1Switch(P(), C(), I(), E(), C(), D()) main;
"""


def info_of(
    ingress: str = "apply {}",
    declarations: str = "",
    fields: str = "",
    package: str = "",
    headers: str = "",
) -> p4i.P4Info:
    """The P4Info of a small program."""
    text = PROGRAM.format(
        ingress=ingress,
        declarations=declarations,
        fields=fields,
        package=package,
        headers=headers,
    )
    return p4info(compile_program(parse_text(text)))


# --- against p4c -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("p4c") is None, reason="p4c is not installed")
def test_p4c_writes_the_same(tmp_path: Path) -> None:
    target = tmp_path / "p4info.txtpb"
    command = ["p4c", "--target", "bmv2", "--arch", "v1model", "--std", "p4-16"]
    command += ["--p4runtime-files", str(target), "-o", str(tmp_path), str(EVERYTHING_P4)]
    subprocess.run(command, check=True, capture_output=True)
    theirs = text_format.Parse(target.read_text(), p4i.P4Info())
    assert p4info(compile_file(EVERYTHING_P4)) == theirs


def test_actions_of_the_top_level_come_first_as_p4c_has_them() -> None:
    """Of the blocks inside too: tables' first, then those that are called."""
    control = (
        "control {0}(inout bit<8> a) {{ action own() {{ a = 1; }}"
        "table t {{ key = {{ a: exact; }} actions = {{ own; {1}(a); }} default_action = own(); }}"
        "apply {{ called(a); t.apply(); }} }}"
    )
    names = ("first", "second", "called")
    actions = [f"action {name}(inout bit<8> a) {{ a = 2; }}" for name in names]
    text = "\n".join([*actions, control.format("A", "second"), control.format("B", "first")])
    info = info_of(
        "A() a; B() b; action mine() { m.a = 3; }"
        "table t { key = { m.a: exact; } actions = { mine; } default_action = mine(); }"
        "apply { a.apply(m.a); b.apply(m.a); t.apply(); }",
        declarations=text,
    )
    found = [action.preamble.name for action in info.actions]
    assert found == ["second", "first", "called", "I.a.own", "I.b.own", "I.mine"]


# --- ids and aliases ---------------------------------------------------------------------------


@pytest.mark.slow
@given(st.text(max_size=30))
def test_the_hash_is_jenkins_one_at_a_time(name: str) -> None:
    assert one_at_a_time(name) == reference_hash(name)


def reference_hash(name: str) -> int:
    """Bob Jenkins' text, written again with a modulus."""
    modulus = 1 << 32
    total = 0
    for byte in name.encode():
        total = (total + byte) % modulus
        total = total * 1025 % modulus
        total ^= total // 64
    total = total * 9 % modulus
    total ^= total // 2048
    return total * 32769 % modulus


def test_a_published_value_of_the_hash() -> None:
    """From the English Wikipedia's article on Jenkins hash functions."""
    assert one_at_a_time("The quick brown fox jumps over the lazy dog") == 0x519E91F5


def test_known_ids() -> None:
    """Ids that p4c gives to these names (hash of the name, kind in the first byte)."""
    info = info_of(
        "action drop() { mark_to_drop(s); }"
        "table t { key = { m.a: exact; } actions = { drop; } default_action = drop(); }"
        "apply { t.apply(); }"
    )
    assert info.tables[0].preamble.id == 0x02000000 | one_at_a_time("I.t") & 0xFFFFFF
    assert info.actions[0].preamble.id == 0x01000000 | one_at_a_time("I.drop") & 0xFFFFFF


def test_colliding_ids_probe_upwards_in_order_of_name() -> None:
    taken = IdKind.TABLE << 24 | one_at_a_time("b") & 0xFFFFFF
    given_id = (Annotation("id", (taken,)),)
    ids = assign_ids(IdKind.TABLE, {"b": (), "a": given_id})
    assert ids == {"a": taken, "b": taken + 1}


def test_ids_may_be_given_without_their_kind() -> None:
    ids = assign_ids(IdKind.METER, {"a": (Annotation("id", (5,)),)})
    assert ids == {"a": 0x14000005}


def test_ids_of_another_kind_or_given_twice_are_errors() -> None:
    with pytest.raises(P4Error, match="another kind"):
        assign_ids(IdKind.TABLE, {"a": (Annotation("id", (0x01000001,)),)})
    twice = (Annotation("id", (5,)),)
    with pytest.raises(P4Error, match="given to two objects"):
        assign_ids(IdKind.TABLE, {"a": twice, "b": twice})


@pytest.mark.slow
@given(st.sets(st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(".".join)))
def test_an_alias_is_the_shortest_suffix_that_is_unique(names: set[str]) -> None:
    def suffixes(name: str) -> list[str]:
        parts = name.split(".")
        return [".".join(parts[-n:]) for n in range(1, len(parts) + 1)]

    for name, alias in aliases(names).items():
        others = [suffix for other in names - {name} for suffix in suffixes(other)]
        unique = [suffix for suffix in suffixes(name) if suffix not in others]
        assert alias == (unique[0] if unique else name)


# --- what p4c's goldens have, one program each -------------------------------------------------


def test_new_types_and_translations() -> None:
    info = info_of(
        "action a(port_t p, name_t n, plain_t q) {}"
        "table t { key = { m.p: exact; } actions = { a; NoAction; } default_action = NoAction(); }"
        "apply { t.apply(); }",
        declarations=(
            '@p4runtime_translation("org/port", 32) type bit<9> port_t;'
            '@p4runtime_translation("org/name", string) type bit<16> name_t;'
            "type bit<7> plain_t;"
        ),
        fields="port_t p;",
    )
    [key] = info.tables[0].match_fields
    assert (key.bitwidth, key.type_name.name) == (32, "port_t")
    action = next(a for a in info.actions if a.preamble.name == "I.a")
    assert [p.bitwidth for p in action.params] == [32, 0, 7]
    types = info.type_info.new_types
    assert types["port_t"].translated_type.sdn_bitwidth == 32
    assert types["name_t"].translated_type.HasField("sdn_string")
    assert types["plain_t"].original_type.bitstring.bit.bitwidth == 7


def test_structured_annotations_and_documentation() -> None:
    info = info_of(
        '@brief("drops") @mixed[1, "two", true] @pairs[a = 1, b = "x"] @plain(1, 2)'
        "action a() {}"
        "table t { actions = { a; } default_action = a(); }"
        "apply { t.apply(); }"
    )
    preamble = info.actions[0].preamble
    assert preamble.doc.brief == "drops"
    assert list(preamble.annotations) == ["@plain(1 , 2)"]
    mixed, pairs = preamble.structured_annotations
    values = mixed.expression_list.expressions
    assert (values[0].int64_value, values[1].string_value, values[2].bool_value) == (1, "two", True)
    assert [pair.key for pair in pairs.kv_pair_list.kv_pairs] == ["a", "b"]


def test_package_information() -> None:
    info = info_of(
        package=(
            '@pkginfo(name = "n", version = "3") '
            "@platform_property(multicast_group_table_size = 10)"
        )
    )
    assert (info.pkg_info.name, info.pkg_info.version, info.pkg_info.arch) == ("n", "3", "v1model")
    assert info.pkg_info.platform_properties.multicast_group_table_size == 10
    assert not info.pkg_info.annotations


def test_selectors_and_their_group_sizes() -> None:
    info = info_of(
        '@max_group_size(8) @selector_size_semantics("sum_of_members") @max_member_weight(100)'
        "action_selector(HashAlgorithm.crc32, 64, 14) paths;"
        "action a() {}"
        "table t { key = { m.a: exact; s.ingress_port: selector; }"
        " actions = { a; NoAction; } implementation = paths; }"
        "apply { t.apply(); }"
    )
    [profile] = info.action_profiles
    assert (profile.size, profile.with_selector, profile.max_group_size) == (64, True, 8)
    assert profile.sum_of_members.max_member_weight == 100
    assert list(profile.table_ids) == [info.tables[0].preamble.id]
    assert [field.name for field in info.tables[0].match_fields] == ["m.a"]


@pytest.mark.parametrize(
    ("ingress", "package", "name"),
    [
        ("register<bit<8>>(32w0xffffffff) r; apply { r.write(0, 1); }", "", "I.r"),
        (
            f"table t {{ actions = {{ NoAction; }} size = {1 << 63}; }} apply {{ t.apply(); }}",
            "",
            "I.t",
        ),
        (
            f"@max_group_size({1 << 31}) action_selector(HashAlgorithm.crc32, 64, 14) p;"
            'table t { key = { m.a: exact; m.a: selector @name("x"); } actions = { NoAction; }'
            " implementation = p; } apply { t.apply(); }",
            "",
            "I.p",
        ),
        ("apply {}", f"@platform_property(multicast_group_table_size = {1 << 31})", "main"),
    ],
    ids=["register", "table", "group", "platform"],
)
def test_numbers_that_p4info_has_no_room_for(ingress: str, package: str, name: str) -> None:
    with pytest.raises(P4Error, match=rf"{name}: P4Info cannot express it: .*out of range"):
        info_of(ingress, package=package)


def test_digests_of_named_and_nameless_types() -> None:
    info = info_of(
        "apply { digest<learn_t>(1, {m.a, code_t.two}); digest(1, {m.a}); }",
        declarations=(
            "enum bit<8> code_t { one = 1, two = 2 } struct learn_t { bit<8> a; code_t c; }"
        ),
    )
    assert [digest.preamble.name for digest in info.digests] == ["learn_t", "digest_0"]
    members = info.type_info.structs["learn_t"].members
    assert members[1].type_spec.serializable_enum.name == "code_t"
    enum = info.type_info.serializable_enums["code_t"]
    assert [(m.name, m.value) for m in enum.members] == [("one", b"\1"), ("two", b"\2")]
    assert info.digests[1].type_spec.tuple.members[0].bitstring.bit.bitwidth == 8


def test_hidden_things_are_left_out() -> None:
    info = info_of(
        "@hidden action a() {} action b() {}"
        "@hidden table t { actions = { a; } default_action = a(); }"
        "table u { actions = { a; b; } default_action = b(); }"
        "apply { t.apply(); u.apply(); }"
    )
    assert [table.preamble.name for table in info.tables] == ["I.u"]
    assert [action.preamble.name for action in info.actions] == ["I.b"]


# --- comparing ---------------------------------------------------------------------------------


def test_difference_ignores_what_older_compilers_leave_out() -> None:
    ours = p4info(compile_file(EVERYTHING_P4))
    theirs = p4i.P4Info()
    theirs.CopyFrom(ours)
    for table in theirs.tables:
        table.ClearField("initial_default_action")
        table.ClearField("has_initial_entries")
        table.preamble.alias = "other"
    assert difference(theirs, ours) is None
    theirs.tables[0].match_fields[0].bitwidth += 1
    assert difference(theirs, ours) == (
        "table 'TestIngress.exact_table' (id 0x02b16d5c) differs in the program"
    )
