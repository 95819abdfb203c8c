"""Canonical byte strings: the shortest big-endian form, at least one byte (P4Runtime 1.5, 8.4)."""

from __future__ import annotations


class ByteStringError(ValueError):
    """A byte string does not fit its field; the message names the width."""


def encode(value: int) -> bytes:
    """Return the canonical byte string of a `bit<W>` number."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def decode(data: bytes, width: int, what: str = "value") -> int:
    """Return the number of a byte string, which need not be canonical.

    ByteStringError if too large.
    """
    if not data:
        raise ByteStringError(f"{what}: an empty byte string; expected at least one byte")
    value = int.from_bytes(data, "big")
    if value >> width:
        raise ByteStringError(f"{what}: {value:#x} does not fit {width} bits")
    return value


def encode_signed(value: int) -> bytes:
    """Return the canonical byte string of an `int<W>` number: two's complement."""
    magnitude = value if value >= 0 else ~value
    return value.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


def decode_signed(data: bytes, width: int, what: str = "value") -> int:
    """Return the `int<width>` number of a byte string; ByteStringError if it does not fit."""
    if not data:
        raise ByteStringError(f"{what}: an empty byte string; expected at least one byte")
    value = int.from_bytes(data, "big", signed=True)
    if not -(1 << width - 1) <= value < 1 << width - 1:
        raise ByteStringError(f"{what}: {value} does not fit int<{width}>")
    return value
