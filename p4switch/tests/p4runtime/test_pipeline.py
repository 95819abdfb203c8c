"""Pushing pipelines and reading them back."""

from __future__ import annotations

import pytest
from finsy.proto import p4i, p4r

from p4switch.device.loading import checked_program
from p4switch.p4runtime.p4info import p4info
from p4switch.targets.v1model.engine import CounterValue
from tests.support.p4runtime_world import CallError, Client, World, multicast, running, served

world = pytest.fixture(served)
started = pytest.fixture(running)

ENTRY = {"exact": {"destination": 1}}


def primary(world: World) -> Client:
    client = world.client()
    client.arbitrate()
    return client


def test_before_a_pipeline_requests_fail(world: World) -> None:
    client = primary(world)
    for call in (
        lambda: client.get_pipeline(),
        lambda: client.read(p4r.Entity(table_entry=p4r.TableEntry())),
        lambda: client.insert(multicast(1, (1, 0))),
    ):
        with pytest.raises(CallError, match="FAILED_PRECONDITION: No forwarding pipeline config"):
            call()


def test_a_pushed_pipeline_runs_and_can_be_read_back(world: World) -> None:
    client = primary(world)
    client.push(world.p4info, world.device_config, cookie=77)
    client.insert(client.entry("exact_table", client.action("forward", port=2), **ENTRY))
    whole = client.get_pipeline()
    assert whole.p4info == world.p4info
    assert whole.p4_device_config == world.device_config
    assert whole.cookie.cookie == 77
    assert world.plane.engine is not None


def test_a_program_in_bmv2s_old_envelope_runs(world: World) -> None:
    """As p4lang's tutorials push it: p4.tmp.P4DeviceConfig with `reassign` and `device_data`."""
    client = primary(world)
    length, varint = len(world.device_config), b""
    while length > 0x7F:
        varint, length = varint + bytes([length & 0x7F | 0x80]), length >> 7
    envelope = b"\x08\x01\x1a" + varint + bytes([length]) + world.device_config
    client.push(world.p4info, envelope)
    assert world.plane.engine is not None
    for damaged in (envelope[:-1], b"\x08\x01", b"\x08\x01\x18\x05"):
        with pytest.raises(CallError, match=r"INVALID_ARGUMENT: .*expected the output of"):
            client.push(world.p4info, damaged)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("ALL", {"p4info", "p4_device_config", "cookie"}),
        ("COOKIE_ONLY", {"cookie"}),
        ("P4INFO_AND_COOKIE", {"p4info", "cookie"}),
        ("DEVICE_CONFIG_AND_COOKIE", {"p4_device_config", "cookie"}),
    ],
)
def test_response_types(world: World, kind: str, fields: set[str]) -> None:
    client = primary(world)
    client.push(world.p4info, world.device_config, cookie=5)
    config = client.get_pipeline(kind)
    assert {field.name for field, _ in config.ListFields()} == fields


def test_configs_beyond_grpcs_default_size_are_taken(world: World) -> None:
    client = primary(world)
    client.push(world.p4info, world.device_config + b"//" + bytes([32]) * (5 << 20), "VERIFY")


def test_verify_changes_nothing(world: World) -> None:
    client = primary(world)
    client.push(world.p4info, world.device_config, "VERIFY")
    assert world.plane.engine is None
    with pytest.raises(CallError, match="FAILED_PRECONDITION"):
        client.get_pipeline()


def test_writes_after_save_take_effect_with_commit(started: tuple[World, Client]) -> None:
    world, client = started
    running = world.plane.engine
    client.insert(client.entry("exact_table", client.action("drop"), **ENTRY))
    client.push(world.p4info, world.device_config, "VERIFY_AND_SAVE", cookie=9)
    entry = client.entry("exact_table", client.action("forward", port=4), **ENTRY)
    client.insert(entry)
    assert world.plane.engine is running
    client.set_pipeline("COMMIT")
    assert world.plane.engine is not running
    assert client.read(client.entry("exact_table")) == [entry]
    assert client.get_pipeline("COOKIE_ONLY").cookie.cookie == 9


def test_another_commit_forgets_what_was_saved(started: tuple[World, Client]) -> None:
    world, client = started
    client.push(world.p4info, world.device_config, "VERIFY_AND_SAVE", cookie=9)
    client.push(world.p4info, world.device_config, "VERIFY_AND_COMMIT", cookie=10)
    assert client.get_pipeline("COOKIE_ONLY").cookie.cookie == 10
    with pytest.raises(CallError, match="NOT_FOUND"):
        client.set_pipeline("COMMIT")


def test_commit_needs_a_saved_config_and_takes_none(started: tuple[World, Client]) -> None:
    world, client = started
    with pytest.raises(CallError, match="NOT_FOUND: COMMIT: no config was saved"):
        client.set_pipeline("COMMIT")
    with pytest.raises(CallError, match="INVALID_ARGUMENT: COMMIT takes no config"):
        client.push(world.p4info, world.device_config, "COMMIT")


def test_commit_clears_state(started: tuple[World, Client]) -> None:
    world, client = started
    client.insert(client.entry("exact_table", client.action("drop"), **ENTRY), multicast(1, (1, 0)))
    client.push(world.p4info, world.device_config)
    assert client.read(client.entry("exact_table")) == []
    request = p4r.Entity(packet_replication_engine_entry=p4r.PacketReplicationEngineEntry())
    assert client.read(request) == []


def test_reconcile_keeps_state(started: tuple[World, Client]) -> None:
    world, client = started
    entries = [
        client.entry("exact_table", client.action("forward", port=4), metadata=b"note", **ENTRY),
        client.entry("lpm_table", client.action("drop"), lpm={"destination": (1 << 40, 8)}),
        multicast(1, (1, 0), (2, 7)),
    ]
    client.insert(*entries)
    default = client.entry("exact_table", client.action("drop"), is_default_action=True)
    client.modify(default)
    before = world.plane.engine
    client.push(world.p4info, world.device_config, "RECONCILE_AND_COMMIT")
    assert world.plane.engine is not before
    assert client.read(client.entry("exact_table")) == entries[:1]
    assert client.read(client.entry("lpm_table")) == entries[1:2]
    assert client.read(client.entry("exact_table", is_default_action=True)) == [default]
    assert client.read(entries[2]) == entries[2:]


def test_reconcile_keeps_registers_and_counters_of_the_same_name(
    started: tuple[World, Client],
) -> None:
    world, client = started
    before = world.plane.engine
    assert before is not None
    before.write_register("TestIngress.totals", 2, 7)
    before.write_register("TestIngress.totals", 3, 8)
    before.write_register("TestIngress.offsets", 1, 9)
    before.write_counter("TestIngress.seen", 3, CounterValue(5, 600))
    # One register is smaller, the other has another name.
    changed = world.device_config.replace(b"(4) totals", b"(3) totals")
    changed = changed.replace(b"offsets", b"shifted")
    client.push(p4info(checked_program(changed)), changed, "RECONCILE_AND_COMMIT")
    after = world.plane.engine
    assert after is not None
    assert after is not before
    assert [after.read_register("TestIngress.totals", i) for i in range(3)] == [0, 0, 7]
    assert [after.read_register("TestIngress.shifted", i) for i in range(4)] == [0] * 4
    assert after.read_counter("TestIngress.seen", 3) == CounterValue(5, 600)


def test_a_program_that_does_not_compile_is_refused_with_its_place(world: World) -> None:
    client = primary(world)
    broken = world.device_config.replace(b"seen . count", b"seen.count").replace(
        b"seen.count", b"seen.cuont"
    )
    assert broken != world.device_config
    with pytest.raises(CallError, match=r"INVALID_ARGUMENT: .*everything\.p4:\d+:\d+: error"):
        client.push(world.p4info, broken)


def test_tables_that_share_a_profile_and_list_other_actions_are_refused(world: World) -> None:
    shared = world.device_config.replace(b"implementation = next_hops", b"implementation = paths")
    assert shared != world.device_config
    problem = r"tables that share 'TestIngress\.paths' must list the same actions in one order"
    with pytest.raises(CallError, match=rf"INVALID_ARGUMENT: .*p4:\d+:\d+: .*{problem}"):
        primary(world).push(world.p4info, shared)


@pytest.mark.parametrize("config", [b"", b'{"program": "x.json"}', b"#include <core.p4>\n"])
def test_other_device_configs_are_refused(world: World, config: bytes) -> None:
    with pytest.raises(CallError, match=r"INVALID_ARGUMENT: .*(p4switch compile|as p4c writes)"):
        primary(world).push(world.p4info, config)


def test_a_config_cannot_include_files(world: World) -> None:
    sneaky = world.device_config + b'\n#include "/etc/passwd"\n'
    with pytest.raises(CallError, match=r"INVALID_ARGUMENT: .*expected a line marker"):
        primary(world).push(world.p4info, sneaky)


@pytest.mark.slow
def test_the_p4info_must_be_the_programs(world: World) -> None:
    client = primary(world)
    other = p4i.P4Info()
    other.CopyFrom(world.p4info)
    other.actions[0].params.add(id=9, name="extra", bitwidth=3)
    with pytest.raises(CallError, match=r"INVALID_ARGUMENT: the P4Info is not .* action '"):
        client.push(other, world.device_config)
    del other.tables[0]
    other.actions[0].CopyFrom(world.p4info.actions[0])
    with pytest.raises(CallError, match=r"table '.*' \(id 0x02\w+\) of the program is missing"):
        client.push(other, world.device_config)
    with pytest.raises(CallError, match="of the program is missing"):
        client.push(p4i.P4Info(), world.device_config)


def test_a_p4info_may_differ_in_order_and_documentation(world: World) -> None:
    other = p4i.P4Info()
    other.CopyFrom(world.p4info)
    other.tables.sort(key=lambda table: -table.preamble.id)
    other.tables[0].preamble.doc.brief = "well said"
    other.pkg_info.version = "2"
    client = primary(world)
    client.push(other, world.device_config)
    assert client.get_pipeline().p4info == other


def test_only_the_primary_pushes(world: World) -> None:
    primary(world)
    with pytest.raises(CallError, match="PERMISSION_DENIED"):
        world.client(election_id=0).push(world.p4info, world.device_config)


def test_an_action_and_a_config_are_needed(world: World) -> None:
    client = primary(world)
    with pytest.raises(CallError, match="INVALID_ARGUMENT: unknown action 0"):
        client.push(world.p4info, world.device_config, "UNSPECIFIED")
    with pytest.raises(CallError, match="INVALID_ARGUMENT: the request has no config"):
        client.set_pipeline("VERIFY_AND_COMMIT")


def test_capabilities(world: World) -> None:
    reply = world.client().stub.Capabilities(p4r.CapabilitiesRequest())
    assert reply.p4runtime_api_version == "1.5.0"
