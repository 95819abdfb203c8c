"""The hash and checksum algorithms of v1model, over bits packed as BMv2 packs them.

Fields are concatenated, most significant bit first, and the last byte is padded with
zeros (BMv2, src/bm_sim/calculations.cpp, BufBuilder).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

Hash = Callable[[int, int], int]
"""(value, width in bits) -> hash."""


def pack_bits(value: int, width: int) -> bytes:
    """Return bits as bytes, the last one padded with zeros."""
    size = (width + 7) // 8
    return (value << (size * 8 - width)).to_bytes(size, "big")


@dataclass(frozen=True, slots=True)
class CrcConfig:
    """Parameters of a CRC, as BMv2's `set_crc16_parameters` takes them."""

    width: int
    polynomial: int
    initial: int
    final_xor: int
    reflect_data: bool
    reflect_remainder: bool


CRC16 = CrcConfig(16, 0x8005, 0x0000, 0x0000, True, True)
CRC32 = CrcConfig(32, 0x04C11DB7, 0xFFFFFFFF, 0xFFFFFFFF, True, True)


def reflect(value: int, width: int) -> int:
    """Return a number with its bits reversed."""
    return int(f"{value:0{width}b}"[::-1], 2)


def make_crc(config: CrcConfig) -> Callable[[bytes], int]:
    """Return a CRC function that uses a table entry per byte."""
    top = 1 << (config.width - 1)
    mask = (top << 1) - 1
    table = []
    for dividend in range(256):
        remainder = dividend << (config.width - 8)
        for _ in range(8):
            remainder = remainder << 1 ^ (config.polynomial if remainder & top else 0)
        table.append(remainder & mask)
    reflected = [reflect(byte, 8) if config.reflect_data else byte for byte in range(256)]
    shift = config.width - 8

    def crc(data: bytes) -> int:
        remainder = config.initial
        for byte in data:
            remainder = table[reflected[byte] ^ remainder >> shift] ^ (remainder << 8 & mask)
        if config.reflect_remainder:
            remainder = reflect(remainder, config.width)
        return remainder ^ config.final_xor

    return crc


def csum16(data: bytes) -> int:
    """Return the ones' complement checksum of RFC 1071."""
    if len(data) % 2:
        data += b"\0"
    # 65536 = 1 modulo 65535, so the number modulo 65535 is the ones' complement sum of its words
    number = int.from_bytes(data, "big")
    total = number % 0xFFFF
    if total == 0 and number:
        total = 0xFFFF
    return total ^ 0xFFFF


def xor16(data: bytes) -> int:
    """Return the exclusive or of all 16-bit words, the last byte padded on the right."""
    if len(data) % 2:
        data += b"\0"
    result = 0
    for index in range(0, len(data), 2):
        result ^= data[index] << 8 | data[index + 1]
    return result


def identity(data: bytes) -> int:
    """Return the first eight bytes as a number."""
    return int.from_bytes(data[:8], "big")


_crc16 = make_crc(CRC16)

ALGORITHMS: dict[str, Callable[[bytes], int]] = {
    "crc32": zlib.crc32,
    "crc32_custom": zlib.crc32,
    "crc16": _crc16,
    "crc16_custom": _crc16,
    "csum16": csum16,
    "xor16": xor16,
    "identity": identity,
}
"""Hash functions by HashAlgorithm member. The custom CRCs begin as the standard ones, as in
BMv2; only those of `hash` can be set (`calculations`).

`random` is missing: it is no function of the data (see `externs`).
"""


def hash_of(algorithm: str) -> Hash:
    """Return the algorithm as a function of packed bits; KeyError if there is none."""
    function = ALGORITHMS[algorithm]

    def digest(value: int, width: int) -> int:
        return function(pack_bits(value, width))

    return digest
