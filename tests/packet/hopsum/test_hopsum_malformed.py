"""Malformed packets are counted and dropped, and touch no slot."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from hopsum.protocol import wire
from hopsum.protocol.outcomes import Outcome
from hopsum.protocol.wire import (
    VALUE_REDUCTIONS,
    Flag,
    Hop,
    Kind,
    Reduction,
    Width,
    carries_lanes,
)
from tests.packet.hopsum.packets import LAST_HOP, Packet, lanes_of
from tests.packet.hopsum.star import SERVER_PORT, contribution, result, send, star, up
from tests.packet.hopsum.switches import Build, Switch

LANES = lanes_of(32, 1)

Change = Callable[[bytearray], bytearray]


def put(offset: int, value: int, size: int = 1) -> Change:
    """Overwrite a field, and make the IPv4 checksum right again."""

    def change(frame: bytearray) -> bytearray:
        frame[offset : offset + size] = value.to_bytes(size, "big")
        return with_checksum(frame)

    return change


def with_checksum(frame: bytearray) -> bytearray:
    """The frame with a right IPv4 checksum (of a header without options)."""
    frame[24:26] = bytes(2)
    frame[24:26] = wire.ipv4_checksum(bytes(frame[14:34])).to_bytes(2, "big")
    return frame


def with_options(frame: bytearray) -> bytearray:
    """The frame with four bytes of IPv4 options, lengths to match."""
    frame[14] = 0x46
    frame[16:18] = (int.from_bytes(frame[16:18], "big") + 4).to_bytes(2, "big")
    frame[34:34] = b"\x01\x01\x01\x00"
    frame[24:26] = bytes(2)
    frame[24:26] = wire.ipv4_checksum(bytes(frame[14:38])).to_bytes(2, "big")
    return frame


def longer(frame: bytearray) -> bytearray:
    """Four bytes more, IPv4 and UDP lengths to match."""
    frame += bytes(4)
    for offset in (16, 38):
        length = int.from_bytes(frame[offset : offset + 2], "big") + 4
        frame[offset : offset + 2] = length.to_bytes(2, "big")
    return with_checksum(frame)


def without_lanes(frame: bytearray) -> bytearray:
    """No lanes, IPv4 and UDP lengths to match."""
    del frame[70:]
    for offset, length in ((16, 56), (38, 36)):
        frame[offset : offset + 2] = length.to_bytes(2, "big")
    return with_checksum(frame)


def tagged(*tags: str) -> Change:
    """The frame behind VLAN tags, each its EtherType and its control information in hex."""

    def change(frame: bytearray) -> bytearray:
        return frame[:12] + b"".join(map(bytes.fromhex, tags)) + frame[12:]

    return change


CHANGES: dict[str, Change] = {
    "version 0": put(42, 0x01),
    "version 1": put(42, 0x11),
    "version 2": put(42, 0x21),
    "kind 0": put(42, 0x30),
    "kind 6": put(42, 0x36),
    "an inspection from a host": put(42, 0x34),
    "another source port": put(34, 0x4854, 2),
    "no hop announced, two there": put(49, 0),
    "one hop announced, two there": put(49, 1),
    "three hops announced, two there": put(49, 3),
    "eleven hops": put(49, 11),
    "a result that is not complete": put(42, 0x33),
    "lanes that are not announced": put(44, 0x40),
    "a broadcast that brings lanes": put(44, 0x50),
    "reduction 6": put(44, 0x60),
    "reduction 7": put(44, 0x70),
    "reduction 12": put(44, 0xC0),
    "reduction 15": put(44, 0xF0),
    "job 0": put(46, 0, 2),
    "epoch 0": put(50, 0, 2),
    "weight 0": put(54, 0, 2),
    "IPv4 total length one too short": put(16, 183, 2),
    "IPv4 total length too long": put(16, 1500, 2),
    "UDP length": put(38, 20, 2),
    "no IPv4 header at all": put(14, 0x44),
    "IPv6 in an IPv4 packet": put(14, 0x65),
    "IPv4 options": with_options,
    "a first fragment": put(20, 0x2000, 2),
    "a first fragment that says Don't Fragment": put(20, 0x6000, 2),
    "a later fragment": put(20, 0x2001, 2),
    "the last fragment": put(20, 0x1FFF, 2),
    "a later fragment that says Don't Fragment": put(20, 0x4001, 2),
    "IPv4 that may be fragmented": put(20, 0x0000, 2),
    "the reserved IPv4 flag": put(20, 0xC000, 2),
    "802.1Q": tagged("81000005"),
    "802.1Q, priority only": tagged("81000000"),
    "802.1ad": tagged("88a80005"),
    "802.1ad and 802.1Q": tagged("88a80005", "81000005"),
    "802.1Q twice": tagged("81000005", "81000006"),
    "802.1Q and IPv4 options": lambda frame: tagged("81000005")(with_options(frame)),
    "a first fragment in 802.1Q": lambda frame: tagged("81000005")(put(20, 0x2000, 2)(frame)),
    "a later fragment in 802.1Q": lambda frame: tagged("81000005")(put(20, 0x2001, 2)(frame)),
    "half a VLAN tag": lambda frame: tagged("81000005")(frame)[:16],
    "half an IPv4 header in 802.1Q": lambda frame: tagged("81000005")(frame)[:30],
    "a wrong IPv4 checksum": lambda frame: frame[:25] + bytes([frame[25] ^ 1]) + frame[26:],
    "trailing bytes": lambda frame: frame + bytes(1),
    "lanes missing": lambda frame: frame[:-4],
    "one byte missing": lambda frame: frame[:-1],
    "longer throughout": longer,
    "no lanes though announced": without_lanes,
    "no lanes at all": lambda frame: frame[:70],
    "half a stack": lambda frame: frame[:65],
    "half a hopsum header": lambda frame: frame[:50],
    "no hopsum header": lambda frame: frame[:42],
    "half a UDP header": lambda frame: frame[:38],
    "half an IPv4 header": lambda frame: frame[:20],
}


@pytest.mark.parametrize("name", CHANGES)
def test_malformed(switch: Switch, engine: str, name: str) -> None:
    if engine == "bmv2" and name == "half a VLAN tag":
        pytest.skip("the kernel drops a frame whose tag is not whole")
    star(switch)
    parts = [contribution(switch, child) for child in (0, 1)]
    up(switch, parts[0])
    assert switch.send(2, bytes(CHANGES[name](bytearray(parts[1].frame())))) == []
    assert switch.counted() == {Outcome.AGGREGATED: 1, Outcome.MALFORMED: 1}
    assert up(switch, parts[1])[0].weight == 2, "the slot is as it was"


@pytest.mark.parametrize(
    ("port", "packet"),
    [
        pytest.param(1, Packet(LANES), id="a contribution without a stack"),
        pytest.param(
            1,
            Packet(LANES, hops=(Hop(aggregate=True, fan_in=2, port=8),)),
            id="a contribution with the server's entry only",
        ),
        pytest.param(
            1,
            Packet(LANES, job=0, hops=(Hop(aggregate=True, fan_in=2, port=8), LAST_HOP)),
            id="a contribution of job 0",
        ),
        pytest.param(8, Packet(LANES, kind=Kind.RESULT), id="a result without a stack"),
        pytest.param(
            8, Packet(LANES, kind=Kind.RESULT, epoch=0, hops=(Hop(),)), id="a result of epoch 0"
        ),
        pytest.param(
            8, Packet(LANES, kind=Kind.REPLICATED, hops=(Hop(),)), id="replicated with a stack"
        ),
        pytest.param(8, Packet(LANES, kind=Kind.REPLICATED, job=0), id="replicated of job 0"),
        pytest.param(
            8, Packet(LANES, kind=Kind.RESULT, weight=0, hops=(Hop(),)), id="a result of weight 0"
        ),
        pytest.param(
            1,
            Packet(LANES, weight=0, flags=Flag.BYPASS, hops=(Hop(port=8), LAST_HOP)),
            id="a bypassed contribution of weight 0",
        ),
        pytest.param(
            1, Packet(lanes_of(64, 1), hops=(Hop(port=8), LAST_HOP)), id="more lanes than we have"
        ),
    ],
)
def test_malformed_though_its_lengths_agree(switch: Switch, port: int, packet: Packet) -> None:
    star(switch)
    switch.multicast(1, (1, 2))
    for job in (0, 1):
        switch.insert(
            "replication", {"job": job, "tree": 0, "epoch": 1}, "replicate", group=1, clear=1
        )
    star(switch, job=0)
    assert send(switch, port, packet) == []
    assert switch.counted() == {Outcome.MALFORMED: 1}


@pytest.mark.slow
@pytest.mark.parametrize("most", [2, wire.HOPS_DEFAULT, wire.MAX_HOPS])
@pytest.mark.parametrize("port", [1, SERVER_PORT])
def test_one_hop_more_than_compiled_for_is_too_many(
    make_switch: Callable[[Build], Switch], port: int, most: int
) -> None:
    switch = make_switch(Build(max_hops=most))
    star(switch)
    stack = tuple(Hop(port=4 + (i > 0)) for i in range(most))
    packet = contribution(switch, hops=stack) if port == 1 else result(switch, hops=stack)
    ((at, left),) = send(switch, port, packet)
    assert (at, left.hops) == (4, stack[1:])
    if most == wire.MAX_HOPS:
        return
    frame = bytearray(packet.frame())
    frame[66:66] = frame[62:66]
    frame[49] += 1
    for offset in (16, 38):
        length = int.from_bytes(frame[offset : offset + 2], "big") + 4
        frame[offset : offset + 2] = length.to_bytes(2, "big")
    assert switch.send(port, bytes(with_checksum(frame))) == []
    assert switch.counted()[Outcome.MALFORMED] == 1


@pytest.mark.parametrize("length", [0, 1, 13])
def test_less_than_an_ethernet_header(switch: Switch, engine: str, length: int) -> None:
    if engine == "bmv2":
        pytest.skip("the kernel sends no such frame")
    assert switch.send(1, bytes(length)) == []
    assert switch.counted() == {Outcome.MALFORMED: 1}


def test_ten_hops_pass_and_count_down(switch: Switch) -> None:
    """The longest stack, and every one below it."""
    star(switch)
    for hops in range(10, 1, -1):
        stack = (Hop(port=hops % 7 + 1), *(Hop(port=p) for p in range(hops - 2)), LAST_HOP)
        part = contribution(switch, hops=stack)
        assert send(switch, 1, part) == [(hops % 7 + 1, part.popped())]
    for hops in range(10, 0, -1):
        down = result(switch, hops=tuple(Hop(port=p) for p in range(1, hops + 1)))
        assert send(switch, SERVER_PORT, down) == [(1, down.popped())]


def test_a_udp_checksum_is_taken_and_does_not_survive(switch: Switch) -> None:
    star(switch)
    part = contribution(switch, 0, hops=(Hop(port=5), LAST_HOP))
    frame = bytearray(part.frame())
    frame[40:42] = b"\x12\x34"
    assert switch.send(1, bytes(frame)) == [(5, part.popped().frame())]


@pytest.mark.parametrize("seed", range(4))
def test_fuzzed_headers_never_leave_wrong_or_unseen(switch: Switch, seed: int) -> None:
    """H20: random bytes in headers and stack; what leaves is checked by `send`, all is counted."""
    star(switch)
    star(switch, job=0x7777, base=32)
    rng = random.Random(seed)
    frames = []
    for _ in range(150):
        packet = contribution(switch, 0) if rng.random() < 0.7 else result(switch)
        reduction = rng.choice((Reduction.SUM, Reduction.SUM, *Reduction))
        width = rng.choice(list(Width)) if reduction in VALUE_REDUCTIONS else Width.WIDTH_32
        if not carries_lanes(reduction, up=packet.kind == Kind.CONTRIBUTION):
            packet = replace(packet, values=())
        packet = replace(packet, reduction=reduction, width=width)
        frame = bytearray(packet.frame())
        for _ in range(rng.choice((1, 1, 2, 5))):
            frame[rng.randrange(42, min(70, len(frame)))] = rng.getrandbits(8)
        frames.append(bytes(frame[: rng.randrange(42, 220)] if rng.random() < 0.1 else frame))
    switch.send(1, *frames[:75])
    switch.send(SERVER_PORT, *frames[75:])
    counted = switch.counted()
    also = (Outcome.OVERFLOW, Outcome.TAKEN_OVER, Outcome.CONGESTED)
    others = sum(counted.get(outcome, 0) for outcome in also)
    assert sum(counted.values()) - others == len(frames)
    assert counted[Outcome.MALFORMED] > 20
    last = [contribution(switch, child, job=0x7777) for child in (0, 1)]
    assert len(up(switch, *last)) == 1, "the switch still works"
