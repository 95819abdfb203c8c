"""Canonical byte strings: the shortest big-endian form, at least one byte (P4Runtime 1.5, 8.4)."""

from __future__ import annotations

from p4switch.targets.v1model.engine import ControlError


def encode(value: int) -> bytes:
    """Return the canonical byte string of a `bit<W>` number."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def decode(data: bytes, width: int, what: str = "value") -> int:
    """Return the number of a byte string, which need not be canonical.

    INVALID_ARGUMENT if it is empty or does not fit. (Section 8.4 of the specification says
    OUT_OF_RANGE; the sections on matches and parameters, and BMv2, INVALID_ARGUMENT.)
    """
    if not data:
        raise _empty(what)
    value = int.from_bytes(data, "big")
    if value >> width:
        raise ControlError("INVALID_ARGUMENT", f"{what}: {value:#x} does not fit {width} bits")
    return value


def encode_signed(value: int) -> bytes:
    """Return the canonical byte string of an `int<W>` number: two's complement."""
    magnitude = value if value >= 0 else ~value
    return value.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


def decode_signed(data: bytes, width: int, what: str = "value") -> int:
    """Return the `int<width>` number of a byte string; INVALID_ARGUMENT if it does not fit."""
    if not data:
        raise _empty(what)
    value = int.from_bytes(data, "big", signed=True)
    if not -(1 << width - 1) <= value < 1 << width - 1:
        raise ControlError("INVALID_ARGUMENT", f"{what}: {value} does not fit int<{width}>")
    return value


def _empty(what: str) -> ControlError:
    return ControlError(
        "INVALID_ARGUMENT", f"{what}: an empty byte string; expected at least one byte"
    )
