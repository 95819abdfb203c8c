"""Packet-out and packet-in: frames of the controller, and slots shown to it."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest

from hopsum.protocol.outcomes import Outcome
from hopsum.protocol.wire import Flag, Kind, Reduction
from tests.packet.hopsum.packets import Packet, add, raw_ipv4
from tests.packet.hopsum.star import SERVER_PORT, contribution, result, send, star, up
from tests.packet.hopsum.switches import CPU_PORT, Switch

PACKET_IN = struct.Struct(">BHI64sHHBB")
INSPECT = 1


@dataclass(frozen=True)
class Shown:
    """A slot as the controller sees it."""

    slot: int
    bitmap: int
    count: int
    fan_in: int
    cleared: int
    valid: int
    packet: Packet


def packet_out(opcode: int, payload: bytes, *, port: int = 0, slot: int = 0) -> bytes:
    return struct.pack(">BHI", opcode, port, slot) + payload


def question(switch: Switch) -> bytes:
    return Packet((0,) * switch.build.lanes, kind=Kind.INSPECT, job=0, epoch=0, weight=0).frame()


def inspect(switch: Switch, slot: int) -> Shown:
    ((port, frame),) = switch.send(CPU_PORT, packet_out(INSPECT, question(switch), slot=slot))
    assert port == CPU_PORT
    opcode, came_in, shown, bitmap, count, fan_in, cleared, valid = PACKET_IN.unpack_from(frame)
    assert (opcode, came_in) == (INSPECT, CPU_PORT)
    packet = Packet.read(frame[PACKET_IN.size :])
    return Shown(shown, int.from_bytes(bitmap, "big"), count, fan_in, cleared, valid, packet)


def test_an_empty_slot(switch: Switch) -> None:
    shown = inspect(switch, 5)
    empty = Packet.read(question(switch))
    assert shown == Shown(5, 0, 0, 0, 0, 0, empty)
    assert switch.counted() == {Outcome.INSPECTED: 1}


def test_a_half_full_slot_and_a_cleared_one(switch: Switch) -> None:
    star(switch, 3, base=8)
    parts = [
        contribution(switch, child, 6, fan_in=3, weight=4, exponent=child, flags=Flag.ECN)
        for child in (0, 2)
    ]
    up(switch, *parts)
    total = add(*(part.values for part in parts))
    held = Packet(
        total,
        kind=Kind.INSPECT,
        job=1,
        epoch=1,
        fragment=6,
        weight=8,
        flags=Flag.ECN,
        exponent=2,
    )
    assert inspect(switch, 10) == Shown(10, 0b101, 2, 3, 0, 1, held)
    send(switch, SERVER_PORT, result(switch, fragment=6))
    assert inspect(switch, 10) == Shown(10, 0b101, 2, 3, 1, 1, held)


def test_show_changes_nothing(switch: Switch) -> None:
    star(switch, tree=9)
    parts = [
        contribution(switch, child, tree=9, epoch=3, reduction=Reduction.AND) for child in (0, 1)
    ]
    up(switch, parts[0])
    first, second = inspect(switch, 0), inspect(switch, 0)
    assert first == second
    assert (first.packet.tree, first.packet.epoch, first.packet.reduction) == (9, 3, Reduction.AND)
    assert up(switch, parts[1])[0].weight == 2


def test_a_slot_number_beyond_the_registers_is_masked(switch: Switch) -> None:
    assert inspect(switch, 64 + 3).slot == 3
    assert inspect(switch, 2**32 - 1).slot == 63


@pytest.mark.parametrize("kind", [Kind.CONTRIBUTION, Kind.RESULT, Kind.REPLICATED])
def test_an_inspection_is_no_way_in_for_other_packets(switch: Switch, kind: Kind) -> None:
    star(switch)
    packet = Packet((0,) * switch.build.lanes, kind=kind)
    assert switch.send(CPU_PORT, packet_out(INSPECT, packet.frame())) == []
    assert switch.counted() == {Outcome.MALFORMED: 1}


@pytest.mark.parametrize("opcode", [2, 255])
def test_an_unknown_request_is_malformed(switch: Switch, opcode: int) -> None:
    assert switch.send(CPU_PORT, packet_out(opcode, question(switch))) == []
    assert switch.counted() == {Outcome.MALFORMED: 1}


def test_a_malformed_inspection_is_counted(switch: Switch) -> None:
    short = question(switch)[:-4]
    assert switch.send(CPU_PORT, packet_out(INSPECT, short)) == []
    assert switch.counted() == {Outcome.MALFORMED: 1}


def test_plain_frames_are_not_inspected(switch: Switch) -> None:
    """Opcode INSPECT followed by anything else is dropped, independently of the plain tables."""
    switch.insert("l2_forward", {"dst_mac": 0x02000A000002}, "forward", port=5)
    assert switch.send(CPU_PORT, packet_out(INSPECT, raw_ipv4(bytes(20)), port=3)) == []
    assert switch.counted() == {Outcome.MALFORMED: 1}


def test_the_controller_sends_a_frame_out_of_a_port(switch: Switch) -> None:
    """Any frame, a hopsum packet too: nothing looks at it."""
    star(switch)
    for frame in (raw_ipv4(b"LLDP would go here"), contribution(switch, 0).frame(), bytes(14)):
        out = switch.send(CPU_PORT, packet_out(0, frame, port=4))
        assert [(port, left[: len(frame)]) for port, left in out] == [(4, frame)]
    assert switch.counted() == {}
