"""P4Runtime with a PSA program: P4Info, its objects, and the CPU's port."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from finsy.proto import p4d, p4i, p4r

from p4switch.device.bundle import make_bundle
from p4switch.frontend.program import compile_file
from p4switch.p4runtime.p4info import p4info
from tests.support.p4runtime_world import (
    CPU_PORT,
    Client,
    World,
    clone_session,
    encoded,
    multicast,
    refused,
    served,
)
from tests.support.paths import PROGRAMS

world = pytest.fixture(served)
CPU = 0xFFFFFFFD


def push(world: World, name: str) -> Client:
    """A primary client of the switch, which runs a program."""
    path = PROGRAMS / f"{name}.p4"
    client = world.client()
    client.arbitrate()
    client.info = p4info(compile_file(path))
    client.push(client.info, make_bundle(path))
    return client


@pytest.fixture
def externs(world: World) -> Iterator[tuple[World, Client]]:
    yield world, push(world, "psa_externs")


@pytest.fixture
def paths(world: World) -> Iterator[tuple[World, Client]]:
    yield world, push(world, "psa_paths")


def test_p4info_has_psas_objects() -> None:
    info = p4info(compile_file(PROGRAMS / "psa_externs.p4"))
    assert info.pkg_info.arch == "psa"
    names = {
        kind: [item.preamble.name for item in getattr(info, kind)]
        for kind in (
            "counters",
            "direct_counters",
            "meters",
            "direct_meters",
            "registers",
            "action_profiles",
            "digests",
        )
    }
    assert names == {
        "counters": ["In.counted", "Out.leaving"],
        "direct_counters": ["In.hits"],
        "meters": ["In.metered"],
        "direct_meters": ["In.entry_meter"],
        "registers": ["In.plain", "In.filled"],
        "action_profiles": ["In.profile", "In.selector"],
        "digests": ["InDeparser.seen"],
    }
    assert info.counters[0].spec.unit == p4i.CounterSpec.BOTH
    assert [profile.with_selector for profile in info.action_profiles] == [False, True]
    [direct] = [table for table in info.tables if table.preamble.alias == "direct"]
    assert direct.idle_timeout_behavior == p4i.Table.NOTIFY_CONTROL


def test_registers_and_counters(externs: tuple[World, Client]) -> None:
    world, client = externs
    register = p4r.RegisterEntry(register_id=client.id("filled"), index=p4r.Index(index=2))
    [read] = client.read(p4r.Entity(register_entry=register))
    assert read.register_entry.data.bitstring == b"\xfe"
    register.data.CopyFrom(p4d.P4Data(bitstring=b"\7"))
    client.modify(p4r.Entity(register_entry=register))
    world.plane.process([(0, bytes.fromhex("0102000000000000"))])
    assert world.plane.sent == [(1, bytes.fromhex("0102000000000007"))]
    world.plane.process([(0, bytes.fromhex("0203000000000000"))])
    counter = p4r.CounterEntry(counter_id=client.id("counted"), index=p4r.Index(index=3))
    [counted] = client.read(p4r.Entity(counter_entry=counter))
    assert (counted.counter_entry.data.packet_count, counted.counter_entry.data.byte_count) == (
        1,
        8,
    )


def test_profiles_and_digests(externs: tuple[World, Client]) -> None:
    world, client = externs
    member = p4r.ActionProfileMember(
        action_profile_id=client.id("profile"), member_id=1, action=client.action("give", value=9)
    )
    client.insert(p4r.Entity(action_profile_member=member))
    entry = client.entry("shared", exact={"hdr.ask.index": 4})
    entry.table_entry.action.action_profile_member_id = 1
    client.insert(entry)
    world.plane.process([(0, bytes.fromhex("0c04000000000000"))])
    assert world.plane.sent == [(1, bytes.fromhex("0c04000000000009"))]
    digest = p4r.DigestEntry(digest_id=client.id("seen"))
    digest.config.max_list_size = 1
    client.insert(p4r.Entity(digest_entry=digest))
    world.plane.process([(0, bytes.fromhex("0f07123400000000"))])
    received = client.receive("digest")
    assert received.digest_id == digest.digest_id
    [data] = received.data
    assert [part.bitstring for part in data.struct.members] == [b"\x07", b"\x12\x34"]


def test_packets_to_and_from_the_cpus_port(paths: tuple[World, Client]) -> None:
    world, client = paths
    world.plane.process([(0, bytes.fromhex("0a0000000000"))])
    assert client.receive("packet").payload == bytes.fromhex("8a0040010000")
    client.send(packet=p4r.PacketOut(payload=bytes.fromhex("010300000000")))
    client.arbitrate()
    assert world.plane.sent == [(3, bytes.fromhex("81030c010000"))]


def test_replicas_at_the_cpus_port_by_its_name_or_number(paths: tuple[World, Client]) -> None:
    world, client = paths
    for port in (CPU, CPU_PORT):
        entity = multicast(1, (port, 3))
        client.write((p4r.Update.INSERT if port == CPU else p4r.Update.MODIFY, entity))
        world.plane.process([(0, bytes.fromhex("020100000000"))])
        assert client.receive("packet").payload == bytes.fromhex("820140020300")
        engine = world.plane.engine
        assert engine is not None
        assert engine.multicast_groups()[1][0].port == port
    bad = multicast(2, (600, 0))
    assert refused(client, bad) == "INVALID_ARGUMENT"


def test_clone_sessions_have_a_class_of_service(paths: tuple[World, Client]) -> None:
    world, client = paths
    entity = clone_session(5, (7, 2))
    replication = entity.packet_replication_engine_entry
    replication.clone_session_entry.class_of_service = 3
    client.insert(entity)
    world.plane.process([(0, bytes.fromhex("040000000000"))])
    assert world.plane.sent == [(7, bytes.fromhex("04001c030203"))]
    [read] = client.read(
        p4r.Entity(
            packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(
                clone_session_entry=p4r.CloneSessionEntry(session_id=5)
            )
        )
    )
    assert read == entity
    assert encoded(7) == read.packet_replication_engine_entry.clone_session_entry.replicas[0].port
