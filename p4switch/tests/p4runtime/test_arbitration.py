"""Election of the primary client, and how clients are notified."""

from __future__ import annotations

import pytest
from finsy.proto import U128, p4r

from tests.support.p4runtime_world import DEVICE, CallError, World, multicast, served

world = pytest.fixture(served)

OK, NOT_FOUND, ALREADY_EXISTS = 0, 5, 6


def test_the_first_client_is_primary(world: World) -> None:
    update = world.client(election_id=1 << 70).arbitrate()
    assert update.device_id == DEVICE
    assert update.status.code == OK
    assert U128.decode(update.election_id) == 1 << 70


def test_a_higher_id_takes_over_and_both_are_notified(world: World) -> None:
    first, second = world.client(election_id=5), world.client(election_id=6)
    first.arbitrate()
    assert second.arbitrate().status.code == OK
    received = first.receive("arbitration")
    assert received.status.code == ALREADY_EXISTS
    assert U128.decode(received.election_id) == 6


def test_a_lower_id_is_a_backup_and_the_primary_hears_nothing(world: World) -> None:
    first, second = world.client(election_id=5), world.client(election_id=4)
    first.arbitrate()
    received = second.arbitrate()
    assert received.status.code == ALREADY_EXISTS
    assert U128.decode(received.election_id) == 5
    assert first.arbitrate().status.code == OK


def test_the_backup_becomes_primary_when_the_primary_leaves(world: World) -> None:
    first, second = world.client(election_id=5), world.client(election_id=4)
    first.arbitrate()
    second.arbitrate()
    first.leave()
    received = second.receive("arbitration")
    assert received.status.code == OK
    assert U128.decode(received.election_id) == 4


def test_a_client_of_a_lower_id_follows_one_that_left(world: World) -> None:
    first = world.client(election_id=50)
    first.arbitrate()
    first.leave()
    assert world.client(election_id=1).arbitrate().status.code == OK


def test_without_an_id_or_with_id_0_a_client_is_never_primary(world: World) -> None:
    for election_id in (None, 0):
        client = world.client(election_id=election_id)
        update = client.arbitrate()
        assert update.status.code == NOT_FOUND
        assert not update.HasField("election_id")
        client.leave()


def test_a_primary_can_step_down(world: World) -> None:
    first, second = world.client(election_id=5), world.client(election_id=4)
    first.arbitrate()
    second.arbitrate()
    assert first.arbitrate(3).status.code == ALREADY_EXISTS
    assert second.receive("arbitration").status.code == OK


def test_an_id_in_use_is_refused_and_ends_the_stream(world: World) -> None:
    world.client(election_id=5).arbitrate()
    with pytest.raises(CallError, match="INVALID_ARGUMENT: Election id already exists"):
        world.client(election_id=5).arbitrate()


def test_another_device_id_ends_the_stream(world: World) -> None:
    client = world.client()
    client.device_id = 99
    with pytest.raises(CallError, match="NOT_FOUND: device id 99: this is device 3"):
        client.arbitrate()


def test_a_stream_keeps_its_device_and_role(world: World) -> None:
    client = world.client(role="a")
    client.arbitrate()
    client.role = "b"
    with pytest.raises(CallError, match="FAILED_PRECONDITION: role 'b'"):
        client.arbitrate()


def test_each_role_has_its_primary(world: World) -> None:
    first, second = world.client(election_id=5), world.client(election_id=4, role="monitor")
    first.arbitrate()
    received = second.arbitrate()
    assert received.status.code == OK
    assert received.role.name == "monitor"


def test_only_the_primary_writes(world: World) -> None:
    primary = world.start()
    backup = world.client(election_id=0)
    backup.arbitrate()
    for stranger in (backup, world.client(election_id=7), world.client(election_id=None)):
        with pytest.raises(CallError, match="PERMISSION_DENIED: Not primary"):
            stranger.insert(multicast(1, (1, 0)))
    primary.insert(multicast(1, (1, 0)))


def test_an_id_is_worth_nothing_in_another_role(world: World) -> None:
    world.start()
    with pytest.raises(CallError, match="NOT_FOUND: no client has asked for role 'monitor'"):
        world.client(election_id=1, role="monitor").insert(multicast(1, (1, 0)))


def test_too_many_streams_are_refused(world: World) -> None:
    for number in range(1, 17):
        world.client(election_id=number).arbitrate()
    with pytest.raises(CallError, match="RESOURCE_EXHAUSTED"):
        world.client(election_id=17).arbitrate()


def test_a_role_s_config_is_refused(world: World) -> None:
    client = world.client(role="monitor")
    message = p4r.MasterArbitrationUpdate(device_id=DEVICE, election_id=U128.encode(1))
    message.role.name = "monitor"
    message.role.config.type_url = "type.example/partition"
    client.send(arbitration=message)
    with pytest.raises(CallError, match="INVALID_ARGUMENT: role 'monitor'"):
        client.receive("arbitration")


def test_a_backup_can_overtake_the_primary(world: World) -> None:
    first, second = world.start(), world.client(election_id=0)
    second.arbitrate()
    assert second.arbitrate(8).status.code == OK
    assert first.receive("arbitration").status.code == ALREADY_EXISTS
    with pytest.raises(CallError, match="PERMISSION_DENIED: Not primary"):
        first.insert(multicast(1, (1, 0)))
    second.insert(multicast(1, (1, 0)))


def test_reads_need_no_stream(world: World) -> None:
    world.start().insert(multicast(1, (1, 0)))
    stranger = world.client(election_id=None)
    assert stranger.read(multicast(0)) == [multicast(1, (1, 0))]
    assert stranger.get_pipeline("COOKIE_ONLY") == p4r.ForwardingPipelineConfig()
