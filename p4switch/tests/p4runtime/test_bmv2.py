"""The same requests to p4switch and to BMv2: the replies agree but for what is listed here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from finsy.proto import p4r

from tests.support.bmv2 import missing, running_bmv2
from tests.support.p4runtime_world import (
    DELETE,
    DEVICE,
    INSERT,
    MODIFY,
    CallError,
    Client,
    World,
    clone_session,
    everything,
    multicast,
)
from tests.support.paths import EVERYTHING_P4

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

# What BMv2 does differently; where the specification speaks of it, p4switch follows that.
BMV2_DIFFERS = {
    "insert without a key": "UNKNOWN",  # from the target; the specification: INVALID_ARGUMENT
    "insert into a const table": "UNKNOWN",  # PERMISSION_DENIED
    "delete from a const table": "NOT_FOUND",  # PERMISSION_DENIED
    "one entry too many": "UNKNOWN",  # RESOURCE_EXHAUSTED
    "delete a member in use": "UNKNOWN",  # FAILED_PRECONDITION
    "delete a group in use": "UNKNOWN",  # FAILED_PRECONDITION
    "member 0": "OK",  # INVALID_ARGUMENT
    "missing member": "INVALID_ARGUMENT",  # NOT_FOUND
    "a range of everything": "OK",  # INVALID_ARGUMENT
    "group too large": "OUT_OF_RANGE",  # INVALID_ARGUMENT
    "truncating clone session": "UNKNOWN",
    "value set": "UNIMPLEMENTED",
    "register": "UNIMPLEMENTED",
}


@pytest.fixture(scope="module")
def bmv2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a BMv2 that runs `everything.p4`."""
    _, program, _ = everything()
    with running_bmv2(program, EVERYTHING_P4, tmp_path_factory.mktemp("bmv2")) as engine:
        yield engine.client


@pytest.fixture
def ours() -> Iterator[Client]:
    """A client of p4switch that runs `everything.p4`."""
    world = World()
    try:
        yield world.start()
    finally:
        world.close()


Script = list[tuple[str, int, p4r.Entity]]


def tables(client: Client) -> Script:
    """Writes to tables, in order, by name."""

    def exact_entry(action: p4r.Action | None, destination: int = 5, **rest: Any) -> p4r.Entity:
        return client.entry("exact_table", action, exact={"destination": destination}, **rest)

    def const_entry(action: p4r.Action | None, value: int, mask: int) -> p4r.Entity:
        ternary = {"ether_type": (value, mask)}
        return client.entry("const_table", action, ternary=ternary, priority=1)

    drop, forward = client.action("drop"), client.action("forward", port=1)
    exact = exact_entry(drop, 7)
    long = client.entry("exact_table", drop, exact={"destination": 8})
    long.table_entry.match[0].exact.value = b"\0" * 9 + b"\x08"
    wide = client.entry("exact_table", drop)
    wide.table_entry.match.add(field_id=1).exact.value = b"\1" * 7
    unknown = client.entry("exact_table", drop)
    unknown.table_entry.table_id += 1

    def ternary(**matches: Any) -> p4r.Entity:
        return client.entry("ternary_table", drop, priority=1, **matches)

    def lpm(value: int, length: int, **rest: Any) -> p4r.Entity:
        return client.entry("lpm_table", drop, lpm={"destination": (value, length)}, **rest)

    def without_action(value: int, length: int) -> p4r.Entity:
        return client.entry("lpm_table", lpm={"destination": (value, length)})

    def default(table: str, action: p4r.Action | None) -> p4r.Entity:
        return client.entry(table, action, is_default_action=True)

    return [
        ("insert", INSERT, exact),
        ("insert twice", INSERT, exact),
        ("modify", MODIFY, exact_entry(forward, 7)),
        (
            "modify what is not there",
            MODIFY,
            exact_entry(drop, 9),
        ),
        ("a long byte string", INSERT, long),
        ("a byte string that does not fit", INSERT, wide),
        ("unknown table", INSERT, unknown),
        ("delete", DELETE, exact),
        ("delete twice", DELETE, exact),
        *(
            (
                f"entry {number}",
                INSERT,
                exact_entry(drop, number),
            )
            for number in (20, 21, 22)
        ),
        ("one entry too many", INSERT, exact),
        ("no exact key", INSERT, client.entry("exact_table", drop)),
        ("no action", INSERT, exact_entry(None)),
        (
            "action of another table",
            INSERT,
            exact_entry(client.action("counted_forward", port=1)),
        ),
        (
            "parameter missing",
            INSERT,
            exact_entry(client.action("forward")),
        ),
        (
            "default-only action",
            INSERT,
            exact_entry(client.action("NoAction")),
        ),
        (
            "priority on exact keys",
            INSERT,
            exact_entry(drop, priority=1),
        ),
        ("no priority", INSERT, client.entry("ternary_table", drop)),
        ("ternary", INSERT, ternary(ternary={"source": (0x20, 0xF0)}, optional={"port": 3})),
        ("bits outside the mask", INSERT, ternary(ternary={"source": (0xFF, 0xF0)})),
        ("a mask of nothing", INSERT, ternary(ternary={"source": (0, 0)})),
        ("an empty range", INSERT, ternary(range_={"ether_type": (9, 5)})),
        ("a range of everything", INSERT, ternary(range_={"ether_type": (0, 0xFFFF)})),
        ("prefix", INSERT, lpm(0xAB << 40, 8)),
        ("negative timeout", INSERT, lpm(0xAC << 40, 8, idle_timeout_ns=-1)),
        ("modify without action", MODIFY, without_action(0xAB << 40, 8)),
        ("bits beyond the prefix", INSERT, lpm(1, 8)),
        ("prefix of 0", INSERT, lpm(0, 0)),
        ("prefix too long", INSERT, lpm(0, 49)),
        ("insert without a key", INSERT, client.entry("keyless_table", forward)),
        (
            "insert into a const table",
            INSERT,
            const_entry(forward, 1, 1),
        ),
        (
            "delete from a const table",
            DELETE,
            const_entry(None, 0x86DD, 0xFFFF),
        ),
        ("default", MODIFY, default("exact_table", drop)),
        ("default back", MODIFY, default("exact_table", None)),
        ("insert a default", INSERT, default("exact_table", drop)),
        ("const default", MODIFY, default("ternary_table", drop)),
        ("table-only default", MODIFY, default("lpm_table", drop)),
        ("default of an indirect table", MODIFY, default("hop_table", forward)),
        (
            "timeout without support",
            INSERT,
            exact_entry(drop, idle_timeout_ns=1),
        ),
    ]


def member(client: Client, number: int, port: int | None = None) -> p4r.Entity:
    message = p4r.ActionProfileMember(action_profile_id=client.id("paths"), member_id=number)
    if port is not None:
        message.action.CopyFrom(client.action("forward", port=port))
    return p4r.Entity(action_profile_member=message)


def group(client: Client, number: int, *members: tuple[int, int]) -> p4r.Entity:
    message = p4r.ActionProfileGroup(action_profile_id=client.id("paths"), group_id=number)
    for member_id, weight in members:
        message.members.add(member_id=member_id, weight=weight)
    return p4r.Entity(action_profile_group=message)


def others(client: Client) -> Script:
    """Writes to everything else."""
    path = client.entry("path_table", exact={"destination": 1})
    path.table_entry.action.action_profile_group_id = 1
    lost = client.entry("hop_table", exact={"destination": 1})
    lost.table_entry.action.action_profile_member_id = 9
    one_shot = client.entry("path_table", exact={"destination": 2})
    actions = one_shot.table_entry.action.action_profile_action_set.action_profile_actions
    actions.add(weight=1).action.CopyFrom(client.action("drop"))
    counter = p4r.CounterEntry(
        counter_id=client.id("seen"),
        index=p4r.Index(index=1),
        data=p4r.CounterData(packet_count=1, byte_count=60),
    )
    beyond = p4r.CounterEntry(counter_id=client.id("seen"), index=p4r.Index(index=-1))
    meter = p4r.MeterEntry(
        meter_id=client.id("rate"),
        index=p4r.Index(index=1),
        config=p4r.MeterConfig(cir=1, cburst=2, pir=3, pburst=4),
    )
    register = p4r.RegisterEntry(register_id=client.id("totals"), index=p4r.Index(index=1))
    register.data.bitstring = b"\1"
    values = p4r.ValueSetEntry(value_set_id=client.id("special_types"))
    digest = p4r.Entity(digest_entry=p4r.DigestEntry(digest_id=client.id("learn_t")))
    return [
        ("group", INSERT, multicast(1, (1, 0), (2, 5))),
        ("group twice", INSERT, multicast(1, (1, 0))),
        ("group 0", INSERT, multicast(0, (1, 0))),
        ("group too large", INSERT, multicast(70000, (1, 0))),
        ("a replica twice", INSERT, multicast(2, (1, 0), (1, 0))),
        ("modify no group", MODIFY, multicast(2, (1, 0))),
        ("delete no group", DELETE, multicast(2)),
        ("session", INSERT, clone_session(5, (1, 0))),
        ("session twice", INSERT, clone_session(5, (1, 0))),
        ("session 0", INSERT, clone_session(0, (1, 0))),
        ("truncating clone session", INSERT, clone_session(6, (1, 0), length=99)),
        ("member", INSERT, member(client, 1, 1)),
        ("member twice", INSERT, member(client, 1, 1)),
        ("member 0", INSERT, member(client, 0, 1)),
        ("member without action", INSERT, member(client, 2)),
        ("modify no member", MODIFY, member(client, 3, 1)),
        ("selector group", INSERT, group(client, 1, (1, 2))),
        ("selector group twice", INSERT, group(client, 1, (1, 2))),
        ("group of no member", INSERT, group(client, 2, (9, 1))),
        ("group of weight 0", INSERT, group(client, 3, (1, 0))),
        ("group of one member twice", INSERT, group(client, 4, (1, 1), (1, 1))),
        ("delete a member in use", DELETE, member(client, 1)),
        ("entry of a group", INSERT, path),
        ("delete a group in use", DELETE, group(client, 1)),
        ("missing member", INSERT, lost),
        ("one shot among members", INSERT, one_shot),
        ("counter", MODIFY, p4r.Entity(counter_entry=counter)),
        ("insert a counter", INSERT, p4r.Entity(counter_entry=counter)),
        ("counter -1", MODIFY, p4r.Entity(counter_entry=beyond)),
        ("meter", MODIFY, p4r.Entity(meter_entry=meter)),
        ("register", MODIFY, p4r.Entity(register_entry=register)),
        ("value set", MODIFY, p4r.Entity(value_set_entry=values)),
        ("modify no digest", MODIFY, digest),
        ("digest", INSERT, digest),
    ]


def outcome(client: Client, kind: int, entity: p4r.Entity) -> str:
    """OK, or the code of the one update's error."""
    try:
        client.write((kind, entity))
    except CallError as error:
        return error.codes()[0] if error.parts else error.code
    return "OK"


@pytest.mark.slow
@pytest.mark.parametrize("script", [tables, others], ids=["tables", "others"])
def test_writes_end_alike(bmv2: Client, ours: Client, script: Callable[[Client], Script]) -> None:
    got = {name: outcome(ours, kind, entity) for name, kind, entity in script(ours)}
    theirs = {name: outcome(bmv2, kind, entity) for name, kind, entity in script(bmv2)}
    expected = {name: BMV2_DIFFERS.get(name, code) for name, code in got.items()}
    assert theirs == expected


def read(client: Client, entity: p4r.Entity) -> list[p4r.Entity]:
    return sorted(client.read(entity), key=lambda e: e.SerializeToString(deterministic=True))


@pytest.mark.slow
def test_reads_reply_alike(bmv2: Client, ours: Client) -> None:
    for script in (tables, others):
        for client in (bmv2, ours):
            for _, kind, entity in script(client):
                outcome(client, kind, entity)
    requests = [
        ours.entry("exact_table"),
        ours.entry("lpm_table"),
        ours.entry("lpm_table", counter_data=p4r.CounterData()),
        ours.entry("path_table"),
        ours.entry("exact_table", is_default_action=True),
        ours.entry("ternary_table", is_default_action=True),
        multicast(1),
        clone_session(5),
        member(ours, 1),
        group(ours, 1),
        p4r.Entity(counter_entry=p4r.CounterEntry(counter_id=ours.id("seen"))),
        p4r.Entity(meter_entry=p4r.MeterEntry(meter_id=ours.id("rate"))),
        p4r.Entity(digest_entry=p4r.DigestEntry(digest_id=ours.id("learn_t"))),
    ]
    for request in requests:
        assert comparable(read(ours, request)) == comparable(read(bmv2, request))


def test_failing_reads_end_alike(bmv2: Client, ours: Client) -> None:
    table = p4r.TableEntry(table_id=0x02FFFFFF)
    timed = ours.entry("exact_table", time_since_last_hit=p4r.TableEntry.IdleTimeout())
    requests = [
        p4r.Entity(table_entry=table),
        p4r.Entity(direct_counter_entry=p4r.DirectCounterEntry(table_entry=table)),
        p4r.Entity(counter_entry=p4r.CounterEntry(counter_id=0x12345678)),
        p4r.Entity(action_profile_member=p4r.ActionProfileMember(action_profile_id=1)),
        p4r.Entity(digest_entry=p4r.DigestEntry(digest_id=1)),
        timed,
    ]
    for request in requests:
        codes = []
        for client in (bmv2, ours):
            with pytest.raises(CallError) as caught:
                client.read(request)
            assert not caught.value.parts
            codes.append(caught.value.code)
        assert codes[0] == codes[1], request


def comparable(entities: list[p4r.Entity]) -> list[p4r.Entity]:
    """Entities without `is_const`, which BMv2's version does not know, and replicas sorted."""
    for entity in entities:
        if entity.HasField("table_entry"):
            entity.table_entry.ClearField("is_const")
        if entity.HasField("packet_replication_engine_entry"):
            group = entity.packet_replication_engine_entry.multicast_group_entry
            group.replicas.sort(key=lambda replica: (replica.port, replica.instance))
    return entities


def test_arbitration_goes_alike(bmv2: Client, ours: Client) -> None:
    def session(first: Client) -> list[tuple[int, int]]:
        address = first.address
        second = Client(address, DEVICE, first.info, election_id=5)
        updates = [second.arbitrate(), first.receive("arbitration")]
        second.leave()
        updates.append(first.receive("arbitration"))
        second.close()
        return [(u.status.code, u.election_id.low) for u in updates]

    assert session(ours) == session(bmv2)
