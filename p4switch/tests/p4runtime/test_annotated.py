"""What a program's own declarations ask of the control plane: sizes, translations, entries."""

from __future__ import annotations

from pathlib import Path

import pytest
from finsy.proto import p4r

from p4switch.device.bundle import make_bundle
from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.p4runtime.p4info import p4info
from tests.support.p4runtime_world import (
    INSERT,
    MODIFY,
    CallError,
    Client,
    World,
    frame,
    refused,
    served,
)

world = pytest.fixture(served)

PROGRAM = """
#include <core.p4>
#include <v1model.p4>
@p4runtime_translation("", 32)
type bit<9> port_t;
header ethernet_t { bit<48> destination; bit<48> source; bit<16> kind; }
struct headers_t { ethernet_t ethernet; }
struct metadata_t { port_t port; }
parser P(packet_in p, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start { p.extract(h.ethernet); m.port = (port_t)s.ingress_port; transition accept; }
}
control N(inout headers_t h, inout metadata_t m) { apply { } }
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    action forward(port_t port) { s.egress_spec = (bit<9>)port; }
    action drop() { mark_to_drop(s); }
    @max_group_size(4)
    action_selector(HashAlgorithm.crc16, 16, 16) paths;
    table ports { key = { m.port: exact @name("port"); } actions = { forward; drop; } }
    table initial {
        key = { h.ethernet.kind: exact @name("kind"); }
        actions = { forward; drop; }
        entries = { const 1: forward((port_t)4); 2: forward((port_t)5); }
    }
    @max_group_size(2) @selector_size_semantics("sum_of_members") @max_member_weight(3)
    action_selector(HashAlgorithm.crc16, 16, 16) counted;
    table count {
        key = { h.ethernet.destination: exact @name("destination");
                h.ethernet.source: selector; }
        actions = { forward; drop; }
        implementation = counted;
    }
    table path {
        key = { h.ethernet.destination: exact @name("destination");
                h.ethernet.source: selector; }
        actions = { forward; drop; }
        implementation = paths;
    }
    table masked {
        key = { h.ethernet.kind & 0x0f: exact @name("low"); }
        actions = { forward; drop; }
    }
    apply { ports.apply(); initial.apply(); path.apply(); count.apply(); masked.apply(); }
}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { } }
control D(packet_out p, in headers_t h) { apply { p.emit(h.ethernet); } }
V1Switch(P(), N(), I(), E(), N(), D()) main;
"""


@pytest.fixture
def client(world: World, tmp_path: Path) -> Client:
    """The primary of a switch that runs the program."""
    source = tmp_path / "annotated.p4"
    source.write_text(PROGRAM)
    config = make_bundle(source)
    info = p4info(compile_program(parse_text(config.decode())))
    primary = world.client()
    primary.info = info
    primary.arbitrate()
    primary.push(info, config)
    return primary


# --- entries in the program --------------------------------------------------------------------


def test_const_ones_among_initial_entries_stay(client: Client) -> None:
    const, free = client.read(client.entry("initial"))
    assert (const.table_entry.is_const, free.table_entry.is_const) == (True, False)
    const.table_entry.is_const = False
    for how in ("modify", "delete"):
        assert refused(client, const, how) == "PERMISSION_DENIED"
    assert refused(client, const) == "ALREADY_EXISTS"


def test_other_initial_entries_are_as_a_controller_s(world: World, client: Client) -> None:
    packet = frame(1, 2, 2)
    assert world.plane.process([(1, packet)]) == [(5, packet)]
    client.modify(client.entry("initial", client.action("forward", port=6), exact={"kind": 2}))
    assert world.plane.process([(1, packet)]) == [(6, packet)]
    client.delete(client.entry("initial", exact={"kind": 2}))
    client.insert(client.entry("initial", client.action("drop"), exact={"kind": 3}))
    assert len(client.read(client.entry("initial"))) == 2


# --- keys with a mask --------------------------------------------------------------------------


def test_a_key_s_mask_is_laid_over_entries_as_in_bmv2(world: World, client: Client) -> None:
    client.insert(client.entry("masked", client.action("forward", port=7), exact={"low": 0x31}))
    packet = frame(1, 2, 0xAB1)
    assert world.plane.process([(3, packet)]) == [(7, packet)]
    same = client.entry("masked", client.action("forward", port=8), exact={"low": 0x51})
    assert refused(client, same) == "ALREADY_EXISTS"
    (installed,) = client.read(client.entry("masked"))
    assert client.read(client.entry("masked", exact={"low": 0x61})) == [installed]
    with pytest.raises(CallError):
        client.write((MODIFY, same), (INSERT, same), atomicity="ROLLBACK_ON_ERROR")
    assert client.read(client.entry("masked")) == [installed]
    client.delete(client.entry("masked", exact={"low": 0xF1}))
    assert client.read(client.entry("masked")) == []


# --- translated types --------------------------------------------------------------------------


def test_numbers_of_a_controller_s_width_are_the_switch_s(world: World, client: Client) -> None:
    entry = client.entry("ports", client.action("forward", port=7), exact={"port": 3})
    entry.table_entry.match[0].exact.value = b"\0\0\0\3"
    client.insert(entry)
    packet = frame(1, 2, 9)
    assert world.plane.process([(3, packet)]) == [(7, packet)]
    entry.table_entry.match[0].exact.value = b"\3"
    assert client.read(client.entry("ports")) == [entry]
    beyond = client.entry("ports", client.action("forward", port=1 << 20), exact={"port": 4})
    assert refused(client, beyond) == "INVALID_ARGUMENT"


# --- sizes of a selector's groups --------------------------------------------------------------


def group(client: Client, number: int, size: int) -> p4r.Entity:
    message = p4r.ActionProfileGroup(
        action_profile_id=client.id("paths"), group_id=number, max_size=size
    )
    return p4r.Entity(action_profile_group=message)


def test_groups_have_at_most_the_size_the_program_gives(client: Client) -> None:
    assert refused(client, group(client, 1, 0)) == "INVALID_ARGUMENT"
    assert refused(client, group(client, 1, 5)) == "INVALID_ARGUMENT"
    client.insert(group(client, 1, 4))


@pytest.mark.parametrize(
    ("table", "weights", "taken"),
    [
        ("path", (2, 2), True),
        ("path", (1, 4), False),
        ("count", (3, 3), True),
        ("count", (1, 1, 1), False),
        ("count", (4,), False),
    ],
)
def test_action_sets_have_at_most_that_size(
    client: Client, table: str, weights: tuple[int, ...], taken: bool
) -> None:
    entry = client.entry(table, exact={"destination": 1})
    actions = entry.table_entry.action.action_profile_action_set
    for weight in weights:
        action = actions.action_profile_actions.add(weight=weight)
        action.action.CopyFrom(client.action("forward", port=weight))
    if taken:
        client.insert(entry)
        assert client.read(client.entry(table)) == [entry]
    else:
        assert refused(client, entry) == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("weights", "code"),
    [((3, 3), "OK"), ((4,), "INVALID_ARGUMENT"), ((1, 1, 1), "RESOURCE_EXHAUSTED")],
)
def test_groups_may_be_counted_by_members(
    client: Client, weights: tuple[int, ...], code: str
) -> None:
    message = group(client, 1, 2)
    message.action_profile_group.action_profile_id = client.id("counted")
    for number, weight in enumerate(weights, start=1):
        member = p4r.ActionProfileMember(action_profile_id=client.id("counted"), member_id=number)
        member.action.CopyFrom(client.action("forward", port=number))
        client.insert(p4r.Entity(action_profile_member=member))
        message.action_profile_group.members.add(member_id=number, weight=weight)
    if code == "OK":
        client.insert(message)
    else:
        assert refused(client, message) == code
