"""Packet-in and packet-out: the controller headers of a program as P4Runtime metadata."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from p4switch.ir import Header, Program
from p4switch.p4runtime.bytestrings import decode, encode
from p4switch.p4runtime.names import controller_headers, controller_name, header_fields
from p4switch.p4runtime.string_types import StringType, StringTypes
from p4switch.proto import p4r
from p4switch.targets.v1model.engine import ControlError
from p4switch.targets.v1model.matches import scalar_width


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    width: int
    metadata_id: int | None
    """None for a field that is not in P4Info."""
    strings: StringType | None


class ControllerHeader:
    """A header before frames that cross the CPU port; without a type it is empty."""

    def __init__(self, header: Header | None, strings: StringTypes) -> None:
        self.name = controller_name(header) if header is not None else ""
        self._fields = [
            _Field(
                item.field.name,
                width := scalar_width(item.field.type),
                item.id,
                strings.of(item.field.type_name, width),
            )
            for item in (header_fields(header) if header is not None else ())
        ]
        self.width = sum(field.width for field in self._fields)
        self.size = (self.width + 7) // 8

    def pack(self, metadata: Sequence[p4r.PacketMetadata]) -> bytes:
        """Return the header from packet-out metadata.

        INVALID_ARGUMENT unless each field is given once.
        """
        given = {item.metadata_id: item.value for item in metadata}
        expected = [f.metadata_id for f in self._fields if f.metadata_id is not None]
        if sorted(item.metadata_id for item in metadata) != sorted(expected):
            raise ControlError(
                "INVALID_ARGUMENT",
                f"packet-out: metadata ids {[item.metadata_id for item in metadata]} are given; "
                f"expected {expected}, each once",
            )
        bits = 0
        for field in self._fields:
            value = 0
            if field.metadata_id is not None:
                what = f"packet-out metadata {field.name!r}"
                data = given[field.metadata_id]
                if field.strings is None:
                    value = decode(data, field.width, what)
                else:
                    value = field.strings.number(data)
            bits = bits << field.width | value
        return (bits << (self.size * 8 - self.width)).to_bytes(self.size, "big")

    def unpack(self, frame: bytes) -> p4r.PacketIn | None:
        """Return a frame that left at the CPU port as a packet-in; None if it is too short."""
        if len(frame) < self.size:
            return None
        message = p4r.PacketIn(payload=frame[self.size :])
        bits = int.from_bytes(frame[: self.size], "big")
        left = self.size * 8
        for field in self._fields:
            left -= field.width
            if field.metadata_id is not None:
                value = bits >> left & (1 << field.width) - 1
                data = encode(value) if field.strings is None else field.strings.string(value)
                message.metadata.add(metadata_id=field.metadata_id, value=data)
        return message


class PacketHeaders:
    """A program's packet-in and packet-out headers."""

    def __init__(self, program: Program, strings: StringTypes) -> None:
        found = {controller_name(header): header for header in controller_headers(program)}
        self.packet_in = ControllerHeader(found.get("packet_in"), strings)
        self.packet_out = ControllerHeader(found.get("packet_out"), strings)
