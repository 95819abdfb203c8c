"""Action profiles and selectors: members, groups, one-shot entries."""

from __future__ import annotations

from typing import Any

import pytest
from finsy.proto import p4r

from tests.support.p4runtime_world import Client, World, frame, refused, running

started = pytest.fixture(running)
Started = tuple[World, Client]


def member(client: Client, profile: str, number: int, port: int | None = None) -> p4r.Entity:
    message = p4r.ActionProfileMember(action_profile_id=client.id(profile), member_id=number)
    if port is not None:
        message.action.CopyFrom(client.action("forward", port=port))
    return p4r.Entity(action_profile_member=message)


def group(
    client: Client, number: int, *members: tuple[int, int], profile: str = "paths", size: int = 0
) -> p4r.Entity:
    """A group; members are (id, weight)."""
    message = p4r.ActionProfileGroup(
        action_profile_id=client.id(profile), group_id=number, max_size=size
    )
    for member_id, weight in members:
        message.members.add(member_id=member_id, weight=weight)
    return p4r.Entity(action_profile_group=message)


def indirect(client: Client, table: str, destination: int, **reference: Any) -> p4r.Entity:
    entity = client.entry(table, exact={"destination": destination})
    for name, value in reference.items():
        setattr(entity.table_entry.action, f"action_profile_{name}_id", value)
    return entity


def one_shot(client: Client, destination: int, *ports: tuple[int, int]) -> p4r.Entity:
    """An entry of `path_table` with an action set of (port, weight)."""
    entity = client.entry("path_table", exact={"destination": destination})
    actions = entity.table_entry.action.action_profile_action_set
    for port, weight in ports:
        action = actions.action_profile_actions.add(weight=weight)
        action.action.CopyFrom(client.action("forward", port=port))
    return entity


def test_members_of_a_profile(started: Started) -> None:
    world, client = started
    one, two = member(client, "next_hops", 1, 4), member(client, "next_hops", 2, 5)
    client.insert(one, two)
    entry = indirect(client, "hop_table", 1, member=1)
    client.insert(entry)
    assert client.read(client.entry("hop_table")) == [entry]
    packet = frame(1, 2, 3)
    assert world.plane.process([(1, packet)]) == [(4, packet)]
    client.modify(member(client, "next_hops", 1, 6))
    assert world.plane.process([(1, packet)]) == [(6, packet)]
    client.modify(indirect(client, "hop_table", 1, member=2))
    assert world.plane.process([(1, packet)]) == [(5, packet)]
    client.delete(member(client, "next_hops", 1))
    assert client.read(member(client, "next_hops", 0)) == [two]
    assert client.read(p4r.Entity(action_profile_member=p4r.ActionProfileMember())) == [two]


def test_bad_members_are_refused(started: Started) -> None:
    _, client = started
    client.insert(member(client, "next_hops", 1, 4))
    client.insert(indirect(client, "hop_table", 1, member=1))
    assert refused(client, member(client, "next_hops", 1, 4)) == "ALREADY_EXISTS"
    assert refused(client, member(client, "next_hops", 2, 4), "modify") == "NOT_FOUND"
    assert refused(client, member(client, "next_hops", 2), "delete") == "NOT_FOUND"
    assert refused(client, member(client, "next_hops", 0, 4)) == "INVALID_ARGUMENT"
    assert refused(client, member(client, "next_hops", 2)) == "INVALID_ARGUMENT"
    assert refused(client, member(client, "next_hops", 1), "delete") == "FAILED_PRECONDITION"
    wrong = member(client, "next_hops", 3, 4)
    wrong.action_profile_member.action.CopyFrom(client.action("drop"))
    assert refused(client, wrong) == "INVALID_ARGUMENT"
    assert refused(client, indirect(client, "hop_table", 2, member=9)) == "NOT_FOUND"
    direct = client.entry("hop_table", client.action("forward", port=1), exact={"destination": 3})
    assert refused(client, direct) == "INVALID_ARGUMENT"
    for number in range(2, 9):
        client.insert(member(client, "next_hops", number, 1))
    assert refused(client, member(client, "next_hops", 9, 1)) == "RESOURCE_EXHAUSTED"


def test_groups_share_packets_by_weight(started: Started) -> None:
    world, client = started
    client.insert(*(member(client, "paths", number, number) for number in (1, 2, 3)))
    whole = group(client, 1, (1, 1), (2, 2))
    client.insert(whole, indirect(client, "path_table", 1, group=1))
    ports = {
        port for source in range(40) for port, _ in world.plane.process([(1, frame(1, source, 3))])
    }
    assert ports == {1, 2}
    assert client.read(group(client, 1)) == [whole]
    client.modify(group(client, 1, (3, 1)))
    assert world.plane.process([(1, frame(1, 7, 3))])[0][0] == 3
    assert refused(client, group(client, 1), "delete") == "FAILED_PRECONDITION"
    client.delete(indirect(client, "path_table", 1))
    client.delete(group(client, 1))
    assert client.read(p4r.Entity(action_profile_group=p4r.ActionProfileGroup())) == []


def test_bad_groups_are_refused(started: Started) -> None:
    _, client = started
    client.insert(member(client, "paths", 1, 1), group(client, 1, (1, 1), size=4))
    assert refused(client, group(client, 1, (1, 1))) == "ALREADY_EXISTS"
    assert refused(client, group(client, 2, (1, 1)), "modify") == "NOT_FOUND"
    assert refused(client, group(client, 2), "delete") == "NOT_FOUND"
    assert refused(client, group(client, 2, (7, 1))) == "NOT_FOUND"
    assert refused(client, group(client, 0, (1, 1))) == "INVALID_ARGUMENT"
    assert refused(client, group(client, 2, (1, 0))) == "INVALID_ARGUMENT"
    assert refused(client, group(client, 2, (1, 1), (1, 2))) == "INVALID_ARGUMENT"
    assert refused(client, group(client, 1, (1, 1), size=5), "modify") == "INVALID_ARGUMENT"
    assert refused(client, group(client, 1, (1, 5), size=4), "modify") == "RESOURCE_EXHAUSTED"
    assert refused(client, group(client, 2, (1, 1 << 30))) == "RESOURCE_EXHAUSTED"
    client.insert(member(client, "paths", 2, 2))
    halves = ((1, 1 << 15), (2, 1 << 15))
    client.insert(group(client, 2, *halves))
    client.insert(member(client, "paths", 3, 3))
    assert refused(client, group(client, 3, *halves, (3, 1))) == "RESOURCE_EXHAUSTED"
    client.insert(member(client, "next_hops", 1, 1))
    wrong = group(client, 1, (1, 1), profile="next_hops")
    assert refused(client, wrong) == "INVALID_ARGUMENT"


def test_one_shot_entries(started: Started) -> None:
    world, client = started
    entry = one_shot(client, 1, (4, 1), (5, 1))
    client.insert(entry)
    assert client.read(client.entry("path_table")) == [entry]
    assert client.read(p4r.Entity(action_profile_member=p4r.ActionProfileMember())) == []
    ports = {
        port for source in range(40) for port, _ in world.plane.process([(1, frame(1, source, 3))])
    }
    assert ports == {4, 5}
    client.modify(one_shot(client, 1, (6, 3)))
    assert world.plane.process([(1, frame(1, 2, 3))])[0][0] == 6
    client.delete(one_shot(client, 1))
    assert world.plane.engine is not None
    assert world.plane.engine.members("TestIngress.paths") == {}
    assert world.plane.engine.groups("TestIngress.paths") == {}


def test_a_refused_one_shot_entry_leaves_nothing_behind(started: Started) -> None:
    world, client = started
    client.insert(one_shot(client, 1, (4, 1)))
    assert world.plane.engine is not None
    before = world.plane.engine.members("TestIngress.paths")
    assert refused(client, one_shot(client, 1, (5, 1))) == "ALREADY_EXISTS"
    assert refused(client, one_shot(client, 2, (5, 1)), "modify") == "NOT_FOUND"
    assert refused(client, one_shot(client, 2, (5, 0))) == "INVALID_ARGUMENT"
    many = one_shot(client, 2, *((port, 1) for port in range(16)))
    assert refused(client, many) == "RESOURCE_EXHAUSTED"
    assert refused(client, one_shot(client, 2, (5, 1 << 30))) == "RESOURCE_EXHAUSTED"
    assert world.plane.engine.members("TestIngress.paths") == before


def test_the_two_styles_do_not_mix(started: Started) -> None:
    _, client = started
    client.insert(one_shot(client, 1, (4, 1)))
    assert refused(client, member(client, "paths", 1, 1)) == "INVALID_ARGUMENT"
    client.delete(one_shot(client, 1))
    client.insert(member(client, "paths", 1, 1))
    assert refused(client, one_shot(client, 1, (4, 1))) == "INVALID_ARGUMENT"


def test_one_shot_needs_a_selector(started: Started) -> None:
    _, client = started
    entry = one_shot(client, 1, (4, 1))
    entry.table_entry.table_id = client.id("hop_table")
    assert refused(client, entry) == "INVALID_ARGUMENT"


def watching(entity: p4r.Entity, *ports: int) -> p4r.Entity:
    """The entity, its members or actions watching a port each (0: none)."""
    if entity.HasField("table_entry"):
        action_set = entity.table_entry.action.action_profile_action_set
        members: Any = action_set.action_profile_actions
    else:
        members = entity.action_profile_group.members
    for item, port in zip(members, ports, strict=True):
        if port:
            item.watch_port = bytes([port])
    return entity


def used(world: World, destination: int = 1) -> set[int]:
    """The ports that packets of many flows leave at."""
    packets = [(1, frame(destination, source, 3)) for source in range(40)]
    return {port for packet in packets for port, _ in world.plane.process([packet])}


def test_actions_whose_watched_port_is_down_get_no_packets(started: Started) -> None:
    world, client = started
    entry = watching(one_shot(client, 1, (4, 1), (5, 1), (6, 1)), 4, 5, 0)
    client.insert(entry)
    assert used(world) == {4, 5, 6}
    world.service.port_changed(5, False)
    assert used(world) == {4, 6}
    world.service.port_changed(4, False)
    assert used(world) == {6}
    assert client.read(client.entry("path_table")) == [entry], "as it was written"
    world.service.port_changed(5, True)
    assert used(world) == {5, 6}
    client.modify(watching(one_shot(client, 1, (4, 1), (7, 1)), 4, 0))
    assert used(world) == {7}, "4 is down still"
    client.delete(one_shot(client, 1))
    world.service.port_changed(4, True)
    assert world.plane.engine is not None
    assert world.plane.engine.groups("TestIngress.paths") == {}


def test_members_of_groups_watch_ports_too(started: Started) -> None:
    world, client = started
    world.service.port_changed(2, False)
    client.insert(*(member(client, "paths", number, number) for number in (1, 2)))
    whole = watching(group(client, 1, (1, 1), (2, 2)), 1, 2)
    client.insert(whole, indirect(client, "path_table", 1, group=1))
    assert used(world) == {1}
    assert refused(client, member(client, "paths", 2), "delete") == "FAILED_PRECONDITION"
    world.service.port_changed(2, True)
    assert used(world) == {1, 2}
    assert client.read(group(client, 1)) == [whole]
    client.modify(group(client, 1, (1, 1), (2, 2)))
    world.service.port_changed(2, False)
    assert used(world) == {1, 2}, "no watcher is left"


def test_bad_watch_ports_are_refused(started: Started) -> None:
    world, client = started
    entry = watching(one_shot(client, 1, (4, 1)), 1)
    actions = entry.table_entry.action.action_profile_action_set.action_profile_actions
    actions[0].watch_port = bytes(4) + b"\1" * 5
    assert refused(client, entry) == "INVALID_ARGUMENT"
    actions[0].watch_port = (600).to_bytes(2, "big")
    assert refused(client, entry) == "INVALID_ARGUMENT"
    world.service.port_changed(3, False)
    assert refused(client, watching(group(client, 2, (7, 1)), 3)) == "NOT_FOUND"


def test_a_member_of_several_groups_is_modified_in_all(started: Started) -> None:
    world, client = started
    client.insert(member(client, "paths", 1, 1))
    client.insert(group(client, 1, (1, 1)), group(client, 2, (1, 3)))
    client.insert(*(indirect(client, "path_table", n, group=n) for n in (1, 2)))
    client.modify(member(client, "paths", 1, 5))
    assert used(world, 1) == used(world, 2) == {5}


def test_members_of_a_group_may_have_different_actions(started: Started) -> None:
    world, client = started
    drop = member(client, "paths", 2)
    drop.action_profile_member.action.CopyFrom(client.action("drop"))
    client.insert(member(client, "paths", 1, 4), drop)
    client.insert(group(client, 1, (1, 1), (2, 1)), indirect(client, "path_table", 1, group=1))
    assert used(world) == {4}
    assert len(world.plane.sent) < 40


def test_an_empty_group_is_no_error(started: Started) -> None:
    world, client = started
    client.insert(group(client, 1), indirect(client, "path_table", 1, group=1))
    assert used(world) == set()


def test_delete_looks_at_ids_alone(started: Started) -> None:
    _, client = started
    client.insert(member(client, "paths", 1, 1), group(client, 1, (1, 1), size=4))
    client.delete(group(client, 1, (9, 0), size=77))
    client.delete(member(client, "paths", 1, 511))
