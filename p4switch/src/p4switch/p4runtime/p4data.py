"""`P4Data` messages: values of registers and digests by their P4 type (P4Runtime 1.5, 8.5)."""

from __future__ import annotations

from collections.abc import Iterator

from p4switch.ir import Bits, Bool, Struct, Type
from p4switch.p4runtime.bytestrings import decode, decode_signed, encode, encode_signed
from p4switch.proto import p4d
from p4switch.targets.v1model.engine import ControlError


def to_message(kind: Type, values: Iterator[int]) -> p4d.P4Data:
    """Return the message of a value; `values` yields its scalars in order, unsigned."""
    if isinstance(kind, Struct):
        message = p4d.P4Data()
        members = message.tuple if kind.name.startswith("tuple") else message.struct
        members.SetInParent()
        for field in kind.fields:
            members.members.append(to_message(field.type, values))
        return message
    value = next(values)
    if isinstance(kind, Bool):
        return p4d.P4Data(bool=bool(value))
    if isinstance(kind, Bits) and kind.signed:
        return p4d.P4Data(bitstring=encode_signed(as_signed(value, kind.width)))
    return p4d.P4Data(bitstring=encode(value))


def from_message(kind: Type, message: p4d.P4Data, what: str) -> int:
    """Return the scalar of a message, unsigned; ControlError if it is not of the type."""
    given = message.WhichOneof("data")
    expected = "bool" if isinstance(kind, Bool) else "bitstring"
    if given != expected:
        raise ControlError("INVALID_ARGUMENT", f"{what}: expected data of kind {expected}")
    if isinstance(kind, Bool):
        return int(message.bool)
    if not isinstance(kind, Bits):
        raise ControlError("UNIMPLEMENTED", f"{what}: only bits and bool can be written")
    if kind.signed:
        return decode_signed(message.bitstring, kind.width, what) & (1 << kind.width) - 1
    return decode(message.bitstring, kind.width, what)


def as_signed(value: int, width: int) -> int:
    """Return the two's complement number of `width` bits."""
    return value - (1 << width) if value >> (width - 1) & 1 else value
