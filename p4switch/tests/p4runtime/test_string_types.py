"""Types that the controller knows as strings, and restrictions of entries and actions."""

from __future__ import annotations

from pathlib import Path

import pytest
from finsy.proto import p4r

from p4switch.device.bundle import make_bundle
from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.p4runtime.p4info import p4info
from tests.support.machine import until
from tests.support.p4runtime_world import CallError, Client, World, frame, refused, served

world = pytest.fixture(served)

PROGRAM = """
#include <core.p4>
#include <v1model.p4>
@p4runtime_translation("", string)
@p4runtime_translation_mappings({
    {"", 0},
    {"customer, 5", 5},
})
type bit<4> vrf_t;
@p4runtime_translation("", string)
type bit<9> port_t;
header ethernet_t { bit<48> destination; bit<48> source; bit<16> kind; }
@controller_header("packet_in")
header packet_in_t { vrf_t vrf; port_t port; bit<3> padding; }
@controller_header("packet_out")
header packet_out_t { port_t port; bit<7> padding; }
struct headers_t { packet_in_t packet_in; packet_out_t packet_out; ethernet_t ethernet; }
struct metadata_t { vrf_t vrf; port_t port; }
parser P(packet_in p, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start { transition select(s.ingress_port) { 510: packet_out; default: ethernet; } }
    state packet_out { p.extract(h.packet_out); transition ethernet; }
    state ethernet {
        p.extract(h.ethernet);
        m.port = (port_t)s.ingress_port;
        transition accept;
    }
}
control N(inout headers_t h, inout metadata_t m) { apply { } }
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    @action_restriction("vrf != 0")
    action set_vrf(vrf_t vrf) { m.vrf = vrf; }
    action forward(port_t port) { s.egress_spec = (bit<9>)port; }
    action punt() {
        h.packet_in = { m.vrf, m.port, 0 };
        s.egress_spec = 510;
    }
    table vrfs {
        key = { h.ethernet.source: exact @name("source"); }
        actions = { set_vrf; NoAction; }
        default_action = NoAction;
    }
    @entry_restriction(
        "// The default has no routes.
         vrf != 0;"
        "port::mask != 0 -> ::priority > 10"
    )
    table routes {
        key = { m.vrf: exact @name("vrf"); m.port: optional @name("port"); }
        actions = { forward; punt; }
        default_action = punt();
    }
    table refused { key = { m.vrf: ternary @name("vrf"); } actions = { punt; NoAction; } }
    apply {
        if (h.packet_out.isValid()) {
            s.egress_spec = (bit<9>)h.packet_out.port;
            h.packet_out.setInvalid();
        } else {
            vrfs.apply();
            routes.apply();
            refused.apply();
        }
    }
}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { } }
control D(packet_out p, in headers_t h) {
    apply { p.emit(h.packet_in); p.emit(h.ethernet); }
}
V1Switch(P(), N(), I(), E(), N(), D()) main;
"""
PACKET = frame(1, 2, 3)


@pytest.fixture
def client(world: World, tmp_path: Path) -> Client:
    """The primary of a switch that runs the program."""
    return pushed(world, tmp_path, PROGRAM)


def pushed(world: World, tmp_path: Path, text: str) -> Client:
    source = tmp_path / "strings.p4"
    source.write_text(text)
    config = make_bundle(source)
    primary = world.client()
    primary.info = p4info(compile_program(parse_text(config.decode())))
    primary.arbitrate()
    primary.push(primary.info, config)
    return primary


def set_vrf(client: Client, source: int, vrf: bytes) -> p4r.Entity:
    action = client.action("set_vrf", vrf=0)
    action.params[0].value = vrf
    return client.entry("vrfs", action, exact={"source": source})


def route(
    client: Client, vrf: bytes, to: bytes, port: bytes | None = None, priority: int = 20
) -> p4r.Entity:
    action = client.action("forward", port=0)
    action.params[0].value = to
    entity = client.entry("routes", action, exact={"vrf": 0}, priority=priority)
    entity.table_entry.match[0].exact.value = vrf
    if port is not None:
        entity.table_entry.match.add(field_id=2).optional.value = port
    return entity


def message_of(client: Client, entity: p4r.Entity) -> str:
    with pytest.raises(CallError) as caught:
        client.insert(entity)
    (part,) = caught.value.parts
    return part.message


def test_entries_read_back_with_their_strings(world: World, client: Client) -> None:
    entries = [set_vrf(client, 2, b"blue"), route(client, b"blue", b"7", b"Ethernet0")]
    client.insert(*entries)
    assert client.read(client.entry("vrfs"), client.entry("routes")) == entries
    # "Ethernet0" is the first name: port 1.
    assert world.plane.process([(1, PACKET)]) == [(7, PACKET)]
    assert world.plane.process([(2, PACKET)]) == []
    client.delete(entries[1])
    assert client.read(client.entry("routes")) == []


def test_decimal_numbers_stand_for_themselves(world: World, client: Client) -> None:
    client.insert(set_vrf(client, 2, b"9"), route(client, b"9", b"100", b"3"))
    assert world.plane.process([(3, PACKET), (4, PACKET)]) == [(100, PACKET)]


def test_packets_to_and_from_the_controller(world: World, client: Client) -> None:
    client.insert(set_vrf(client, 2, b"red"))
    world.plane.process([(44, PACKET)])
    received = client.receive("packet")
    assert [m.value for m in received.metadata[:2]] == [b"red", b"44"]
    sent = p4r.PacketOut(payload=PACKET)
    sent.metadata.add(metadata_id=1, value=b"45")
    sent.metadata.add(metadata_id=2, value=b"\0")
    client.send(packet=sent)
    until(lambda: (45, PACKET) in world.plane.sent, "the packet-out")


def test_numbers_that_the_program_gives(world: World, client: Client) -> None:
    client.insert(route(client, b"customer, 5", b"7"), set_vrf(client, 2, b"customer, 5"))
    assert world.plane.process([(1, PACKET)]) == [(7, PACKET)]
    world.plane.process([(1, frame(1, 9, 3))])
    received = client.receive("packet")
    assert received.metadata[0].value == b""


def test_strings_without_a_free_number(client: Client) -> None:
    for number in range(14):
        client.insert(set_vrf(client, number, b"vrf-%d" % number))
    assert refused(client, set_vrf(client, 14, b"vrf-14")) == "RESOURCE_EXHAUSTED"
    client.insert(set_vrf(client, 14, b"customer, 5"), set_vrf(client, 15, b"vrf-0"))


def test_strings_have_no_masks(client: Client) -> None:
    entry = client.entry("refused", client.action("punt"), ternary={"vrf": (1, 15)}, priority=1)
    assert refused(client, entry) == "INVALID_ARGUMENT"


def test_entries_that_their_table_does_not_allow(client: Client) -> None:
    assert message_of(client, route(client, b"", b"1")) == (
        "table 'I.routes': its @entry_restriction demands 'vrf != 0', but vrf is 0x0"
    )
    assert message_of(client, route(client, b"blue", b"1", b"4", priority=10)) == (
        "table 'I.routes': its @entry_restriction demands 'port::mask != 0 -> ::priority > 10', "
        "but port is (0x4, 0x1ff), ::priority is 10"
    )
    entry = route(client, b"blue", b"1", b"4")
    client.insert(entry)
    assert client.read(client.entry("routes")) == [entry]
    client.delete(entry)


def test_actions_that_are_not_allowed(client: Client) -> None:
    entry = set_vrf(client, 1, b"blue")
    client.insert(entry)
    entry.table_entry.action.action.params[0].value = b""
    assert refused(client, entry, "modify") == "INVALID_ARGUMENT"
    assert message_of(client, entry) == (
        "action 'I.set_vrf': its @action_restriction demands 'vrf != 0', but vrf is 0"
    )


def test_a_restriction_that_is_none_restricts_nothing(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pushed(world, tmp_path, PROGRAM.replace("vrf != 0;", "vfr != 0;"))
    assert "@entry_restriction of 'I.routes' is not checked: line 2" in caplog.text
