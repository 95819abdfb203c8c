"""Batches of updates: what each became, and all or nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from finsy.proto import p4d, p4r

from tests.support.p4runtime_world import (
    DELETE,
    INSERT,
    MODIFY,
    CallError,
    Client,
    World,
    clone_session,
    multicast,
    running,
)

started = pytest.fixture(running)
Started = tuple[World, Client]


def state(client: Client) -> list[p4r.Entity]:
    """Everything that can be read."""
    requests: list[Any] = [
        p4r.TableEntry(counter_data=p4r.CounterData(), meter_config=p4r.MeterConfig()),
        p4r.TableEntry(is_default_action=True),
        p4r.ActionProfileMember(),
        p4r.ActionProfileGroup(),
        p4r.PacketReplicationEngineEntry(),
        p4r.CounterEntry(),
        p4r.MeterEntry(),
        p4r.RegisterEntry(),
        p4r.ValueSetEntry(),
        p4r.DigestEntry(),
    ]
    entities = []
    for request in requests:
        entity = p4r.Entity()
        for field in p4r.Entity.DESCRIPTOR.fields:
            if field.message_type is request.DESCRIPTOR:
                getattr(entity, field.name).CopyFrom(request)
        entities.append(entity)
    return sorted(client.read(*entities), key=lambda e: e.SerializeToString(deterministic=True))


def test_a_batch_goes_on_after_an_error(started: Started) -> None:
    _, client = started
    message = "UNKNOWN: 4 of 6 updates failed; number 1: there is no multicast group 7"
    with pytest.raises(CallError, match=message) as caught:
        client.write(
            (INSERT, multicast(1, (1, 0))),
            (MODIFY, multicast(7, (1, 0))),
            (INSERT, multicast(2, (1, 0))),
            (0, multicast(3)),
            (INSERT, p4r.Entity()),
            (INSERT, p4r.Entity(extern_entry=p4r.ExternEntry())),
        )
    assert caught.value.codes() == [
        "OK",
        "NOT_FOUND",
        "OK",
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
        "UNIMPLEMENTED",
    ]
    assert [part.message for part in caught.value.parts[:3]] == [
        "",
        "there is no multicast group 7",
        "",
    ]
    assert client.read(multicast(0)) == [multicast(1, (1, 0)), multicast(2, (1, 0))]


def test_messages_stop_where_grpc_would_not_carry_them(started: Started) -> None:
    _, client = started
    with pytest.raises(CallError) as caught:
        client.delete(*(multicast(number) for number in range(1, 101)))
    assert caught.value.codes() == ["NOT_FOUND"] * 100
    assert caught.value.parts[0].message
    assert sum(len(part.message) for part in caught.value.parts) < 5000


@pytest.mark.parametrize("count", [300, 3000])
@pytest.mark.parametrize("atomicity", ["CONTINUE_ON_ERROR", "ROLLBACK_ON_ERROR"])
@pytest.mark.parametrize("bad", [5, 270])
def test_the_failed_update_of_a_large_batch_is_named(
    started: Started, count: int, atomicity: str, bad: int
) -> None:
    _, client = started
    updates = [(INSERT, multicast(number + 1, (1, 0))) for number in range(count)]
    updates[bad] = DELETE, multicast(60_000)
    named = f"UNKNOWN: [0-9]+ of {count} updates failed; number {bad}: there is no multicast group"
    with pytest.raises(CallError, match=named) as caught:
        client.write(*updates, atomicity=atomicity)
    parts = caught.value.parts
    if count == 300:
        assert len(parts) == count
    if parts:
        assert caught.value.codes()[bad] == "NOT_FOUND"
        assert "no multicast group 60000" in parts[bad].message
    elsewhere = "OK" if atomicity == "CONTINUE_ON_ERROR" else "ABORTED"
    assert {code for n, code in enumerate(caught.value.codes()) if n != bad} <= {elsewhere}


def test_a_long_message_is_cut(started: Started) -> None:
    world, client = started
    text = "n" * 20_000
    with pytest.raises(CallError, match=r"^INVALID_ARGUMENT: .*n\.\.\. \[\]$"):
        client.push(world.p4info, world.device_config + text.encode())


def filled(client: Client) -> dict[str, p4r.Entity]:
    """Entities of every kind, installed."""
    entities = {
        "entry": client.entry(
            "lpm_table",
            client.action("counted_forward", port=1),
            lpm={"destination": (0xAB << 40, 8)},
            metadata=b"x",
        ),
        "everything": client.entry("lpm_table", client.action("drop")),
        "metered": client.entry(
            "metered_table",
            client.action("metered_forward", port=1),
            exact={"source": 1},
            meter_config=p4r.MeterConfig(cir=1, cburst=2, pir=3, pburst=4),
        ),
        "member": p4r.Entity(
            action_profile_member=p4r.ActionProfileMember(
                action_profile_id=client.id("next_hops"),
                member_id=1,
                action=client.action("forward", port=1),
            )
        ),
        "group": multicast(1, (1, 0)),
        "session": clone_session(5, (1, 0)),
        "digest": p4r.Entity(digest_entry=p4r.DigestEntry(digest_id=client.id("learn_t"))),
    }
    client.insert(*entities.values())
    key = entities["entry"].table_entry
    client.modify(
        p4r.Entity(
            direct_counter_entry=p4r.DirectCounterEntry(
                table_entry=key, data=p4r.CounterData(packet_count=9)
            )
        )
    )
    return entities


FAILING = (MODIFY, multicast(99, (1, 0)))


def test_a_failed_batch_leaves_the_state_as_it_was(started: Started) -> None:
    _, client = started
    entities = filled(client)
    before = state(client)
    register = p4r.RegisterEntry(
        register_id=client.id("totals"), data=p4d.P4Data(bitstring=b"\x09")
    )
    counter = p4r.CounterEntry(counter_id=client.id("seen"), data=p4r.CounterData(packet_count=3))
    changed = client.entry("lpm_table", client.action("drop"), lpm={"destination": (0xAB << 40, 8)})
    default = client.entry("exact_table", client.action("drop"), is_default_action=True)
    const = client.entry("const_table")
    with pytest.raises(CallError) as caught:
        client.write(
            *((DELETE, entity) for name, entity in entities.items() if name != "entry"),
            (MODIFY, changed),
            (DELETE, changed),
            (MODIFY, default),
            (INSERT, multicast(2, (1, 0))),
            (MODIFY, p4r.Entity(register_entry=register)),
            (MODIFY, p4r.Entity(counter_entry=counter)),
            FAILING,
            (INSERT, const),
            atomicity="ROLLBACK_ON_ERROR",
        )
    codes = caught.value.codes()
    assert codes[-2] == "NOT_FOUND"
    assert {*codes[:-2], codes[-1]} == {"ABORTED"}
    assert state(client) == before


def test_a_batch_that_fails_at_a_meter_leaves_the_entry_as_it_was(started: Started) -> None:
    _, client = started
    filled(client)
    before = state(client)
    changed = client.entry(
        "metered_table",
        client.action("metered_forward", port=2),
        exact={"source": 1},
        meter_config=p4r.MeterConfig(cir=5, pir=1),
    )
    with pytest.raises(CallError) as caught:
        client.write(
            (INSERT, multicast(2, (1, 0))), (MODIFY, changed), atomicity="ROLLBACK_ON_ERROR"
        )
    assert caught.value.codes() == ["ABORTED", "INVALID_ARGUMENT"]
    assert state(client) == before


def test_a_batch_without_an_error_stays(started: Started) -> None:
    _, client = started
    client.write(
        (INSERT, multicast(1, (1, 0))), (INSERT, multicast(2)), atomicity="ROLLBACK_ON_ERROR"
    )
    assert client.read(multicast(0)) == [multicast(1, (1, 0)), multicast(2)]


def test_atomic_batches_are_not_supported(started: Started) -> None:
    _, client = started
    with pytest.raises(CallError, match="UNIMPLEMENTED: DATAPLANE_ATOMIC"):
        client.write((INSERT, multicast(1)), atomicity="DATAPLANE_ATOMIC")


def test_an_empty_batch_is_fine(started: Started) -> None:
    _, client = started
    client.write()


# --- requests at the same time -----------------------------------------------------------------


@pytest.fixture
def _eager_threads() -> Iterator[None]:
    """Threads take turns at every chance, so that a missing lock is noticed."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


GROUPS = 20


def groups(kind: int) -> list[tuple[int, p4r.Entity]]:
    return [(kind, multicast(number, (1, 0))) for number in range(1, GROUPS + 1)]


@pytest.mark.usefixtures("_eager_threads")
def test_batches_do_not_mix(started: Started) -> None:
    """Each inserts what another would find there, had it begun before the other's end."""
    _, client = started

    def write() -> None:
        for _ in range(20):
            client.write(*groups(INSERT), *groups(DELETE))

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(write) for _ in range(4)]:
            done.result()


@pytest.mark.usefixtures("_eager_threads")
def test_a_read_sees_a_whole_batch_or_none_of_it(started: Started) -> None:
    _, client = started

    def write() -> None:
        for _ in range(40):
            client.write(*groups(INSERT))
            client.write(*groups(DELETE))

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(write)
        sizes = {len(client.read(multicast(0)))}
        while not done.done():
            sizes.add(len(client.read(multicast(0))))
        done.result()
    assert sizes <= {0, GROUPS}
