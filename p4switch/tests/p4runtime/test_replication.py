"""Multicast groups and clone sessions."""

from __future__ import annotations

import pytest
from finsy.proto import p4r

from tests.support.p4runtime_world import (
    CallError,
    Client,
    World,
    clone_session,
    frame,
    multicast,
    running,
)

started = pytest.fixture(running)
Started = tuple[World, Client]

PACKET = frame(1, 2, 3, bytes(range(40)))


def refused(client: Client, entity: p4r.Entity, how: str = "insert") -> str:
    with pytest.raises(CallError, match="UNKNOWN") as caught:
        getattr(client, how)(entity)
    return caught.value.codes()[0]


def to_port_1(client: Client, action: str, **parameters: int) -> None:
    """Let packets for destination 1 do an action."""
    client.insert(
        client.entry("exact_table", client.action(action, **parameters), exact={"destination": 1})
    )


def test_a_multicast_group_replicates(started: Started) -> None:
    world, client = started
    to_port_1(client, "flood", group=9)
    assert world.plane.process([(1, PACKET)]) == []
    client.insert(multicast(9, (1, 0), (2, 0), (2, 1)))
    assert sorted(world.plane.process([(1, PACKET)])) == [(1, PACKET), (2, PACKET), (2, PACKET)]
    client.modify(multicast(9, (3, 0)))
    assert world.plane.process([(1, PACKET)]) == [(3, PACKET)]
    client.delete(multicast(9))
    assert world.plane.process([(1, PACKET)]) == []


def test_groups_read_back_as_written(started: Started) -> None:
    _, client = started
    one, two = multicast(1, (1, 0), (2, 5)), multicast(2)
    one.packet_replication_engine_entry.multicast_group_entry.metadata = b"mine"
    client.insert(one, two)
    assert client.read(multicast(1)) == [one]
    assert client.read(multicast(0)) == [one, two]
    assert client.read(multicast(3)) == []


def test_ports_may_be_numbers_or_padded_bytes(started: Started) -> None:
    _, client = started
    entity = multicast(1, (7, 0))
    group = entity.packet_replication_engine_entry.multicast_group_entry
    group.replicas[0].port = b"\0\0\7"
    group.replicas.add(egress_port=8)
    client.insert(entity)
    group.replicas[0].port = b"\7"
    assert client.read(multicast(1)) == [entity]


def test_bad_groups_are_refused(started: Started) -> None:
    _, client = started
    client.insert(multicast(1, (1, 0)))
    assert refused(client, multicast(1, (1, 0))) == "ALREADY_EXISTS"
    assert refused(client, multicast(2, (1, 0)), "modify") == "NOT_FOUND"
    assert refused(client, multicast(2), "delete") == "NOT_FOUND"
    assert refused(client, multicast(0, (1, 0))) == "INVALID_ARGUMENT"
    assert refused(client, multicast(2, (1, 0), (1, 0))) == "INVALID_ARGUMENT"
    assert refused(client, multicast(2, (600, 0))) == "INVALID_ARGUMENT"
    assert refused(client, multicast(2, (1, 70000))) == "INVALID_ARGUMENT"
    assert refused(client, multicast(70000, (1, 0))) == "INVALID_ARGUMENT"
    backup = multicast(2, (1, 0))
    group = backup.packet_replication_engine_entry.multicast_group_entry
    group.replicas[0].backup_replicas.add(port=b"\2")
    assert refused(client, backup) == "UNIMPLEMENTED"
    empty = p4r.Entity(packet_replication_engine_entry=p4r.PacketReplicationEngineEntry())
    assert refused(client, empty) == "INVALID_ARGUMENT"


def test_a_clone_session_mirrors_and_truncates(started: Started) -> None:
    world, client = started
    to_port_1(client, "mirror", port=2)
    assert world.plane.process([(1, PACKET)]) == [(2, PACKET)]
    client.insert(clone_session(5, (7, 0)))
    assert sorted(world.plane.process([(1, PACKET)])) == [(2, PACKET), (7, PACKET)]
    client.modify(clone_session(5, (8, 0), length=20))
    assert sorted(world.plane.process([(1, PACKET)])) == [(2, PACKET), (8, PACKET[:20])]
    assert client.read(clone_session(0)) == [clone_session(5, (8, 0), length=20)]
    client.delete(clone_session(5))
    assert world.plane.process([(1, PACKET)]) == [(2, PACKET)]


def test_a_read_of_neither_gives_both(started: Started) -> None:
    _, client = started
    client.insert(multicast(1, (1, 0)), clone_session(5, (1, 0)))
    both = p4r.Entity(packet_replication_engine_entry=p4r.PacketReplicationEngineEntry())
    assert client.read(both) == [multicast(1, (1, 0)), clone_session(5, (1, 0))]


def test_bad_sessions_are_refused(started: Started) -> None:
    _, client = started
    client.insert(clone_session(5, (1, 0)))
    assert refused(client, clone_session(5, (1, 0))) == "ALREADY_EXISTS"
    assert refused(client, clone_session(6, (1, 0)), "modify") == "NOT_FOUND"
    assert refused(client, clone_session(0, (1, 0))) == "INVALID_ARGUMENT"
    assert refused(client, clone_session(40000, (1, 0))) == "INVALID_ARGUMENT"
    assert refused(client, clone_session(6, (1, 0), length=-1)) == "INVALID_ARGUMENT"
    served = clone_session(6, (1, 0))
    served.packet_replication_engine_entry.clone_session_entry.class_of_service = 2
    assert refused(client, served) == "UNIMPLEMENTED"
