"""Batches, queues, endless turns, truncated clones: what the architecture does around a program."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from p4switch.ir import Program
from p4switch.targets.v1model.engine import (
    CloneSession,
    ControlError,
    Engine,
    EngineOptions,
    Replica,
)
from p4switch.targets.v1model.hashes import CRC16, CRC32, CrcConfig, make_crc

MakeEngine = Callable[..., Engine]
Compile = Callable[[str], Program]

HEAD = """
#include <core.p4>
#include <v1model.p4>
header op_t { bit<8> port; bit<8> level; bit<8> seen; bit<32> time; }
struct headers_t { op_t op; }
struct meta_t { @field_list(1) bit<8> turns; }
parser P(packet_in packet, out headers_t hdr, inout meta_t meta,
         inout standard_metadata_t standard_metadata) {
    state start { packet.extract(hdr.op); transition accept; }
}
#include "no_checksums.p4"
"""

TAIL = """
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.op); } }
V1Switch(P(), NoVerify(), I(), E(), NoCompute(), D()) main;
"""


def program(ingress: str, egress: str) -> str:
    parameters = "inout headers_t hdr, inout meta_t meta, inout standard_metadata_t s"
    return (
        f"{HEAD}control I({parameters}) {{ apply {{ {ingress} }} }}\n"
        f"control E({parameters}) {{ apply {{ {egress} }} }}\n{TAIL}"
    )


def frame(port: int, level: int = 0, seen: int = 0, time: int = 0) -> bytes:
    return bytes([port, level, seen]) + time.to_bytes(4, "big")


FORWARD = "s.egress_spec = (bit<9>) hdr.op.port; s.priority = (bit<3>) hdr.op.level;"


def test_a_batch_keeps_its_order_port_by_port(
    make_engine: MakeEngine, compile_text: Compile
) -> None:
    engine = make_engine(compile_text(program(FORWARD, "")))
    ports = [3, 1, 3, 2, 1]
    batch = [(9, frame(port, 0, number)) for number, port in enumerate(ports)]
    out = engine.process(batch)
    assert [port for port, _ in out] == [1, 1, 2, 3, 3]
    assert [data[2] for _, data in out] == [1, 4, 3, 0, 2]


def test_queues_are_a_port_and_a_priority(make_engine: MakeEngine, compile_text: Compile) -> None:
    egress = "hdr.op.seen = s.enq_qdepth[3:0] ++ s.deq_qdepth[3:0];"
    engine = make_engine(compile_text(program(FORWARD, egress)), EngineOptions(queue_depth=3))
    out = engine.process([(9, frame(1, level)) for level in (0, 0, 5, 0, 0, 5)])
    assert [(data[1], data[2]) for _, data in out] == [
        (5, 0x01),
        (5, 0x10),
        (0, 0x02),
        (0, 0x11),
        (0, 0x20),
    ]
    assert engine.statistics().queue_drops == 1
    # the next batch finds empty queues
    assert len(engine.process([(9, frame(1))] * 3)) == 3


def test_a_priority_without_a_queue_drops(make_engine: MakeEngine, compile_text: Compile) -> None:
    engine = make_engine(compile_text(program(FORWARD, "")), EngineOptions(priority_queues=2))
    assert len(engine.process([(9, frame(1, 1)), (9, frame(1, 2))])) == 1
    assert engine.statistics().queue_drops == 1


@pytest.mark.parametrize(
    ("ingress", "egress"),
    [
        ("resubmit_preserving_field_list(1);", ""),
        ("s.egress_spec = 1;", "recirculate_preserving_field_list(1);"),
    ],
)
def test_endless_turns_end(
    make_engine: MakeEngine, compile_text: Compile, ingress: str, egress: str
) -> None:
    """By the budget of steps, not by a number of turns."""
    engine = make_engine(compile_text(program(ingress, egress)), EngineOptions(packet_budget=5000))
    assert engine.process([(9, frame(1))]) == []
    assert engine.statistics().extra == {"over_budget": 1}


def test_recirculated_packets_come_after_the_batch(
    make_engine: MakeEngine, compile_text: Compile
) -> None:
    ingress = "s.egress_spec = 1; meta.turns = meta.turns + 1;"
    egress = (
        "hdr.op.seen = meta.turns;"
        "if (hdr.op.level > 0) { hdr.op.level = hdr.op.level - 1;"
        " recirculate_preserving_field_list(1); }"
    )
    engine = make_engine(compile_text(program(ingress, egress)))
    out = engine.process([(9, frame(level, level)) for level in (2, 0, 1)])
    assert [(data[0], data[2]) for _, data in out] == [(0, 1), (1, 2), (2, 3)]


def test_a_session_truncates_its_clones_only(
    make_engine: MakeEngine, compile_text: Compile
) -> None:
    engine = make_engine(compile_text(program("s.egress_spec = 1; clone(CloneType.I2E, 5);", "")))
    engine.set_clone_session(5, CloneSession((Replica(2), Replica(3, 7)), length=4))
    sent = frame(1, 2, 3, 4)
    assert engine.process([(9, sent)]) == [(1, sent), (2, sent[:4]), (3, sent[:4])]
    engine.set_clone_session(5, None)
    assert engine.process([(9, sent)]) == [(1, sent)]


def test_packet_length_in_egress_follows_set_valid_and_set_invalid(
    make_engine: MakeEngine, compile_text: Compile
) -> None:
    # as BMv2's packet length register does; 7 bytes of header, 20 of payload
    ingress = (
        "s.egress_spec = 1;"
        "if (hdr.op.level > 0) { hdr.op.setInvalid(); hdr.op.setInvalid(); }"
        "if (hdr.op.seen > 0) { hdr.op.setValid(); }"
    )
    egress = "hdr.op.setValid(); hdr.op.time = s.packet_length; hdr.op.seen = 0;"
    engine = make_engine(compile_text(program(ingress, egress)))
    payload = bytes(20)
    lengths = [
        int.from_bytes(engine.process([(0, frame(0, *args) + payload)])[0][1][3:7], "big")
        for args in ((0, 0), (1, 0), (0, 1))
    ]
    assert lengths == [27, 20, 27]


def test_the_clock_is_the_callers(make_engine: MakeEngine, compile_text: Compile) -> None:
    ingress = "s.egress_spec = 1; hdr.op.time = s.ingress_global_timestamp[31:0];"
    egress = (
        "if (s.egress_global_timestamp == s.ingress_global_timestamp"
        " && s.enq_timestamp == hdr.op.time && s.deq_timedelta == 0) { hdr.op.seen = 1; }"
    )
    engine = make_engine(compile_text(program(ingress, egress)))
    assert engine.process([(9, frame(0))], now_us=123_456) == [(1, frame(0, 0, 1, 123_456))]


def test_the_drop_port_is_an_option(make_engine: MakeEngine, compile_text: Compile) -> None:
    text = program("s.egress_spec = (bit<9>) hdr.op.port;", "hdr.op.seen = s.egress_spec[7:0];")
    engine = make_engine(compile_text(text), EngineOptions(drop_port=7))
    assert engine.process([(9, frame(7)), (9, frame(6))]) == [(6, frame(6, 0, 8))]


def test_an_empty_batch_and_an_empty_frame(make_engine: MakeEngine, compile_text: Compile) -> None:
    engine = make_engine(compile_text(program("s.egress_spec = 1;", "")))
    assert engine.process([]) == []
    assert engine.process([(0, b"")]) == [(1, b"")]
    assert engine.statistics().parser_errors == 1


HASH = (
    "bit<32> wide; bit<16> narrow;"
    "hash(wide, HashAlgorithm.crc32_custom, 32w0, {hdr.op.time}, 32w0xffffffff);"
    "hash(narrow, HashAlgorithm.crc16, 16w0, {hdr.op.time}, 16w0xffff);"
    "hash(narrow, HashAlgorithm.crc16_custom, 16w0, {hdr.op.time}, 16w0xffff);"
    "hdr.op.time = wide ^ (bit<32>) narrow;" + FORWARD
)


def crcs(engine: Engine, wide: CrcConfig, narrow: CrcConfig) -> bool:
    """Whether the program's hashes are these CRCs."""
    data = (0x01020304).to_bytes(4, "big")
    [(_, out)] = engine.process([(9, frame(1, time=0x01020304))])
    expected = make_crc(wide)(data) % 0xFFFFFFFF ^ make_crc(narrow)(data) % 0xFFFF
    return int.from_bytes(out[3:], "big") == expected


def test_custom_crcs_can_be_set(make_engine: MakeEngine, compile_text: Compile) -> None:
    engine = make_engine(compile_text(program(HASH, "")))
    assert crcs(engine, CRC32, CRC16)
    bzip2 = CrcConfig(32, 0x04C11DB7, 0xFFFFFFFF, 0xFFFFFFFF, False, False)
    engine.set_crc("calc", bzip2)
    assert crcs(engine, bzip2, CRC16)
    mixed = CrcConfig(16, 0x1021, 0xFFFF, 0x0001, True, False)
    engine.set_crc("calc_1", mixed)
    assert crcs(engine, bzip2, mixed)
    for name, config in (("calc_0", mixed), ("calc", mixed), ("calc_1", bzip2), ("no", bzip2)):
        with pytest.raises(ControlError):
            engine.set_crc(name, config)


def test_a_crcs_check_value() -> None:
    """CRC-32/BZIP2 and CRC-16/ARC of "123456789", as catalogues of CRCs have them."""
    bzip2 = CrcConfig(32, 0x04C11DB7, 0xFFFFFFFF, 0xFFFFFFFF, False, False)
    assert (make_crc(bzip2)(b"123456789"), make_crc(CRC16)(b"123456789")) == (0xFC891918, 0xBB3D)
