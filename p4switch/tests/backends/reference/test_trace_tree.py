"""Trees of traces: every outcome of selectors, clones, multicast, resubmit and recirculate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from p4switch.cli.main import app

TEXT = """#include <core.p4>
#include <v1model.p4>
header h_t { bit<8> kind; bit<8> hops; }
struct headers_t { h_t h; }
struct metadata_t { }
parser P(packet_in p, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start { p.extract(h.h); transition accept; }
}
control N(inout headers_t h, inout metadata_t m) { apply { } }
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    register<bit<8>>(1) seen;
    action_selector(HashAlgorithm.crc16, 32w64, 32w16) hash;
    action forward(bit<9> port) { s.egress_spec = port; }
    action twice() { resubmit_preserving_field_list(0); }
    action drop() { mark_to_drop(s); }
    table hops {
        key = { h.h.kind : exact; h.h.hops : selector; }
        actions = { forward; twice; drop; }
        implementation = hash;
        default_action = drop();
    }
    apply {
        bit<8> count;
        seen.read(count, 0);
        seen.write(0, count + 1);
        h.h.hops = count + 1;
        if (h.h.kind == 3) { s.mcast_grp = 9; }
        else if (h.h.kind == 4 && s.instance_type == 6) { s.egress_spec = 8; }
        else if (h.h.kind != 2 || s.instance_type == 0) { hops.apply(); }
        if (h.h.kind == 5) { clone(CloneType.I2E, 7); }
    }
}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    action_selector(HashAlgorithm.crc16, 32w64, 32w16) last;
    action mark(bit<8> v) { h.h.kind = v; }
    table marks {
        key = { s.egress_port : exact; h.h.hops : selector; }
        actions = { mark; NoAction; }
        implementation = last;
        default_action = NoAction();
    }
    apply {
        marks.apply();
        if (h.h.kind == 2 && h.h.hops == 1) { recirculate_preserving_field_list(0); }
    }
}
control D(packet_out p, in headers_t h) { apply { p.emit(h); } }
V1Switch(P(), N(), I(), E(), N(), D()) main;
"""

ENTRIES = """
member hash 1 forward(port:1)
member hash 2 forward(port:2)
member hash 3 drop()
member hash 4 twice()
group hash 1 1 2 1
group hash 2 1 2 3 4
add hops h.kind:1 group(1)
add hops h.kind:2 member(1)
add hops h.kind:4 group(2)
add hops h.kind:5 group(1)
member last 1 mark(v:0x51)
member last 2 mark(v:0x52)
group last 1 1 2
add marks s.egress_port:5 group(1)
add marks s.egress_port:6 group(1)
mc_mgrp_create 9
mc_node_create 1 5 6
mc_node_associate 9 0
mirroring_add 7 3
"""


def explain(tmp_path: Path, packet: str, *arguments: str) -> str:
    program, entries = tmp_path / "tree.p4", tmp_path / "entries.stf"
    program.write_text(TEXT)
    entries.write_text(ENTRIES)
    command = ["explain", str(program), "--packet", packet, "--entries", str(entries), "--tree"]
    result = CliRunner().invoke(app, [*command, *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def tree(tmp_path: Path, packet: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(explain(tmp_path, packet, "--format", "json"))
    return found


def shape(branch: dict[str, Any]) -> Any:
    """A branch without its events: what is sent, and the branches by what tells them apart."""
    sent = [(each["port"], each["frame"]) for each in branch["out"]]
    below = {
        (each["reason"], each.get("member", each.get("port", each.get("session")))): shape(each)
        for each in branch["branches"]
    }
    return (sent, below) if below else sent


def test_a_selector_has_a_branch_for_each_member(tmp_path: Path) -> None:
    found = tree(tmp_path, "0100")
    assert shape(found) == (
        [],
        {("selector", 1): [(1, "0101")], ("selector", 2): [(2, "0101")]},
    )
    weights = {each["member"]: each["weight"] for each in found["branches"]}
    assert weights == {1: 2, 2: 1}
    assert [each["hashed"] for each in found["branches"]] == [True, False]
    # State is as before the packet in each alternative: the register counts to 1.
    assert [each["kind"] for each in found["events"]].count("register_write") == 1


def test_a_drop_and_a_resubmission_are_outcomes(tmp_path: Path) -> None:
    assert shape(tree(tmp_path, "0400")) == (
        [],
        {
            ("selector", 1): [(1, "0401")],
            ("selector", 2): [(2, "0401")],
            ("selector", 3): [],
            ("selector", 4): ([], {("resubmit", None): [(8, "0402")]}),
        },
    )


def test_copies_have_alternatives_of_their_own(tmp_path: Path) -> None:
    both = {("selector", 1), ("selector", 2)}
    _, copies = shape(tree(tmp_path, "0300"))
    assert set(copies) == {("multicast", 5), ("multicast", 6)}
    for port in (5, 6):
        _, members = copies["multicast", port]
        assert set(members) == both
        assert members["selector", 1] == [(port, "5101")]
        assert members["selector", 2] == [(port, "5201")]


def test_a_clone_goes_beside_the_packet(tmp_path: Path) -> None:
    _, members = shape(tree(tmp_path, "0500"))
    for member in (1, 2):
        assert members["selector", member] == (
            [],
            {("clone", 7): [(3, "0500")], ("unicast", member): [(member, "0501")]},
        )


def test_a_recirculated_packet_goes_on(tmp_path: Path) -> None:
    assert shape(tree(tmp_path, "0200")) == ([], {("recirculate", None): [(0, "0202")]})


def test_text_indents_branches(tmp_path: Path) -> None:
    lines = explain(tmp_path, "0100").splitlines()
    assert lines[0] == "packet 1: port 0, 2 bytes 0100"
    titles = [line for line in lines if line.startswith("  selector (")]
    assert titles == [
        "  selector (table=I.hops, group=1, member=2, weight=1, hashed=true):",
        "  selector (table=I.hops, group=1, member=1, weight=2, hashed=false):",
    ]
    assert lines[-1] == "    sent: port 1, 2 bytes 0101"
    assert "nothing sent" in explain(tmp_path, "0400")
    # Without copies and alternatives the tree is the path.
    assert "selector" not in explain(tmp_path, "7700")


def test_the_picture_has_a_column_for_each_outcome(tmp_path: Path) -> None:
    picture = tmp_path / "tree.svg"
    explain(tmp_path, "0300", "--picture", str(picture))
    root = ElementTree.parse(picture).getroot()
    texts = [each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in texts if text.startswith("out at")] == [
        "out at port 5",
        "out at port 5",
        "out at port 6",
        "out at port 6",
    ]
    boxes = list(root.iter("{http://www.w3.org/2000/svg}rect"))
    places = {int(each.get("x", "")) for each in boxes}
    assert len(places) == 7  # Four outcomes, two copies centred over them, and the packet.
    ends = [int(each.get("y", "")) + int(each.get("height", "")) for each in boxes]
    assert max(ends) < int(root.get("height", ""))


@pytest.mark.parametrize("line", ["member hash 1 nothing()", "group hash 1 9", "member none 1 x()"])
def test_stf_refuses_members_and_groups_that_do_not_exist(tmp_path: Path, line: str) -> None:
    program, entries = tmp_path / "tree.p4", tmp_path / "entries.stf"
    program.write_text(TEXT)
    entries.write_text(line)
    command = ["explain", str(program), "--packet", "0000", "--entries", str(entries)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    assert result.output.startswith("entries.stf:1: ")
