"""Whole files: what is one, what goes with it, and how commands and clients give it."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import pytest
from finsy.proto import p4i, p4r
from google.protobuf import text_format
from typer.testing import CliRunner

from p4switch import ir
from p4switch.bmv2_json.reader import bundle, read
from p4switch.cli.main import app
from p4switch.device.loading import checked_program
from p4switch.p4runtime.names import hidden
from p4switch.p4runtime.p4info import p4info, p4info_text
from p4switch.p4runtime.p4info_match import difference
from p4switch.position import P4Error
from tests.bmv2_json.documents import Part, action, assign, document, field, hexstr, program, table
from tests.support.p4runtime_world import CallError, World, served

world = pytest.fixture(served)

SET = action(
    0, "Ing.set", assign("h", "r", {"type": "runtime_data", "value": 0}), data={"value": 8}
)
NOTHING = action(1, "NoAction")
HIDDEN = action(2, "act", assign("h", "b", hexstr(7)))


def example() -> Part:
    """Return a program with a table of the source and one that p4c made."""
    key = {"match_type": "ternary", "name": "h.a", "target": ["h", "a"], "mask": None}
    shown = {
        **table(0, "Ing.t", [SET, NOTHING], NOTHING, "tbl_act"),
        "key": [key],
        "match_type": "ternary",
    }
    own = table(1, "tbl_act", [HIDDEN], HIDDEN, None)
    made = document(
        {"a": 8, "b": 8, "r": 8},
        [SET, NOTHING, HIDDEN],
        tables=[shown, own],
        init_table="Ing.t",
    )
    return deepcopy(made)


def changed(**more: object) -> p4i.P4Info:
    """Return the P4Info of the example with other ids and an optional key."""
    info = p4info(program(example()))
    [made] = info.tables
    made.preamble.id = 0x02000005
    made.match_fields[0].match_type = p4i.MatchField.OPTIONAL
    for name, value in more.items():
        setattr(made, name, value)
    return info


def invoke(*arguments: str | Path) -> tuple[int, str]:
    """Run a command in this process."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with the example."""
    path = tmp_path / "prog.json"
    path.write_text(json.dumps(example()))
    return path


@pytest.fixture
def info_file(tmp_path: Path) -> Path:
    """A file with the P4Info that goes with it."""
    path = tmp_path / "prog.p4info.txtpb"
    path.write_text(text_format.MessageToString(changed()))
    return path


def test_p4info_is_made_of_the_file() -> None:
    """Tables and actions of the source are shown, those that p4c made are not."""
    info = p4info(program(example()))
    [shown] = info.tables
    assert shown.preamble.name == "Ing.t"
    assert [(f.id, f.name, f.bitwidth) for f in shown.match_fields] == [(1, "h.a", 8)]
    assert {a.preamble.name for a in info.actions} == {"Ing.set", "NoAction"}


def test_a_given_p4info_is_the_programs() -> None:
    """Its ids and match kinds hold, in what is served and in what is made of the program."""
    given = changed()
    made = program(example(), text_format.MessageToString(given))
    assert p4info(made) == given
    made.p4info = ""
    assert difference(given, p4info(made)) is None
    assert [key.match_kind for key in made.tables[0].keys] == ["optional"]


def test_a_p4info_of_another_program() -> None:
    """Its tables have the actions that they have here."""
    given = changed()
    given.actions[0].preamble.name = "Ing.other"
    expected = r"of another program: its table 'Ing\.t' has no action 'Ing\.set'"
    with pytest.raises(P4Error, match=expected):
        program(example(), text_format.MessageToString(given))
    given = changed()
    given.tables[0].preamble.name = "Ing.u"
    with pytest.raises(P4Error, match=r"of another program: its table 'Ing\.u' is missing"):
        program(example(), text_format.MessageToString(given))


def test_a_p4info_may_name_what_p4c_has_removed() -> None:
    """The compiler writes it before it finds that a table is never applied."""
    given = changed()
    gone = given.tables.add()
    gone.CopyFrom(given.tables[0])
    gone.preamble.id, gone.preamble.name = 0x02000006, "Ing.gone"
    given.actions.add().preamble.name = "Ing.never"
    made = program(example(), text_format.MessageToString(given))
    assert p4info(made) == given
    assert [table.name for table in made.tables if not hidden(table)] == ["Ing.t"]


def test_packet_in_headers_come_with_the_p4info() -> None:
    """The file does not say which headers are those of packet-ins."""
    given = changed()
    header = given.controller_packet_metadata.add()
    header.preamble.id, header.preamble.name = 0x04000001, "packet_in"
    header.metadata.add(id=1, name="port", bitwidth=9)
    header.metadata.add(id=2, name="rest", bitwidth=7)
    made = program(example(), text_format.MessageToString(given))
    made.p4info = ""
    assert difference(given, p4info(made)) is None


def test_a_mask_is_a_slice_where_p4info_says_so() -> None:
    """A key of 4 bits that masks a field of 8 is a slice of it."""
    content = example()
    content["pipelines"][0]["tables"][0]["key"][0]["mask"] = "0xf0"
    given = changed()
    given.tables[0].match_fields[0].bitwidth = 4
    [key] = program(content, text_format.MessageToString(given)).tables[0].keys
    assert isinstance(key.expression, ir.Slice)
    assert (key.expression.high, key.expression.low) == (7, 4)


def test_places_are_those_of_the_p4_source() -> None:
    """Errors and traces name the line of P4 that the file knows."""
    content = example()
    place = {"filename": "prog.p4", "line": 12, "column": 4, "source_fragment": "h.b = 7"}
    content["actions"][2]["primitives"][0]["source_info"] = place
    assert str(program(content).tables[1].actions[0].action.body[0].position) == "prog.p4:12:5"
    content["actions"][2]["primitives"][0]["op"] = "fly"
    with pytest.raises(P4Error, match=r"^prog\.p4:12:5: unsupported: BMv2 JSON: primitive 'fly'"):
        program(content)


def test_metadata_of_p4_14() -> None:
    """intrinsic_metadata and what has an alias is the switch's own metadata."""
    content = example()
    content["header_types"] += [
        {"name": "intrinsic_t", "id": 3, "fields": [["mcast_grp", 4], ["egress_rid", 4]]},
    ]
    content["headers"] += [
        {"name": "intrinsic_metadata", "id": 3, "header_type": "intrinsic_t", "metadata": True}
    ]
    content["field_aliases"] = [["standard_metadata.egress_spec", ["meta", "m"]]]
    group = assign("intrinsic_metadata", "mcast_grp", field("meta", "m"))
    content["actions"][2]["primitives"] = [group]
    from tests.support.ir_text import dump

    text = dump(program(content))
    assert "standard_metadata.mcast_grp = (bit<4>)standard_metadata.egress_spec" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"__meta__": {"version": [3, 0]}}, "version 3: expected 2"),
        ({"headers": []}, "no header 'standard_metadata': only programs for v1model"),
        ({"extern_instances": [{"type": "mine"}]}, "an extern of type 'mine'"),
        ({"parsers": []}, "0 parsers: expected one"),
        ({"deparsers": [{"order": ["zz"]}]}, "there is no header 'zz'"),
        ({"actions": [{"name": "x"}]}, "not as expected: KeyError: 'id'"),
        ({"errors": [["Mine", 0]]}, "an error other than NoError that is 0"),
    ],
)
def test_files_that_are_not_as_they_must_be(change: Part, message: str) -> None:
    """The error says what is wrong."""
    with pytest.raises(P4Error, match=message):
        program({**example(), **change})


def test_saturating_fields() -> None:
    """P4_14's fields that saturate are refused."""
    content = example()
    content["header_types"][1]["fields"][0].append(True)
    with pytest.raises(P4Error, match="the saturating field 'a'"):
        program(content)


@pytest.mark.parametrize("text", ["{", "{}", "[1]", '{"header_types": []}'])
def test_other_json(text: str) -> None:
    """Other JSON is an error, which names the file."""
    with pytest.raises(P4Error, match=r"^x\.json:1:1: error: BMv2 JSON: "):
        read(text.encode(), "x.json")


def test_commands_take_files(file: Path, info_file: Path, tmp_path: Path) -> None:
    """Compile writes a P4Info, and a bundle with the one that it was given; STF and explain run."""
    out, binary = tmp_path / "out.txtpb", tmp_path / "prog.p4bin"
    assert invoke("compile", file, "--p4runtime-files", out) == (0, "")
    assert out.read_text() == p4info_text(program(example()))
    assert invoke("compile", file, "--p4info", info_file, "-o", binary) == (0, "")
    assert p4info(checked_program(binary.read_bytes())) == changed()
    script = tmp_path / "prog.stf"
    script.write_text(
        "add Ing.t 1 h.a:0x1* Ing.set(value:9)\npacket 0 100000\nexpect 0 10 07 09 $\n"
    )
    for executor in ("interpreter", "native"):
        assert invoke("stf", file, script, "--executor", executor) == (0, f"{script}: passed\n")
    code, text = invoke("explain", file, "--packet", "100000")
    assert (code, "Ing.t" in text) == (0, True)


def test_initial_entries_are_const_unless_the_p4info_says_otherwise(
    info_file: Path, tmp_path: Path
) -> None:
    """STF and explain take a P4Info, as run does."""
    content = example()
    match = {"match_type": "ternary", "key": "0x20", "mask": "0xff"}
    choice = {"action_id": 0, "action_data": ["0x05"]}
    content["pipelines"][0]["tables"][0]["entries"] = [
        {"match_key": [match], "action_entry": choice, "priority": 1}
    ]
    file, script = tmp_path / "entries.json", tmp_path / "prog.stf"
    file.write_text(json.dumps(content))
    script.write_text(
        "add Ing.t 1 h.a:0x10 Ing.set(value:9)\npacket 0 100000\nexpect 0 10 07 09 $\n"
    )
    explained = ("explain", file, "--packet", "100000", "--entries", script)
    for command in (("stf", file, script), explained):
        code, text = invoke(*command)
        assert (code, "has const entries" in text) == (1, True)
        code, text = invoke(*command, "--p4info", info_file)
        assert code == 0, text


@pytest.mark.parametrize("command", [("compile",), ("stf", "none.stf"), ("explain", "--packet=00")])
def test_p4info_belongs_to_json(command: tuple[str, ...], info_file: Path, tmp_path: Path) -> None:
    """P4 source needs none, and the error says so."""
    source = tmp_path / "prog.p4"
    source.write_text("// nothing\n")
    code, text = invoke(command[0], source, *command[1:], "--p4info", info_file)
    assert code == 1
    assert "is not BMv2 JSON: its P4Info is derived from it" in text


def test_a_client_pushes_what_p4c_wrote(world: World) -> None:
    """P4c's JSON and P4Info are a pipeline configuration, and are read back as they were."""
    client = world.client()
    client.arbitrate()
    config = json.dumps(example()).encode()
    client.push(changed(), config)
    assert client.get_pipeline().p4_device_config == config
    entry = p4r.Entity()
    entry.table_entry.table_id = 0x02000005
    entry.table_entry.priority = 1
    match = entry.table_entry.match.add(field_id=1)
    match.optional.value = b"\x05"
    chosen = entry.table_entry.action.action
    chosen.action_id = next(a.preamble.id for a in changed().actions if a.params)
    chosen.params.add(param_id=1, value=b"\x09")
    client.insert(entry)
    assert world.plane.process([(0, bytes([5, 0, 0]))]) == [(0, bytes([5, 7, 9]))]


def test_a_client_pushes_another_programs_p4info(world: World) -> None:
    """That is an invalid argument."""
    client = world.client()
    client.arbitrate()
    given = changed()
    given.tables[0].preamble.name = "Ing.other"
    with pytest.raises(CallError, match=r"INVALID_ARGUMENT.*its table 'Ing\.other'"):
        client.push(given, json.dumps(example()).encode())


def test_a_bundle_is_read_as_the_file() -> None:
    """The output of `bundle` can be bundled again, and keeps its name and P4Info."""
    text = text_format.MessageToString(changed())
    once = bundle(json.dumps(example()).encode(), "prog.json", text)
    assert bundle(once, "elsewhere.json") == once
    assert p4info(read(once)) == changed()
