"""Canonical byte strings: the shortest big-endian form, at least one byte (P4Runtime 1.5, 8.4)."""

from __future__ import annotations


class ByteStringError(ValueError):
    """A byte string does not fit its field; the message says the width."""


def encode(value: int, width: int | None = None) -> bytes:
    """The canonical byte string of a number; a negative one needs its `width` in bits."""
    if value < 0:
        if width is None:
            raise ByteStringError(f"{value}: a negative number needs a width")
        value &= (1 << width) - 1
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def decode(data: bytes, width: int, what: str = "value") -> int:
    """The number in a byte string, which need not be canonical; ByteStringError if too large."""
    if not data:
        raise ByteStringError(f"{what}: an empty byte string; expected at least one byte")
    value = int.from_bytes(data, "big")
    if value >> width:
        raise ByteStringError(f"{what}: {value:#x} does not fit {width} bits")
    return value
