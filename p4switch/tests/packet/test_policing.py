"""Meters, selectors, digests, value sets, random: features that need a control plane to test."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from p4switch.ir import ActionChoice, Program
from p4switch.position import UnsupportedError
from p4switch.targets.v1model.engine import (
    Digest,
    Engine,
    EngineOptions,
    KeyMatch,
    MeterConfig,
    TableEntry,
)

MakeEngine = Callable[..., Engine]
Compile = Callable[[str], Program]

INGRESS = "PolicingIngress"
PARSER = "PolicingParser"
GREEN, YELLOW, RED = 0, 1, 2
SECOND_US = 1_000_000
WIDE_RANGE = """
#include <core.p4>
#include <v1model.p4>
header op_t { bit<128> key; bit<8> member; }
struct headers_t { op_t op; }
struct meta_t { }
struct wide_t { @match(range) bit<128> key; }
parser P(packet_in packet, out headers_t hdr, inout meta_t meta,
         inout standard_metadata_t standard_metadata) {
    value_set<wide_t>(2) wide;
    state start {
        packet.extract(hdr.op);
        transition select(hdr.op.key) { wide: mark; default: accept; }
    }
    state mark { hdr.op.member = 1; transition accept; }
}
#include "no_checksums.p4"
control I(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t s) {
    apply { s.egress_spec = 1; }
}
control E(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t s) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.op); } }
V1Switch(P(), NoVerify(), I(), E(), NoCompute(), D()) main;
"""


def packet(op: int, index: int = 0, flow: int = 0, payload: bytes = b"") -> tuple[int, bytes]:
    return 5, bytes([op, index, flow >> 8, flow & 0xFF, 0, 0]) + payload


def color(engine: Engine, sent: tuple[int, bytes], now_us: int) -> int:
    return engine.process([sent], now_us)[0][1][4]


def member(engine: Engine, sent: tuple[int, bytes]) -> int:
    return engine.process([sent])[0][1][5]


@pytest.mark.slow
def test_a_meter_without_configuration_is_green(make_engine: MakeEngine) -> None:
    engine = make_engine("policing")
    assert [color(engine, packet(0, 1), 0) for _ in range(5)] == [GREEN] * 5


def test_a_packet_meter_turns_yellow_then_red_and_recovers(make_engine: MakeEngine) -> None:
    engine = make_engine("policing")
    # one packet a second is committed, two at the peak; bursts of 2 and 4
    engine.set_meter(f"{INGRESS}.by_packets", 1, MeterConfig(1, 2, 2, 4))
    now = 10 * SECOND_US
    colors = [color(engine, packet(0, 1), now) for _ in range(6)]
    assert colors == [GREEN, GREEN, YELLOW, YELLOW, RED, RED]
    # half a second brings one peak token, no committed one; a second more brings one of each
    assert color(engine, packet(0, 1), now + SECOND_US // 2) == YELLOW
    assert color(engine, packet(0, 1), now + 3 * SECOND_US // 2) == GREEN
    assert color(engine, packet(0, 2), now) == GREEN


def test_a_byte_meter_counts_the_whole_frame(make_engine: MakeEngine) -> None:
    engine = make_engine("policing")
    engine.set_meter(f"{INGRESS}.by_bytes", 0, MeterConfig(100, 100, 100, 200))
    frame = packet(1, 0, payload=bytes(54))  # 60 bytes
    assert [color(engine, frame, 0) for _ in range(4)] == [GREEN, YELLOW, YELLOW, RED]
    assert engine.meter(f"{INGRESS}.by_bytes", 0) == MeterConfig(100, 100, 100, 200)
    engine.set_meter(f"{INGRESS}.by_bytes", 0, None)
    assert color(engine, frame, 0) == GREEN


def test_direct_meters_belong_to_entries(make_engine: MakeEngine) -> None:
    engine = make_engine("policing")
    table = f"{INGRESS}.policed"
    entries = [TableEntry((KeyMatch(flow),), ActionChoice(0)) for flow in (1, 2)]
    for entry in entries:
        engine.insert_entry(table, entry)
    engine.set_direct_meter(table, entries[0], MeterConfig(1, 1, 1, 1))
    assert [color(engine, packet(2, flow=1), 0) for _ in range(2)] == [GREEN, RED]
    assert [color(engine, packet(2, flow=2), 0) for _ in range(2)] == [GREEN, GREEN]
    assert engine.direct_meter(table, entries[0]) == MeterConfig(1, 1, 1, 1)
    assert engine.direct_meter(table, entries[1]) is None


def test_a_miss_has_no_color_of_another_packet(make_engine: MakeEngine) -> None:
    """A default action that reads the direct meter finds green: BMv2 leaves the field as it is."""
    engine = make_engine("policing")
    table = f"{INGRESS}.policed"
    entry = TableEntry((KeyMatch(1),), ActionChoice(0))
    engine.insert_entry(table, entry)
    engine.set_default(table, ActionChoice(0))
    engine.set_direct_meter(table, entry, MeterConfig(1, 1, 1, 1))
    assert [color(engine, packet(2, flow=1), 0) for _ in range(2)] == [GREEN, RED]
    assert color(engine, packet(2, flow=9), 0) == GREEN


def test_a_selector_spreads_flows_over_its_group(make_engine: MakeEngine) -> None:
    engine = make_engine("policing")
    profile, table = f"{INGRESS}.members", f"{INGRESS}.balanced"
    for number in (3, 4, 5):
        engine.set_member(profile, number, ActionChoice(0, (0x30 + number,)))
    engine.set_group(profile, 9, [5, 3, 4])
    engine.insert_entry(table, TableEntry((KeyMatch(1),), None, group=9))
    engine.insert_entry(table, TableEntry((KeyMatch(2),), None, member=4))
    # the hash is the identity, so the flow modulo the group's size picks the member
    assert [member(engine, packet(3, 1, flow)) for flow in range(4)] == [0x35, 0x33, 0x34, 0x35]
    assert member(engine, packet(3, 2, 77)) == 0x34
    engine.set_group(profile, 9, [3, 3, 4])
    assert [member(engine, packet(3, 1, flow)) for flow in range(3)] == [0x33, 0x33, 0x34]
    engine.set_group(profile, 9, [])
    assert member(engine, packet(3, 1, 0)) == 0
    assert engine.groups(profile) == {9: ()}


def test_a_profile_member_is_shared_and_can_change(make_engine: MakeEngine) -> None:
    engine = make_engine("policing")
    profile, table = f"{INGRESS}.profile", f"{INGRESS}.indirect"
    engine.set_member(profile, 1, ActionChoice(0, (0x11,)))
    for index in (1, 2):
        engine.insert_entry(table, TableEntry((KeyMatch(index),), None, member=1))
    assert [member(engine, packet(4, index)) for index in (1, 2, 3)] == [0x11, 0x11, 0xDD]
    engine.set_member(profile, 1, ActionChoice(0, (0x22,)))
    assert [member(engine, packet(4, index)) for index in (1, 2)] == [0x22, 0x22]
    assert engine.members(profile) == {1: ActionChoice(0, (0x22,))}


def test_idle_entries_are_those_not_hit_for_their_timeout(make_engine: MakeEngine) -> None:
    engine = make_engine("policing")
    profile, table = f"{INGRESS}.profile", f"{INGRESS}.indirect"
    engine.set_member(profile, 1, ActionChoice(0, (0x11,)))
    entries = [
        TableEntry((KeyMatch(index),), None, member=1, idle_timeout_ns=timeout)
        for index, timeout in ((1, 1_000_000_000), (2, 1_000_000_000), (3, 0))
    ]
    for entry in entries:
        engine.insert_entry(table, entry)
    engine.process([packet(4, 1)], now_us=SECOND_US // 2)
    assert list(engine.idle_entries(SECOND_US // 2)) == []
    assert list(engine.idle_entries(SECOND_US)) == [(table, entries[1])]
    assert len(list(engine.idle_entries(2 * SECOND_US))) == 2


def test_digests_carry_the_values_at_the_call(make_engine: MakeEngine) -> None:
    engine = make_engine("policing")
    engine.process([packet(5, flow=7), packet(5, flow=8)])
    assert engine.take_digests() == [
        Digest("learned_t", (7, 5, 1, 0xFF)),
        Digest("learned_t", (8, 5, 0, 0xFF)),
    ]
    assert engine.take_digests() == []


def test_a_value_set_steers_the_parser(make_engine: MakeEngine) -> None:
    engine = make_engine("policing")
    assert member(engine, packet(0x40)) == 0
    engine.set_value_set(f"{PARSER}.special", [(KeyMatch(0x40),), (KeyMatch(0x41),)])
    assert [member(engine, packet(op)) for op in (0x40, 0x41, 0x42)] == [0x51, 0x51, 0]
    engine.set_value_set(f"{PARSER}.special", [])
    assert member(engine, packet(0x40)) == 0


def test_a_value_set_of_several_fields_matches_by_their_kinds(make_engine: MakeEngine) -> None:
    engine = make_engine("policing")
    pair = (KeyMatch(0x40, mask=0xF0), KeyMatch(5, high=7))
    engine.set_value_set(f"{PARSER}.pairs", [pair])
    seen = [member(engine, packet(op, index)) for op, index in ((0x4F, 7), (0x4F, 8), (0x50, 6))]
    assert seen == [0x52, 0, 0]


def test_a_wide_range_of_a_value_set_matches_or_is_refused(
    make_engine: MakeEngine, executor: str, compile_text: Compile
) -> None:
    program = compile_text(WIDE_RANGE)
    if executor == "native":
        with pytest.raises(UnsupportedError, match=r"program\.p4:\d+:.*'P\.wide'.* 64 bits"):
            make_engine(program)
        return
    engine = make_engine(program)
    engine.set_value_set("P.wide", [(KeyMatch(5 << 64, high=7 << 64),)])
    keys = [(5 << 64) - 1, 5 << 64, (6 << 64) + 9, 7 << 64, (7 << 64) + 1]
    out = engine.process([(5, key.to_bytes(16, "big") + b"\0") for key in keys])
    assert [frame[16] for _, frame in out] == [0, 1, 1, 1, 0]


def test_random_numbers_are_in_range_and_follow_the_seed(make_engine: MakeEngine) -> None:
    engines = [make_engine("policing", EngineOptions(seed=seed)) for seed in (1, 1, 2)]
    runs = [[member(engine, packet(6)) for _ in range(40)] for engine in engines]
    assert set(runs[0]) == {10, 11, 12}
    assert runs[0] == runs[1] != runs[2]


def test_random_is_the_same_in_every_engine(make_engine: MakeEngine) -> None:
    engine = make_engine("policing", EngineOptions(seed=0))
    # SplitMix64 from seed 0 begins e220a8397b1dcdaf, 6e789e6aa1b965f4, 06c45d188009454f
    expected = [10 + n % 3 for n in (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F)]
    assert [member(engine, packet(6)) for _ in range(3)] == expected


def test_a_failed_assertion_is_counted(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine("policing")
    with caplog.at_level(logging.INFO):
        assert len(engine.process([packet(7, 0, 3), packet(7, 1, 3)])) == 2
    assert engine.statistics().extra["failed_assertions"] == 1
