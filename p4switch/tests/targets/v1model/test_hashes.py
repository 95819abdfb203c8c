"""Hashes and checksums against published check values and slower definitions."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4switch.targets.v1model.hashes import (
    ALGORITHMS,
    CrcConfig,
    csum16,
    hash_of,
    identity,
    make_crc,
    pack_bits,
    reflect,
    xor16,
)

CHECK = b"123456789"
CRC32 = CrcConfig(32, 0x04C11DB7, 0xFFFFFFFF, 0xFFFFFFFF, True, True)


@pytest.mark.parametrize(
    ("config", "value"),
    [
        (CrcConfig(16, 0x8005, 0x0000, 0x0000, True, True), 0xBB3D),  # CRC-16/ARC
        (CrcConfig(16, 0x1021, 0xFFFF, 0x0000, False, False), 0x29B1),  # CRC-16/IBM-3740
        (CrcConfig(16, 0x1021, 0x0000, 0x0000, True, True), 0x2189),  # CRC-16/KERMIT
        (CRC32, 0xCBF43926),
        (CrcConfig(32, 0x04C11DB7, 0xFFFFFFFF, 0xFFFFFFFF, False, False), 0xFC891918),
        (CrcConfig(32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, True, True), 0xE3069283),
    ],
)
def test_crcs_of_the_catalogue(config: CrcConfig, value: int) -> None:
    assert make_crc(config)(CHECK) == value


@given(st.binary(max_size=40))
def test_our_crc32_is_zlibs(data: bytes) -> None:
    assert make_crc(CRC32)(data) == zlib.crc32(data)


def ones_complement_checksum(data: bytes) -> int:
    total = 0
    for index in range(0, len(data), 2):
        total += int.from_bytes(data[index : index + 2].ljust(2, b"\0"), "big")
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


@given(st.binary(max_size=41))
def test_csum16_is_the_internet_checksum(data: bytes) -> None:
    assert csum16(data) == ones_complement_checksum(data)


@given(st.integers(1, 60).flatmap(lambda n: st.just(b"\xff" * n)))
def test_csum16_of_all_ones_is_zero_not_all_ones(data: bytes) -> None:
    assert csum16(data) == ones_complement_checksum(data)


def test_a_packet_with_its_checksum_sums_to_zero() -> None:
    header = bytes.fromhex("4500001800014000401124d00a0000010a010203")
    assert csum16(header) == 0


@given(st.binary(max_size=20), st.binary(max_size=20).filter(lambda b: len(b) % 2 == 0))
def test_xor16_of_a_doubled_even_prefix_cancels(data: bytes, prefix: bytes) -> None:
    assert xor16(prefix + prefix + data) == xor16(data)


def test_short_values() -> None:
    assert xor16(b"\x12") == 0x1200
    assert identity(b"\x01\x02") == 0x0102
    assert identity(bytes(range(1, 10))) == 0x0102030405060708


@given(st.integers(0, 70), st.data())
def test_bits_are_left_aligned(width: int, data: st.DataObject) -> None:
    value = data.draw(st.integers(0, (1 << width) - 1))
    packed = pack_bits(value, width)
    assert len(packed) == (width + 7) // 8
    assert int.from_bytes(packed, "big") >> (-width % 8) == value


@given(st.integers(0, 0xFFFF))
def test_reflection_twice_is_nothing(value: int) -> None:
    assert reflect(reflect(value, 16), 16) == value


def test_every_algorithm_takes_bits() -> None:
    for name in ALGORITHMS:
        assert hash_of(name)(0x3132, 16) == ALGORITHMS[name](b"12")
