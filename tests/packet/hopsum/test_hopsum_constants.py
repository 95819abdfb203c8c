"""The constants of hopsum.p4 are those of protocol/."""

from __future__ import annotations

import re
import shutil
from enum import IntEnum

import pytest

from hopsum.experiment.p4c import compile_by_p4c
from hopsum.protocol import wire
from hopsum.protocol.outcomes import Outcome
from p4switch.backends.native.generate import generate
from p4switch.frontend.program import compile_file
from p4switch.ir import Bits, Header, Program
from p4switch.position import P4Error
from tests.packet.hopsum.switches import Build, built
from tests.support.paths import HOPSUM_P4

INCLUDE = HOPSUM_P4.parent / "include"


def constants() -> dict[str, int]:
    """Every `const` and number `#define` of the sources."""
    found: dict[str, int] = {}
    for path in INCLUDE.glob("*.p4"):
        text = path.read_text(encoding="utf-8")
        for name, value in re.findall(r"^const [\w<> ]+?(\w+) = (0x[0-9A-Fa-f]+|\d+);", text, re.M):
            found[name] = int(value, 0)
        for name, value in re.findall(r"^#define (\w+) (\d+)$", text, re.M):
            found[name] = int(value)
    return found


def enumeration(name: str) -> dict[str, int]:
    """The members of an enum of types.p4."""
    body = re.search(
        rf"enum bit<\d+> {name} {{(.*?)}}", (INCLUDE / "types.p4").read_text(), re.DOTALL
    )
    assert body
    return {key: int(value) for key, value in re.findall(r"(\w+) = (\d+)", body[1])}


def test_outcomes() -> None:
    prefix = "OUTCOME_"
    cells = {n.removeprefix(prefix): v for n, v in constants().items() if n.startswith(prefix)}
    assert cells == {outcome.name: outcome.value for outcome in Outcome}


def test_the_counter_has_a_cell_an_outcome() -> None:
    counter = next(e for e in built(Build())[0].externs if e.name == "outcomes")
    assert counter.arguments[0] == len(Outcome)


@pytest.mark.parametrize(
    "name",
    [
        "ETHERTYPE_IPV4",
        "UDP_PROTOCOL",
        "UDP_PORT",
        "VERSION",
        "ETHERNET_BYTES",
        "IPV4_BYTES",
        "UDP_BYTES",
        "HEADER_BYTES",
        "HOP_BYTES",
        "LANE_BYTES",
        "MAX_PORT",
        "ADMISSION_SIZE",
    ],
)
def test_numbers(name: str) -> None:
    assert constants()[name] == getattr(wire, name)


def test_addresses() -> None:
    group = constants()["GROUP_MAC"], constants()["GROUP_ADDR"]
    assert group == tuple(
        int.from_bytes(part, "big") for part in (wire.REPLICATED_MAC, wire.REPLICATED_IP)
    )


def test_defaults() -> None:
    assert constants()["LANES"] == wire.LANES_DEFAULT
    assert constants()["MAX_HOPS"] == wire.HOPS_DEFAULT


@pytest.mark.parametrize(
    ("name", "members"),
    [("kind_t", wire.Kind), ("reduction_t", wire.Reduction), ("width_t", wire.Width)],
)
def test_codes(name: str, members: type[IntEnum]) -> None:
    assert enumeration(name) == {member.name: member.value for member in members}


def header_bytes(program: Program, name: str) -> int:
    header = program.types[name]
    assert isinstance(header, Header)
    return sum(field.type.width for field in header.fields if isinstance(field.type, Bits)) // 8


EVERY_BUILD = [Build(lanes, per_lane) for per_lane in (False, True) for lanes in range(32, 353, 32)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [
        pytest.param(each, marks=pytest.mark.long if each.per_lane and each.lanes > 96 else ())
        for each in EVERY_BUILD
    ],
    ids=str,
)
def test_headers_have_the_lengths_of_the_wire(build: Build) -> None:
    """And every number of lanes can be translated to C, in both forms."""
    program = compile_file(HOPSUM_P4, defines=build.defines)
    generate(program)
    lengths = {
        "ethernet_t": wire.ETHERNET_BYTES,
        "ipv4_t": wire.IPV4_BYTES,
        "udp_t": wire.UDP_BYTES,
        "hopsum_t": wire.HEADER_BYTES,
        "hop_t": wire.HOP_BYTES,
        "lanes_t": wire.LANE_BYTES * build.lanes,
        "packet_out_t": constants()["PACKET_OUT_BYTES"],
    }
    assert {name: header_bytes(program, name) for name in lengths} == lengths


@pytest.mark.parametrize("defines", ["-DLANES=48", "-DLANES=384", "-DLANES=0", "-DSLOTS=1000"])
def test_impossible_choices_are_refused(defines: str) -> None:
    name, _, value = defines.removeprefix("-D").partition("=")
    with pytest.raises(P4Error, match=f"{name}: expected"):
        compile_file(HOPSUM_P4, defines={name: value})


@pytest.mark.parametrize("lanes", [32, 128, 352])
def test_as_many_hops_as_lanes_leave_room_for(lanes: int) -> None:
    most = wire.most_hops(lanes)
    compile_file(HOPSUM_P4, defines={"LANES": str(lanes), "MAX_HOPS": str(most)})
    for hops in (1, most + 1):
        with pytest.raises(P4Error, match="MAX_HOPS: expected"):
            compile_file(HOPSUM_P4, defines={"LANES": str(lanes), "MAX_HOPS": str(hops)})


def test_no_statement_that_p4c_compiles_wrongly() -> None:
    """p4c 1.2.5.16 turns a `for` in an apply block into one pass, silently."""
    for path in (HOPSUM_P4, *INCLUDE.glob("*.p4")):
        code = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.DOTALL)
        assert not re.search(r"\bfor\s*\(", code), path
        assert not re.search(r"control (Ingress|Egress)\b", code), path


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("p4c") is None, reason="p4c is not on PATH")
@pytest.mark.parametrize("per_lane", [False, True])
def test_p4c_compiles_it_without_a_warning(per_lane: bool) -> None:
    assert compile_by_p4c(HOPSUM_P4, Build(32, per_lane).defines).messages == ""


def test_the_contract_of_the_control_plane_has_ids() -> None:
    """Tables that a controller writes, their keys and their actions."""
    text = "\n".join(file.read_text() for file in sorted(INCLUDE.glob("*.p4")))
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    annotations = r"((?:@\w+(?:\([^)]*\))?\s+)*)"
    written = 0
    for marks, name, body in re.findall(
        annotations + r"table (\w+) \{(.*?)\n    \}", text, re.DOTALL
    ):
        if "const entries" in body:
            continue
        written += 1
        assert "@id(" in marks, f"table {name}"
        [keys] = re.findall(r"key = \{(.*?)\}", body, re.DOTALL)
        for key in filter(None, map(str.strip, keys.split(";"))):
            assert "@id(" in key, f"table {name}, key {key}"
        [actions] = re.findall(r"actions = \{(.*?)\}", body, re.DOTALL)
        for action in re.findall(r"(\w+);", actions):
            declared = re.findall(annotations + rf"action {action}\(", text)
            assert action == "NoAction" or any("@id(" in each for each in declared), (
                f"table {name}, action {action}"
            )
    assert written >= 5
