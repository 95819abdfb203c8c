"""Everything that is not hopsum's passes by the plain tables, unharmed (H25)."""

from __future__ import annotations

import struct

import pytest

from hopsum.protocol import wire
from hopsum.protocol.outcomes import Outcome
from tests.packet.hopsum.packets import raw_ipv4
from tests.packet.hopsum.switches import Switch

HOST_MAC = 0x02000A000002
NEXT_MAC = 0x02000A0000FE
BROADCAST = 0xFFFFFFFFFFFF
FLOOD = 9
OPTIONS = bytes.fromhex("94040000")
"""Router alert, RFC 2113."""


def udp(dst_port: int, payload: bytes = b"hello") -> bytes:
    return struct.pack(">HHHH", 1111, dst_port, 8 + len(payload), 0) + payload


def routed(frame: bytes, mac: int = NEXT_MAC) -> bytes:
    """A frame after a router: ttl and checksum updated."""
    header = bytearray(frame[14 : 14 + 4 * (frame[14] & 15)])
    header[8] -= 1
    header[10:12] = bytes(2)
    header[10:12] = wire.ipv4_checksum(bytes(header)).to_bytes(2, "big")
    return mac.to_bytes(6, "big") + frame[6:14] + bytes(header) + frame[14 + len(header) :]


ARP = BROADCAST.to_bytes(6, "big") + bytes.fromhex("02000a000001 0806 0001080006040001") + bytes(38)
PLAIN_FRAMES = {
    "ARP": HOST_MAC.to_bytes(6, "big") + ARP[6:],
    "ping": raw_ipv4(bytes.fromhex("0800f7ff00000000") + bytes(48), protocol=1),
    "TCP": raw_ipv4(bytes(20) + b"GET / HTTP/1.1\r\n\r\n", protocol=6),
    "UDP": raw_ipv4(udp(53), protocol=17),
    "UDP next to ours": raw_ipv4(udp(wire.UDP_PORT + 1), protocol=17),
    "a later IPv4 fragment that looks like ours": raw_ipv4(
        udp(wire.UDP_PORT), protocol=17, fragment=185
    ),
    "a later fragment of UDP without payload": raw_ipv4(b"", protocol=17, fragment=185),
    "the last bytes of a fragmented UDP packet": raw_ipv4(b"HS", protocol=17, fragment=185),
    "a first fragment": raw_ipv4(udp(53, bytes(1000)), protocol=17, fragment=0x2000),
    "IPv4 options": raw_ipv4(udp(53), protocol=17, options=OPTIONS),
    "full MTU": raw_ipv4(bytes(range(256)) * 5 + bytes(200), protocol=6),
    "empty IPv4": raw_ipv4(b"", protocol=59),
    "IPv6": HOST_MAC.to_bytes(6, "big") + bytes.fromhex("02000a000001 86dd 60") + bytes(60),
    "MPLS": HOST_MAC.to_bytes(6, "big")
    + bytes.fromhex("02000a000001 8847 0001 0140 45")
    + bytes(60),
    "no payload": HOST_MAC.to_bytes(6, "big") + bytes.fromhex("02000a000001 88b5"),
}
PLAIN_FRAMES |= {
    f"{name} in {tags}": PLAIN_FRAMES[name][:12] + bytes.fromhex(tags) + PLAIN_FRAMES[name][12:]
    for name in ("ARP", "ping", "UDP next to ours", "IPv4 options", "empty IPv4", "IPv6")
    for tags in ("81000005", "88a80005", "88a8000581000006", "810000058100000681000007")
}
IPV4_FRAMES = [name for name, frame in PLAIN_FRAMES.items() if frame[12:14] == b"\x08\x00"]


@pytest.mark.parametrize("name", PLAIN_FRAMES)
def test_switched_by_mac_untouched(switch: Switch, name: str) -> None:
    switch.insert("l2_forward", {"dst_mac": HOST_MAC}, "forward", port=5)
    frame = PLAIN_FRAMES[name]
    assert switch.send(1, frame) == [(5, frame)]
    assert switch.counted() == {Outcome.PLAIN: 1}


@pytest.mark.parametrize("name", IPV4_FRAMES)
def test_routed_with_ttl_and_checksum(switch: Switch, name: str) -> None:
    """A route wins over the MAC table."""
    switch.insert("l2_forward", {"dst_mac": HOST_MAC}, "forward", port=5)
    switch.insert("ipv4_route", {"dst_addr": (0x0A000002, 32)}, "route", dst_mac=NEXT_MAC, port=6)
    frame = PLAIN_FRAMES[name]
    assert switch.send(1, frame) == [(6, routed(frame))]
    assert switch.counted() == {Outcome.PLAIN: 1}


def test_tagged_frames_are_not_routed(switch: Switch) -> None:
    switch.insert("l2_forward", {"dst_mac": HOST_MAC}, "forward", port=5)
    switch.insert("ipv4_route", {"dst_addr": (0x0A000002, 32)}, "route", dst_mac=NEXT_MAC, port=6)
    for frame in (frame for name, frame in PLAIN_FRAMES.items() if " in 8" in name):
        assert switch.send(1, frame) == [(5, frame)]


def test_the_longest_prefix_wins(switch: Switch) -> None:
    for prefix, length, port in ((0x0A000000, 8, 3), (0x0A000000, 24, 4), (0x0A000002, 32, 6)):
        switch.insert(
            "ipv4_route", {"dst_addr": (prefix, length)}, "route", dst_mac=NEXT_MAC, port=port
        )
    for address, port in (((10, 0, 0, 2), 6), ((10, 0, 0, 3), 4), ((10, 9, 0, 2), 3)):
        frame = raw_ipv4(bytes(20), dst=bytes(address))
        assert switch.send(1, frame) == [(port, routed(frame))]
    assert switch.send(1, raw_ipv4(bytes(20), dst=bytes([11, 0, 0, 2]))) == []


@pytest.mark.parametrize("ttl", [0, 1])
def test_a_packet_that_has_come_too_far_is_dropped(switch: Switch, ttl: int) -> None:
    switch.insert("ipv4_route", {"dst_addr": (0x0A000002, 32)}, "route", dst_mac=NEXT_MAC, port=6)
    assert switch.send(1, raw_ipv4(bytes(20), ttl=ttl)) == []
    assert switch.counted() == {}


def test_checksums_through_all_their_values(switch: Switch) -> None:
    """RFC 1624's corner: the updated checksum is never 0xFFFF, and always the recomputed one."""
    switch.insert("ipv4_route", {"dst_addr": (0x0A000002, 32)}, "route", dst_mac=NEXT_MAC, port=6)
    frames = []
    base = raw_ipv4(bytes(20))
    for wanted in (0xFEFE, 0xFEFF, 0xFF00, 0xFFFE, 0x0000, 0x0001, 0x00FF, 0x0100):
        header = bytearray(base[14:34])
        header[4:6] = header[10:12] = bytes(2)
        # The identification that gives the header the checksum `wanted`.
        missing = (wire.ipv4_checksum(bytes(header)) - wanted) % 0xFFFF
        header[4:6] = missing.to_bytes(2, "big")
        header[10:12] = wire.ipv4_checksum(bytes(header)).to_bytes(2, "big")
        frames.append(base[:14] + bytes(header) + base[34:])
    assert {frame[24:26] for frame in frames} >= {b"\xfe\xff", b"\xff\x00", b"\x00\x01"}
    assert switch.send(1, *frames) == [(6, routed(frame)) for frame in frames]


def test_a_broken_checksum_stays_broken(switch: Switch) -> None:
    """A router that recomputes checksums hides changes of the header."""
    switch.insert("ipv4_route", {"dst_addr": (0x0A000002, 32)}, "route", dst_mac=NEXT_MAC, port=6)
    frame = bytearray(raw_ipv4(bytes(20)))
    frame[5 + 20] ^= 0x40
    ((_, arrived),) = switch.send(1, bytes(frame))
    assert wire.ipv4_checksum(arrived[14:34]) != 0


def test_floods_reach_all_but_their_source(switch: Switch) -> None:
    switch.multicast(FLOOD, (1, 2, 3, 4))
    switch.insert("l2_forward", {"dst_mac": BROADCAST}, "flood", group=FLOOD)
    assert switch.send(2, ARP) == [(port, ARP) for port in (1, 3, 4)]
    assert switch.send(5, ARP) == [(port, ARP) for port in (1, 2, 3, 4)]
    assert switch.counted() == {Outcome.PLAIN: 2}


def test_an_unknown_destination_is_dropped(switch: Switch) -> None:
    for frame in PLAIN_FRAMES.values():
        assert switch.send(1, frame) == []
    assert switch.counted() == {}
