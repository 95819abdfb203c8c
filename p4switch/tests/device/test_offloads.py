"""Checksums and TCP segments that a sender left to its network card."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4switch.device.offloads import CWR, FIN_PSH, completed

MTU = 1500
IPV4 = bytes([10, 0, 1, 2, 10, 0, 2, 2])
IPV6 = bytes(range(32))
TCP, UDP = 6, 17
ACK = 0x10


def ones_complement(data: bytes) -> int:
    """RFC 1071: 0xffff if the data include their checksum."""
    total = sum(data[i] << (0 if i % 2 else 8) for i in range(len(data)))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def tcp(payload: bytes, flags: int = ACK, sequence: int = 7, options: bytes = bytes(12)) -> bytes:
    """A TCP segment whose checksum field has some remains of the pseudo-header's."""
    offset = (20 + len(options)) // 4 << 4
    head = struct.pack(">HHIIBBHHH", 1, 2, sequence, 9, offset, flags, 512, 0x1234, 0)
    return head + options + payload


def udp(payload: bytes) -> bytes:
    return struct.pack(">HHHH", 1, 2, 8 + len(payload), 0x1234) + payload


def over_ip(version: int, protocol: int, data: bytes, tags: int = 0, fragment: int = 0) -> bytes:
    """A frame with this IP version and number of VLAN tags."""
    frame = bytes(range(12)) + b"\x81\x00\x00\x05" * tags
    if version == 6:
        return frame + struct.pack(">HIHBB", 0x86DD, 6 << 28, len(data), protocol, 64) + IPV6 + data
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(data), 65534, fragment, 64, protocol, 0)
    checksum = ones_complement(head + IPV4) ^ 0xFFFF
    return frame + b"\x08\x00" + head[:10] + struct.pack(">H", checksum) + IPV4 + data


def parts(frame: bytes, version: int, tags: int = 0) -> tuple[bytes, bytes]:
    """IP header and what follows it, whose checksums must be right."""
    start = 14 + 4 * tags
    size = 20 if version == 4 else 40
    header, rest = frame[start : start + size], frame[start + size :]
    if version == 4:
        assert ones_complement(header) == 0xFFFF
        assert int.from_bytes(header[2:4], "big") == len(header + rest)
    else:
        assert int.from_bytes(header[4:6], "big") == len(rest)
    protocol = header[9] if version == 4 else header[6]
    addresses = header[12:] if version == 4 else header[8:]
    pseudo = addresses + struct.pack(">II", len(rest), protocol)
    assert ones_complement(pseudo + rest) == 0xFFFF
    return header, rest


VERSIONS = pytest.mark.parametrize("version", [4, 6])


@VERSIONS
@pytest.mark.parametrize("tags", [0, 1, 2])
@pytest.mark.parametrize(("protocol", "data"), [(TCP, tcp(b"odd")), (UDP, udp(b"even"))])
def test_checksums_are_completed(version: int, tags: int, protocol: int, data: bytes) -> None:
    frame = over_ip(version, protocol, data, tags)
    (made,) = completed(frame, MTU)
    assert len(made) == len(frame)
    _, rest = parts(made, version, tags)
    field = 16 if protocol == TCP else 6
    assert rest[:field] + rest[field + 2 :] == data[:field] + data[field + 2 :]


@pytest.mark.slow
def test_a_checksum_of_udp_is_never_0() -> None:
    zero = next(
        number
        for number in range(1 << 16)
        if ones_complement(
            IPV4 + struct.pack(">IIHHHH", 10, UDP, 1, 2, 10, 0) + number.to_bytes(2, "big")
        )
        == 0xFFFF
    )
    (made,) = completed(over_ip(4, UDP, udp(zero.to_bytes(2, "big"))), MTU)
    assert made[40:42] == b"\xff\xff"


@pytest.mark.slow
@VERSIONS
@given(
    payload=st.binary(min_size=1, max_size=300),
    flags=st.integers(0, 255),
    sequence=st.integers(0, (1 << 32) - 1),
    mtu=st.integers(80, 200),
)
def test_segments_carry_the_stream(
    version: int, payload: bytes, flags: int, sequence: int, mtu: int
) -> None:
    made = completed(over_ip(version, TCP, tcp(payload, flags, sequence)), mtu)
    stream = b""
    for number, frame in enumerate(made):
        assert len(frame) - 14 <= mtu
        header, rest = parts(frame, version)
        assert int.from_bytes(rest[4:8], "big") == (sequence + len(stream)) % (1 << 32)
        last, first = number == len(made) - 1, number == 0
        assert rest[13] & FIN_PSH == (flags & FIN_PSH if last else 0)
        assert rest[13] & CWR == (flags & CWR if first else 0)
        assert rest[13] & ~(FIN_PSH | CWR) == flags & ~(FIN_PSH | CWR)
        if version == 4:
            assert int.from_bytes(header[4:6], "big") == (65534 + number) % (1 << 16)
        stream += rest[32:]
        assert last or len(frame) - 14 == mtu
    assert stream == payload


@given(st.binary(max_size=120))
def test_what_is_no_tcp_or_udp_stays_as_it_is(rest: bytes) -> None:
    for frame in (
        rest,
        bytes(12) + b"\x08\x06" + rest,
        over_ip(4, 132, rest),
        over_ip(4, TCP, tcp(rest), fragment=1),
        over_ip(4, TCP, tcp(rest))[:50],
        over_ip(6, TCP, b"short"),
    ):
        assert completed(frame, MTU) == [frame]


@VERSIONS
@pytest.mark.parametrize("offset", range(5))
def test_a_frame_whose_tcp_header_is_too_short_stays_as_it_is(version: int, offset: int) -> None:
    data = bytearray(tcp(bytes(200)))
    data[12] = offset << 4
    frame = over_ip(version, TCP, bytes(data))
    for mtu in (100, MTU):
        assert completed(frame, mtu) == [frame]
