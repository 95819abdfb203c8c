"""Table entries: inserting, checking, reading."""

from __future__ import annotations

from typing import Any

import pytest
from finsy.proto import p4r

from tests.support.p4runtime_world import CallError, Client, World, running

started = pytest.fixture(running)
Started = tuple[World, Client]

TABLES = p4r.Entity(table_entry=p4r.TableEntry())


def refused(client: Client, *entities: p4r.Entity, how: str = "insert") -> CallError:
    """The error of a write that must fail."""
    with pytest.raises(CallError, match="UNKNOWN") as caught:
        getattr(client, how)(*entities)
    return caught.value


def ternary_entry(client: Client, action: p4r.Action | None, **rest: Any) -> p4r.Entity:
    return client.entry(
        "ternary_table",
        action,
        ternary={"source": (0x20, 0xF0)},
        range_={"ether_type": (5, 9)},
        optional={"port": 3},
        **rest,
    )


def test_entries_of_every_kind_read_back_as_written(started: Started) -> None:
    _, client = started
    entries = [
        client.entry("exact_table", client.action("forward", port=2), exact={"destination": 0}),
        client.entry(
            "lpm_table",
            client.action("counted_forward", port=0x1FE),
            lpm={"destination": (0xAB << 40, 8)},
            idle_timeout_ns=5_000_000_000,
            metadata=b"who",
            controller_metadata=42,
        ),
        ternary_entry(client, client.action("drop"), priority=10),
        client.entry("ternary_table", client.action("forward", port=1), priority=3),
    ]
    client.insert(*entries)
    for entry in entries[:2]:
        assert client.read(
            p4r.Entity(table_entry=p4r.TableEntry(table_id=entry.table_entry.table_id))
        ) == [entry]
    assert client.read(client.entry("ternary_table")) == entries[2:]
    const = [e for e in client.read(TABLES) if e.table_entry.is_const]
    assert [e for e in client.read(TABLES) if e not in const] == entries
    assert len(const) == 2


def test_byte_strings_need_not_be_canonical_but_come_back_so(started: Started) -> None:
    _, client = started
    entry = client.entry("exact_table", client.action("forward", port=2), exact={"destination": 7})
    long = p4r.Entity()
    long.CopyFrom(entry)
    long.table_entry.match[0].exact.value = b"\0" * 9 + b"\x07"
    long.table_entry.action.action.params[0].value = b"\0\0\x02"
    client.insert(long)
    assert client.read(client.entry("exact_table")) == [entry]
    assert refused(client, entry).codes() == ["ALREADY_EXISTS"]


@pytest.mark.parametrize("value", [b"", b"\x01\0\0\0\0\0\0"])
def test_values_that_do_not_fit_are_refused(started: Started, value: bytes) -> None:
    _, client = started
    entry = client.entry("exact_table", client.action("drop"), exact={"destination": 7})
    entry.table_entry.match[0].exact.value = value
    assert refused(client, entry).codes() == ["INVALID_ARGUMENT"]


def test_parameters_that_do_not_fit_are_refused(started: Started) -> None:
    _, client = started
    entry = client.entry(
        "exact_table", client.action("forward", port=512), exact={"destination": 7}
    )
    error = refused(client, entry)
    assert error.codes() == ["INVALID_ARGUMENT"]
    assert "parameter 'port'" in error.parts[0].message


def test_insert_modify_delete(started: Started) -> None:
    _, client = started
    old = client.entry("exact_table", client.action("drop"), exact={"destination": 7})
    new = client.entry("exact_table", client.action("forward", port=2), exact={"destination": 7})
    assert refused(client, new, how="modify").codes() == ["NOT_FOUND"]
    assert refused(client, old, how="delete").codes() == ["NOT_FOUND"]
    client.insert(old)
    client.modify(new)
    assert client.read(client.entry("exact_table")) == [new]
    client.delete(old)
    assert client.read(client.entry("exact_table")) == []


def test_delete_looks_at_the_key_alone(started: Started) -> None:
    _, client = started
    entry = client.entry("exact_table", client.action("drop"), exact={"destination": 7})
    client.insert(entry)
    entry.table_entry.action.action.action_id = 12345
    entry.table_entry.counter_data.packet_count = 3
    client.delete(entry)


def test_modify_without_an_action_is_refused(started: Started) -> None:
    _, client = started
    lpm = {"destination": (0xAB << 40, 8)}
    old = client.entry("lpm_table", client.action("drop"), lpm=lpm, metadata=b"old")
    client.insert(old)
    bare = client.entry("lpm_table", lpm=lpm, metadata=b"new", idle_timeout_ns=7)
    error = refused(client, bare, how="modify")
    assert error.codes() == ["INVALID_ARGUMENT"]
    assert "needs the entry's action" in error.parts[0].message
    assert client.read(client.entry("lpm_table")) == [old]


def test_modify_gives_an_entry_s_whole_state(started: Started) -> None:
    _, client = started
    lpm = {"destination": (0xAB << 40, 8)}
    drop = client.action("drop")
    client.insert(
        client.entry(
            "lpm_table", drop, lpm=lpm, metadata=b"m", controller_metadata=4, idle_timeout_ns=7
        )
    )
    client.modify(client.entry("lpm_table", drop, lpm=lpm))
    assert client.read(client.entry("lpm_table")) == [client.entry("lpm_table", drop, lpm=lpm)]


def test_no_object_has_id_0(started: Started) -> None:
    _, client = started
    no_action = client.entry("exact_table", p4r.Action(), exact={"destination": 7})
    for entity in (
        p4r.Entity(table_entry=p4r.TableEntry()),
        no_action,
        p4r.Entity(action_profile_member=p4r.ActionProfileMember(member_id=1)),
        p4r.Entity(action_profile_group=p4r.ActionProfileGroup(group_id=1)),
        p4r.Entity(counter_entry=p4r.CounterEntry()),
        p4r.Entity(direct_counter_entry=p4r.DirectCounterEntry()),
        p4r.Entity(meter_entry=p4r.MeterEntry()),
        p4r.Entity(direct_meter_entry=p4r.DirectMeterEntry()),
        p4r.Entity(register_entry=p4r.RegisterEntry()),
        p4r.Entity(value_set_entry=p4r.ValueSetEntry()),
    ):
        assert refused(client, entity, how="modify").codes() == ["INVALID_ARGUMENT"], entity
    digest = p4r.Entity(digest_entry=p4r.DigestEntry())
    assert refused(client, digest).codes() == ["NOT_FOUND"]


@pytest.mark.parametrize("how", ["insert", "modify"])
def test_negative_idle_timeouts_are_refused(started: Started, how: str) -> None:
    _, client = started
    lpm = {"destination": (0xAB << 40, 8)}
    if how == "modify":
        client.insert(client.entry("lpm_table", client.action("drop"), lpm=lpm))
    entry = client.entry("lpm_table", client.action("drop"), lpm=lpm, idle_timeout_ns=-5)
    assert refused(client, entry, how=how).codes() == ["INVALID_ARGUMENT"]


def test_a_full_table_takes_no_more(started: Started) -> None:
    _, client = started
    entries = [
        client.entry("exact_table", client.action("drop"), exact={"destination": number})
        for number in range(5)
    ]
    assert refused(client, *entries).codes() == ["OK"] * 4 + ["RESOURCE_EXHAUSTED"]


def bad_entries(client: Client) -> dict[str, tuple[p4r.Entity, str]]:
    """Entries that cannot be, by what is wrong; with their error codes."""
    drop, forward = client.action("drop"), client.action("forward", port=1)
    exact = {"destination": 7}
    twice = client.entry("exact_table", drop, exact=exact)
    twice.table_entry.match.append(twice.table_entry.match[0])
    unknown_field = client.entry("exact_table", drop, exact=exact)
    unknown_field.table_entry.match[0].field_id = 9
    wrong_kind = client.entry("exact_table", drop)
    wrong_kind.table_entry.match.add(field_id=1).optional.value = b"\1"
    missing = client.entry("exact_table", client.action("forward"), exact=exact)
    extra = client.entry("exact_table", forward, exact=exact)
    extra.table_entry.action.action.params.add(param_id=2, value=b"\1")
    unknown_table = client.entry("exact_table", drop, exact=exact)
    unknown_table.table_entry.table_id += 1
    member = client.entry("exact_table", exact=exact)
    member.table_entry.action.action_profile_member_id = 1
    bad = "INVALID_ARGUMENT"
    return {
        "no exact key": (client.entry("exact_table", drop), bad),
        "field twice": (twice, bad),
        "unknown field": (unknown_field, bad),
        "wrong kind": (wrong_kind, bad),
        "unknown table": (unknown_table, bad),
        "no action": (client.entry("exact_table", exact=exact), bad),
        "action of another table": (
            client.entry("exact_table", client.action("counted_forward", port=1), exact=exact),
            bad,
        ),
        "parameter missing": (missing, bad),
        "parameter unknown": (extra, bad),
        "default-only action": (
            client.entry("exact_table", client.action("NoAction"), exact=exact),
            "PERMISSION_DENIED",
        ),
        "member without a profile": (member, bad),
        "priority on exact": (client.entry("exact_table", drop, exact=exact, priority=1), bad),
        "no priority": (ternary_entry(client, drop), bad),
        "negative priority": (ternary_entry(client, drop, priority=-1), bad),
        "bits outside the mask": (
            client.entry("ternary_table", drop, ternary={"source": (0xFF, 0xF0)}, priority=1),
            bad,
        ),
        "empty mask": (
            client.entry("ternary_table", drop, ternary={"source": (0, 0)}, priority=1),
            bad,
        ),
        "empty range": (
            client.entry("ternary_table", drop, range_={"ether_type": (9, 5)}, priority=1),
            bad,
        ),
        "full range": (
            client.entry("ternary_table", drop, range_={"ether_type": (0, 0xFFFF)}, priority=1),
            bad,
        ),
        "bits beyond the prefix": (
            client.entry("lpm_table", drop, lpm={"destination": (1, 8)}),
            bad,
        ),
        "prefix of 0": (client.entry("lpm_table", drop, lpm={"destination": (0, 0)}), bad),
        "prefix too long": (client.entry("lpm_table", drop, lpm={"destination": (0, 49)}), bad),
        "is_const": (client.entry("exact_table", drop, exact=exact, is_const=True), bad),
        "timeout without support": (
            client.entry("exact_table", drop, exact=exact, idle_timeout_ns=1),
            bad,
        ),
        "no keys": (client.entry("keyless_table", forward), bad),
        "const table": (
            client.entry("const_table", forward, ternary={"ether_type": (1, 1)}, priority=1),
            "PERMISSION_DENIED",
        ),
        "counter where there is none": (
            client.entry("exact_table", drop, exact=exact, counter_data=p4r.CounterData()),
            bad,
        ),
        "meter where there is none": (
            client.entry("exact_table", drop, exact=exact, meter_config=p4r.MeterConfig()),
            bad,
        ),
    }


def test_bad_entries_are_refused(started: Started) -> None:
    _, client = started
    cases = bad_entries(client)
    error = refused(client, *(entry for entry, _ in cases.values()))
    got = dict(zip(cases, error.codes(), strict=True))
    assert got == {name: code for name, (_, code) in cases.items()}
    assert [e for e in client.read(TABLES) if not e.table_entry.is_const] == []


def test_a_missing_exact_key_is_named(started: Started) -> None:
    _, client = started
    error = refused(client, client.entry("exact_table", client.action("drop")))
    assert error.parts[0].message == (
        "table 'TestIngress.exact_table': exact key 'destination' is not given"
    )


def test_priorities_decide_and_equal_keys_of_two_priorities_coexist(started: Started) -> None:
    world, client = started
    client.insert(
        ternary_entry(client, client.action("forward", port=1), priority=1),
        ternary_entry(client, client.action("forward", port=2), priority=2),
    )
    packet = bytes(6) + (0x25).to_bytes(6, "big") + b"\0\x07"
    assert world.plane.process([(3, packet)]) == [(2, packet)]
    client.delete(ternary_entry(client, None, priority=2))
    assert world.plane.process([(3, packet)]) == [(1, packet)]


# --- default entries and const tables ----------------------------------------------------------


def test_default_actions(started: Started) -> None:
    world, client = started
    default = client.entry(
        "exact_table", client.action("forward", port=6), is_default_action=True, metadata=b"x"
    )
    client.modify(default)
    assert client.read(client.entry("exact_table", is_default_action=True)) == [default]
    assert client.read(client.entry("exact_table")) == []
    packet = bytes(14)
    assert world.plane.process([(3, packet)]) == [(6, packet)]
    client.modify(client.entry("exact_table", is_default_action=True))
    reset = client.entry("exact_table", client.action("NoAction"), is_default_action=True)
    assert client.read(client.entry("exact_table", is_default_action=True)) == [reset]


def test_bad_default_entries_are_refused(started: Started) -> None:
    _, client = started
    drop = client.action("drop")
    default = client.entry("exact_table", drop, is_default_action=True)
    assert refused(client, default).codes() == ["INVALID_ARGUMENT"]
    assert refused(client, default, how="delete").codes() == ["INVALID_ARGUMENT"]
    cases = [
        (client.entry("exact_table", drop, is_default_action=True, priority=1), "INVALID_ARGUMENT"),
        (
            client.entry("exact_table", drop, exact={"destination": 1}, is_default_action=True),
            "INVALID_ARGUMENT",
        ),
        (client.entry("lpm_table", drop, is_default_action=True), "PERMISSION_DENIED"),
        (client.entry("ternary_table", drop, is_default_action=True), "PERMISSION_DENIED"),
        (
            client.entry("lpm_table", is_default_action=True, idle_timeout_ns=1),
            "INVALID_ARGUMENT",
        ),
    ]
    error = refused(client, *(entry for entry, _ in cases), how="modify")
    assert error.codes() == [code for _, code in cases]


def test_const_entries_can_be_read_with_priorities_as_p4c_gives_them(started: Started) -> None:
    _, client = started
    entries = client.read(client.entry("const_table"))
    assert [e.table_entry.priority for e in entries] == [2, 1]
    assert [e.table_entry.match[0].ternary.value for e in entries] == [b"\x08\0", b"\x86\xdd"]
    assert all(e.table_entry.is_const for e in entries)


def test_const_tables_cannot_be_written(started: Started) -> None:
    _, client = started
    [entry, _] = client.read(client.entry("const_table"))
    entry.table_entry.is_const = False
    for how in ("insert", "modify", "delete"):
        assert refused(client, entry, how=how).codes() == ["PERMISSION_DENIED"], how
    entry.table_entry.ClearField("action")
    client.modify(entry)  # Its direct resources, had it any.
    client.modify(client.entry("const_table", client.action("NoAction"), is_default_action=True))


def test_entries_of_one_priority_may_overlap(started: Started) -> None:
    world, client = started
    client.insert(
        client.entry("ternary_table", client.action("forward", port=1), priority=4),
        ternary_entry(client, client.action("forward", port=2), priority=4),
    )
    packet = bytes(6) + (0x25).to_bytes(6, "big") + b"\0\x07"
    [(port, _)] = world.plane.process([(3, packet)])
    assert port in (1, 2)


# --- wildcard reads ----------------------------------------------------------------------------


def test_reads_filter_by_match_priority_action_and_metadata(started: Started) -> None:
    _, client = started
    one = ternary_entry(client, client.action("drop"), priority=1, metadata=b"a")
    two = ternary_entry(client, client.action("forward", port=1), priority=2, metadata=b"b")
    three = client.entry("ternary_table", client.action("drop"), priority=2)
    client.insert(one, two, three)
    assert client.read(client.entry("ternary_table", priority=2)) == [two, three]
    assert client.read(ternary_entry(client, None)) == [one, two]
    assert client.read(ternary_entry(client, None, priority=1)) == [one]
    assert client.read(client.entry("ternary_table", metadata=b"b")) == [two]
    by_action = client.entry("ternary_table")
    by_action.table_entry.action.action.action_id = client.id("drop")
    assert client.read(by_action) == [one, three]


def test_reads_filter_by_controller_metadata(started: Started) -> None:
    _, client = started
    one, two = (
        client.entry(
            "exact_table", client.action("drop"), exact={"destination": n}, controller_metadata=n
        )
        for n in (1, 2)
    )
    client.insert(one, two)
    assert client.read(client.entry("exact_table", controller_metadata=2)) == [two]


def test_reads_of_defaults_take_no_key_and_no_times(started: Started) -> None:
    _, client = started
    time = p4r.TableEntry.IdleTimeout()
    for entity in (
        client.entry("exact_table", exact={"destination": 1}, is_default_action=True),
        client.entry("ternary_table", priority=1, is_default_action=True),
        client.entry("lpm_table", idle_timeout_ns=1, is_default_action=True),
        client.entry("lpm_table", time_since_last_hit=time, is_default_action=True),
    ):
        with pytest.raises(CallError, match="INVALID_ARGUMENT"):
            client.read(entity)


def test_times_are_read_only_where_there_are_timeouts(started: Started) -> None:
    _, client = started
    time = p4r.TableEntry.IdleTimeout()
    with pytest.raises(CallError, match="INVALID_ARGUMENT"):
        client.read(client.entry("exact_table", time_since_last_hit=time))
    client.insert(client.entry("lpm_table", client.action("drop")))
    assert not client.read(client.entry("lpm_table"))[0].table_entry.HasField("time_since_last_hit")
    written = client.entry(
        "lpm_table",
        client.action("drop"),
        lpm={"destination": (1 << 40, 8)},
        time_since_last_hit=time,
    )
    assert refused(client, written).codes() == ["INVALID_ARGUMENT"]


def test_a_read_names_a_kind_that_there_is(started: Started) -> None:
    _, client = started
    with pytest.raises(CallError, match="INVALID_ARGUMENT"):
        client.read(p4r.Entity())
    with pytest.raises(CallError, match="UNIMPLEMENTED"):
        client.read(p4r.Entity(extern_entry=p4r.ExternEntry()))


def test_the_same_entity_may_be_read_twice(started: Started) -> None:
    _, client = started
    entry = client.entry("exact_table", client.action("drop"), exact={"destination": 1})
    client.insert(entry)
    assert client.read(entry, client.entry("exact_table")) == [entry, entry]


def test_defaults_of_all_tables(started: Started) -> None:
    _, client = started
    defaults = client.read(p4r.Entity(table_entry=p4r.TableEntry(is_default_action=True)))
    assert len(defaults) == len(client.info.tables)
    assert all(entity.table_entry.is_default_action for entity in defaults)


def test_a_read_ends_with_the_plain_code_of_its_first_error(started: Started) -> None:
    _, client = started
    unknown = p4r.Entity(table_entry=p4r.TableEntry(table_id=0x02FFFFFF))
    with pytest.raises(CallError) as caught:
        client.read(TABLES, unknown, p4r.Entity(extern_entry=p4r.ExternEntry()))
    assert (caught.value.code, caught.value.parts) == ("INVALID_ARGUMENT", [])


def test_another_device_is_not_read(started: Started) -> None:
    _, client = started
    client.device_id = 4
    with pytest.raises(CallError, match="NOT_FOUND"):
        client.read(TABLES)
