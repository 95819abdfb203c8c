"""BMv2's run-time interface: in this process, over gRPC and over Thrift."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from p4switch.bmv2_runtime.grpc_calls import GrpcCalls
from p4switch.bmv2_runtime.records import Fault, Record
from p4switch.bmv2_runtime.runtime import CALLS
from p4switch.bmv2_runtime.thrift import (
    SERVICES,
    ThriftClient,
    ThriftError,
    ThriftServer,
    definitions,
)
from p4switch.ir import ActionChoice
from p4switch.targets.v1model.engine import (
    CloneSession,
    CounterValue,
    Engine,
    KeyMatch,
    MeterConfig,
    Replica,
    TableEntry,
)
from tests.support.machine import PATIENCE
from tests.support.p4runtime_world import World, served

pytest.importorskip("thriftpy2")

world = pytest.fixture(served)

Call = Callable[..., Any]
LPM, EXACT, TERNARY = (
    "TestIngress.lpm_table",
    "TestIngress.exact_table",
    "TestIngress.ternary_table",
)
HOPS, PATHS = "TestIngress.next_hops", "TestIngress.paths"
FORWARD, COUNTED = "TestIngress.forward", "TestIngress.counted_forward"
NO_OPTIONS = Record("BmAddEntryOptions")


@pytest.fixture
def engine(world: World) -> Engine:
    world.start()
    assert world.plane.engine is not None
    return world.plane.engine


@pytest.fixture(params=["direct", "grpc", "thrift"])
def call(world: World, engine: Engine, request: pytest.FixtureRequest) -> Iterator[Call]:
    """`call(method, *arguments)`: by all ways that lead to the interface."""
    client: Any
    if request.param == "direct":
        client, close = world.runtime, lambda: None
    elif request.param == "grpc":
        channel = grpc.insecure_channel(world.address)
        client, close = GrpcCalls(channel, PATIENCE), channel.close
    else:
        server = ThriftServer(world.runtime, 0)
        client = ThriftClient(server.port)

        def close() -> None:
            client.close()
            server.close()

    def calling(method: str, *arguments: Any) -> Any:
        if method.startswith("bm_"):
            service = "simple_pre_lag" if method.startswith("bm_mc") else "standard"
            return client.call(service, method, [0, *arguments] if METHODS[method] else arguments)
        return client.call("simple_switch", method, arguments)

    yield calling
    close()


METHODS = {
    method: "cxt_id"
    in getattr(definitions().Standard, f"{method}_args").thrift_spec.get(1, (0, ""))
    for method in definitions().Standard.thrift_services
} | dict.fromkeys(definitions().SimplePreLAG.thrift_services, True)
"""Whether calls have a context."""


def lpm(value: int, length: int) -> Record:
    parameter = Record("BmMatchParamLPM", key=value.to_bytes(6, "big"), prefix_length=length)
    return Record("BmMatchParam", type=1, lpm=parameter)


def exact(value: int) -> Record:
    parameter = Record("BmMatchParamExact", key=value.to_bytes(6, "big"))
    return Record("BmMatchParam", type=0, exact=parameter)


def refusal(call: Call, *arguments: Any) -> str:
    with pytest.raises(Fault) as caught:
        call(*arguments)
    return f"{caught.value.kind} {caught.value.code.name}"


def test_every_call_of_the_definitions_is_answered() -> None:
    named = {
        name for kind in SERVICES.values() for name in getattr(definitions(), kind).thrift_services
    }
    assert named == CALLS


def test_entries_keep_their_handles(call: Call, engine: Engine) -> None:
    first = call("bm_mt_add_entry", LPM, [lpm(0x0201 << 32, 16)], COUNTED, [b"\0\5"], NO_OPTIONS)
    second = call("bm_mt_add_entry", LPM, [lpm(0x0202 << 32, 16)], COUNTED, [b"\6"], NO_OPTIONS)
    assert (first, second) == (0, 1)
    call("bm_mt_delete_entry", LPM, 0)
    call("bm_mt_modify_entry", LPM, 1, COUNTED, [b"\0\x09"])
    [entry] = call("bm_mt_get_entries", LPM)
    assert entry.entry_handle == 1
    assert entry.match_key[0].lpm.key == bytes.fromhex("020200000000")
    assert entry.match_key[0].lpm.prefix_length == 16
    assert (entry.action_entry.action_name, entry.action_entry.action_data) == (
        COUNTED,
        [b"\0\x09"],
    )
    assert call("bm_mt_get_entry", LPM, 1).entry_handle == 1
    [installed] = engine.entries(LPM)
    assert installed.action == ActionChoice(0, (9,))
    third = call("bm_mt_add_entry", LPM, [lpm(0x0203 << 32, 16)], COUNTED, [b"\7"], NO_OPTIONS)
    assert third == 2
    assert call("bm_mt_get_num_entries", LPM) == 2
    call("bm_mt_clear_entries", LPM, False)
    assert engine.entries(LPM) == []


def test_entries_of_p4runtime_get_handles_too(call: Call, engine: Engine) -> None:
    engine.insert_entry(LPM, TableEntry((KeyMatch(0, any=True),), ActionChoice(2)))
    assert [entry.entry_handle for entry in call("bm_mt_get_entries", LPM)] == [0]
    call("bm_mt_delete_entry", LPM, 0)
    assert engine.entries(LPM) == []
    assert refusal(call, "bm_mt_delete_entry", LPM, 0) == "InvalidTableOperation INVALID_HANDLE"


def test_the_smaller_priority_wins(call: Call, engine: Engine) -> None:
    def add(priority: int, port: int) -> int:
        ternary = Record("BmMatchParamTernary", key=b"\xff" * 6, mask=b"\0" * 5 + b"\x01")
        between = Record("BmMatchParamRange", start=b"\0\0", end_=b"\0\5")
        anything = Record("BmMatchParamTernary", key=b"\0\0", mask=b"\0\0")
        match = [
            Record("BmMatchParam", type=2, ternary=ternary),
            Record("BmMatchParam", type=4, range=between),
            Record("BmMatchParam", type=2, ternary=anything),
        ]
        options = Record("BmAddEntryOptions", priority=priority)
        return int(call("bm_mt_add_entry", TERNARY, match, FORWARD, [bytes([0, port])], options))

    add(10, 1), add(20, 2)
    ten, twenty = engine.entries(TERNARY)
    assert ten.priority > twenty.priority
    assert ten.matches == (KeyMatch(1, mask=1), KeyMatch(0, high=5), KeyMatch(any=True))
    shown = call("bm_mt_get_entries", TERNARY)
    assert [entry.options.priority for entry in shown] == [10, 20]
    assert shown[0].match_key[2].ternary.mask == b"\0\0"


def test_defaults(call: Call, engine: Engine) -> None:
    assert call("bm_mt_get_default_entry", LPM).action_name == "NoAction"
    call("bm_mt_set_default_action", LPM, COUNTED, [b"\0\3"])
    assert engine.default(LPM).arguments == (3,)
    call("bm_mt_reset_default_entry", LPM)
    assert call("bm_mt_get_default_entry", LPM).action_name == "NoAction"
    code = refusal(call, "bm_mt_set_default_action", TERNARY, FORWARD, [b"\1"])
    assert code == "InvalidTableOperation DEFAULT_ACTION_IS_CONST"


def test_action_profiles(call: Call, engine: Engine) -> None:
    member = call("bm_mt_act_prof_add_member", HOPS, FORWARD, [b"\0\1"])
    handle = call(
        "bm_mt_indirect_add_entry", "TestIngress.hop_table", [exact(7)], member, NO_OPTIONS
    )
    [entry] = engine.entries("TestIngress.hop_table")
    assert entry.member == member
    assert refusal(call, "bm_mt_act_prof_delete_member", HOPS, member).endswith("MBR_STILL_USED")
    assert refusal(call, "bm_mt_act_prof_create_group", HOPS).endswith(
        "NO_ACTION_PROFILE_SELECTION"
    )
    call("bm_mt_indirect_delete_entry", "TestIngress.hop_table", handle)
    call("bm_mt_act_prof_delete_member", HOPS, member)
    assert engine.members(HOPS) == {}


def test_selectors(call: Call, engine: Engine) -> None:
    group = call("bm_mt_act_prof_create_group", PATHS)
    path = ("TestIngress.path_table", [exact(7)], group, NO_OPTIONS)
    assert refusal(call, "bm_mt_indirect_ws_add_entry", *path).endswith("EMPTY_GRP")
    members = [call("bm_mt_act_prof_add_member", PATHS, FORWARD, [bytes([p])]) for p in (1, 2)]
    for member in members:
        call("bm_mt_act_prof_add_member_to_group", PATHS, member, group)
    call("bm_mt_indirect_ws_add_entry", *path)
    assert engine.groups(PATHS) == {group: tuple(members)}
    call("bm_mt_act_prof_remove_member_from_group", PATHS, members[0], group)
    [found] = call("bm_mt_act_prof_get_groups", PATHS)
    assert (found.grp_handle, found.mbr_handles) == (group, members[1:])
    shown = call("bm_mt_act_prof_get_members", PATHS)
    assert [(m.mbr_handle, m.action_data) for m in shown] == [
        (members[0], [b"\0\1"]),
        (members[1], [b"\0\2"]),
    ]
    assert refusal(call, "bm_mt_act_prof_delete_group", PATHS, group).endswith("GRP_STILL_USED")


def test_a_program_that_is_read_again_keeps_what_was_set(
    world: World, call: Call, engine: Engine
) -> None:
    """Numbers begin at 0 here, in P4Runtime at 1."""
    hop = call("bm_mt_act_prof_add_member", HOPS, FORWARD, [b"\0\1"])
    call("bm_mt_indirect_add_entry", "TestIngress.hop_table", [exact(7)], hop, NO_OPTIONS)
    group = call("bm_mt_act_prof_create_group", PATHS)
    for port in (1, 2):
        path = call("bm_mt_act_prof_add_member", PATHS, FORWARD, [bytes([port])])
        call("bm_mt_act_prof_add_member_to_group", PATHS, path, group)
    call("bm_mt_indirect_ws_add_entry", "TestIngress.path_table", [exact(7)], group, NO_OPTIONS)
    call("bm_mc_mgrp_create", 3)
    call("bm_mc_node_associate", 3, call("bm_mc_node_create", 7, "110", ""))
    engine.set_clone_session(0, CloneSession((Replica(4),)))

    def state(of: Engine) -> list[Any]:
        tables = (of.entries("TestIngress.hop_table"), of.entries("TestIngress.path_table"))
        profiles = (of.members(HOPS), of.members(PATHS), of.groups(PATHS))
        return [*tables, *profiles, of.multicast_groups(), of.clone_sessions()]

    before = state(engine)
    world.clients[0].push(world.p4info, world.device_config, "RECONCILE_AND_COMMIT")
    assert world.plane.engine is not None
    assert world.plane.engine is not engine
    assert state(world.plane.engine) == before
    assert (hop, group) == (0, 0)


def test_cells(call: Call, engine: Engine) -> None:
    call("bm_register_write", "TestIngress.totals", 2, 255)
    assert call("bm_register_read_all", "TestIngress.totals") == [0, 0, 255, 0]
    call("bm_register_write_range", "TestIngress.totals", 0, 2, 7)
    assert [call("bm_register_read", "TestIngress.totals", i) for i in range(4)] == [7, 7, 255, 0]
    call("bm_register_reset", "TestIngress.totals")
    assert engine.read_register("TestIngress.totals", 2) == 0
    call("bm_counter_write", "TestIngress.seen", 1, Record("BmCounterValue", bytes=500, packets=4))
    assert engine.read_counter("TestIngress.seen", 1) == CounterValue(4, 500)
    value = call("bm_counter_read", "TestIngress.seen", 1)
    assert (value.packets, value.bytes) == (4, 500)
    call("bm_counter_reset_all", "TestIngress.seen")
    assert engine.read_counter("TestIngress.seen", 1) == CounterValue()
    assert refusal(call, "bm_counter_read", "TestIngress.seen", 8).endswith("INVALID_INDEX")
    assert refusal(call, "bm_register_read", "no", 8).endswith("INVALID_NAME")


def rates(*pairs: tuple[float, int]) -> list[Record]:
    return [Record("BmMeterRateConfig", units_per_micros=r, burst_size=b) for r, b in pairs]


def test_meters(call: Call, engine: Engine) -> None:
    call("bm_meter_array_set_rates", "TestIngress.rate", rates((0.5, 10), (1.0, 20)))
    assert engine.meter("TestIngress.rate", 3) == MeterConfig(500_000, 10, 1_000_000, 20)
    call("bm_meter_set_rates", "TestIngress.rate", 1, rates((0.25, 1), (0.5, 2)))
    shown = call("bm_meter_get_rates", "TestIngress.rate", 1)
    assert [(rate.units_per_micros, rate.burst_size) for rate in shown] == [(0.25, 1), (0.5, 2)]
    wrong = ("bm_meter_set_rates", "TestIngress.rate", 1, rates((2.0, 1), (1.0, 1)))
    assert refusal(call, *wrong) == "InvalidMeterOperation BAD_RATES_LIST"


def test_direct_counters_and_meters(call: Call, engine: Engine) -> None:
    handle = call("bm_mt_add_entry", LPM, [lpm(2 << 40, 8)], COUNTED, [b"\0\5"], NO_OPTIONS)
    call("bm_mt_write_counter", LPM, handle, Record("BmCounterValue", bytes=9, packets=1))
    assert call("bm_mt_read_counter", LPM, handle).bytes == 9
    call("bm_mt_reset_counters", LPM)
    assert call("bm_mt_read_counter", LPM, handle).packets == 0
    metered = "TestIngress.metered_table"
    action = ("TestIngress.metered_forward", [b"\0\1"], NO_OPTIONS)
    handle = call("bm_mt_add_entry", metered, [exact(1)], *action)
    call("bm_mt_set_meter_rates", metered, handle, rates((0.5, 10), (1.0, 20)))
    [entry] = engine.entries(metered)
    assert engine.direct_meter(metered, entry) == MeterConfig(500_000, 10, 1_000_000, 20)
    assert len(call("bm_mt_get_meter_rates", metered, handle)) == 2
    assert refusal(call, "bm_mt_read_counter", metered, handle).endswith("COUNTERS_DISABLED")
    assert refusal(call, "bm_mt_get_meter_rates", LPM, 0).endswith("METERS_DISABLED")


def test_multicast_and_mirroring(call: Call, engine: Engine) -> None:
    assert call("bm_mc_mgrp_create", 1) == 1
    nodes = [call("bm_mc_node_create", 7, "110", ""), call("bm_mc_node_create", 8, "1000", "")]
    for node in nodes:
        call("bm_mc_node_associate", 1, node)
    assert engine.multicast_groups() == {1: (Replica(1, 7), Replica(2, 7), Replica(3, 8))}
    call("mirroring_session_add", 5, Record("MirroringSessionConfig", port=4, mgid=1))
    assert engine.clone_sessions()[5].replicas == (
        Replica(4),
        Replica(1, 7),
        Replica(2, 7),
        Replica(3, 8),
    )
    call("bm_mc_node_update", nodes[0], "100000", "")
    call("bm_mc_node_dissociate", 1, nodes[1])
    assert engine.multicast_groups() == {1: (Replica(5, 7),)}
    assert engine.clone_sessions()[5].replicas == (Replica(4), Replica(5, 7))
    found = call("mirroring_session_get", 5)
    assert (found.port, found.mgid) == (4, 1)
    shown = json.loads(call("bm_mc_get_entries"))
    assert shown["mgrps"] == [{"id": 1, "l1_handles": [nodes[0]]}]
    call("bm_mc_mgrp_destroy", 1)
    assert engine.multicast_groups() == {}
    call("mirroring_session_delete", 5)
    assert refusal(call, "mirroring_session_get", 5).endswith("SESSION_NOT_FOUND")
    assert refusal(call, "bm_mc_node_associate", 1, nodes[0]).endswith("INVALID_MGRP_HANDLE")


def test_a_node_with_a_lag_sends_to_one_of_its_ports(call: Call, engine: Engine) -> None:
    call("bm_mc_mgrp_create", 1)
    call("bm_mc_set_lag_membership", 0, "110")
    call("bm_mc_node_associate", 1, call("bm_mc_node_create", 7, "1", "1"))
    assert engine.multicast_groups() == {1: (Replica(0, 7), Replica(1, 7))}


def test_groups_of_p4runtime_are_adopted(call: Call, engine: Engine) -> None:
    engine.set_multicast_group(3, [Replica(1, 2), Replica(4, 2)])
    shown = json.loads(call("bm_mc_get_entries"))
    [group] = shown["mgrps"]
    [node] = [n for n in shown["l2_handles"] if n["handle"] in group["l1_handles"]]
    assert (group["id"], node["ports"]) == (3, [1, 4])


def test_value_sets(call: Call, engine: Engine) -> None:
    name = "TestParser.special_types"
    call("bm_parse_vset_add", name, b"\x08\x06")
    call("bm_parse_vset_add", name, b"\x86\xdd")
    assert call("bm_parse_vset_get", name) == [b"\x08\x06", b"\x86\xdd"]
    assert refusal(call, "bm_parse_vset_add", name, b"\0\1") == "InvalidParseVSetOperation ERROR"
    call("bm_parse_vset_remove", name, b"\x08\x06")
    assert engine.value_set(name) == ((KeyMatch(0x86DD),),)
    call("bm_parse_vset_clear", name)
    assert engine.value_set(name) == ()


def test_timeouts(call: Call, engine: Engine) -> None:
    handle = call("bm_mt_add_entry", LPM, [lpm(2 << 40, 8)], COUNTED, [b"\0\5"], NO_OPTIONS)
    call("bm_mt_set_entry_ttl", LPM, handle, 1500)
    [entry] = engine.entries(LPM)
    assert entry.idle_timeout_ns == 1_500_000_000
    assert call("bm_mt_get_entry", LPM, handle).life.timeout_ms == 1500
    assert refusal(call, "bm_mt_set_entry_ttl", EXACT, 0, 1).endswith("AGEING_DISABLED")


def test_what_is_refused(call: Call) -> None:
    def code(*arguments: Any) -> str:
        return refusal(call, *arguments).split()[1]

    entry = (LPM, [lpm(2 << 40, 8)], COUNTED, [b"\5"], NO_OPTIONS)
    call("bm_mt_add_entry", *entry)
    assert code("bm_mt_add_entry", *entry) == "DUPLICATE_ENTRY"
    assert code("bm_mt_add_entry", "no", *entry[1:]) == "INVALID_TABLE_NAME"
    assert code("bm_mt_add_entry", LPM, [exact(1)], *entry[2:]) == "BAD_MATCH_KEY"
    assert code("bm_mt_add_entry", LPM, [], *entry[2:]) == "BAD_MATCH_KEY"
    assert code("bm_mt_add_entry", *entry[:2], "no", [], NO_OPTIONS) == "INVALID_ACTION_NAME"
    assert code("bm_mt_add_entry", *entry[:3], [], NO_OPTIONS) == "BAD_ACTION_DATA"
    assert code("bm_mt_clear_entries", "no", False) == "INVALID_TABLE_NAME"
    assert code("bm_mt_delete_entry", "TestIngress.const_table", 0) == "IMMUTABLE_TABLE_ENTRIES"
    for number in range(4):
        call("bm_mt_add_entry", EXACT, [exact(number)], FORWARD, [b"\1"], NO_OPTIONS)
    assert code("bm_mt_add_entry", EXACT, [exact(9)], FORWARD, [b"\1"], NO_OPTIONS) == "TABLE_FULL"
    assert code("bm_load_new_config", "{}") == "ERROR"


def test_the_switch_describes_itself(call: Call) -> None:
    document = json.loads(call("bm_get_config"))
    assert [pipeline["name"] for pipeline in document["pipelines"]] == ["ingress", "egress"]
    assert len(call("bm_get_config_md5")) == 16
    assert call("bm_mgmt_get_info").device_id == 3
    assert call("bm_dev_mgr_show_ports") == []


def test_reset_state_removes_all_that_was_set(call: Call, engine: Engine) -> None:
    call("bm_mt_add_entry", LPM, [lpm(2 << 40, 8)], COUNTED, [b"\5"], NO_OPTIONS)
    call("bm_register_write", "TestIngress.totals", 2, 255)
    call("bm_mc_mgrp_create", 1)
    engine.set_clone_session(5, CloneSession((Replica(1),)))
    call("bm_reset_state")
    assert engine.entries(LPM) == []
    assert engine.read_register("TestIngress.totals", 2) == 0
    assert (engine.multicast_groups(), engine.clone_sessions()) == ({}, {})


def test_without_a_program_calls_are_refused(world: World) -> None:
    with pytest.raises(Fault, match="no program yet"):
        world.runtime.call("standard", "bm_mt_get_num_entries", [0, LPM])


def test_a_push_ends_handles(world: World, engine: Engine) -> None:
    engine.insert_entry(LPM, TableEntry((KeyMatch(0, any=True),), ActionChoice(2)))
    assert len(world.runtime.call("standard", "bm_mt_get_entries", [0, LPM])) == 1
    world.clients[-1].push(world.p4info, world.device_config)
    assert world.runtime.call("standard", "bm_mt_get_entries", [0, LPM]) == []


def test_the_bytes_of_a_call_are_thrifts(world: World, engine: Engine) -> None:
    """A strict binary message of Apache Thrift, multiplexed, as BMv2's clients send it."""
    server = ThriftServer(world.runtime, 0)
    name = b"standard:bm_register_write"
    register = b"TestIngress.totals"
    call = (
        bytes.fromhex("80010001")
        + len(name).to_bytes(4, "big")
        + name
        + bytes.fromhex("00000007")
        + bytes.fromhex("08000100000000")  # 1: i32 0
        + b"\x0b\0\2"
        + len(register).to_bytes(4, "big")
        + register  # 2: string
        + bytes.fromhex("08000300000002")  # 3: i32 2
        + bytes.fromhex("0a000400000000000000ff")  # 4: i64 255
        + b"\0"
    )
    answer = bytes.fromhex("80010002") + len(name[9:]).to_bytes(4, "big") + name[9:]
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        client.sendall(call)
        expected = answer + bytes.fromhex("00000007") + b"\0"
        got = b""
        while len(got) < len(expected):
            got += client.recv(len(expected) - len(got))
    server.close()
    assert got == expected
    assert engine.read_register("TestIngress.totals", 2) == 255


def test_other_bytes_end_a_connection_and_no_more(world: World, engine: Engine) -> None:
    server = ThriftServer(world.runtime, 0)
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100) == b""
    other = ThriftClient(server.port)
    assert other.call("standard", "bm_mt_get_num_entries", [0, LPM]) == 0
    other.close()
    with pytest.raises(ThriftError, match="cannot listen on 127"):
        ThriftServer(world.runtime, server.port)
    server.close()
    with pytest.raises(ThriftError, match="no Thrift server answers"):
        ThriftClient(server.port)
