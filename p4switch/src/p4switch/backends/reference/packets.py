"""`packet_in` and `packet_out` of core.p4: a cursor over a frame's bits, and a frame builder.

Sections are those of the P4_16 specification 1.2.5.
"""

from __future__ import annotations

from p4switch.backends.reference.values import (
    BitString,
    HeaderValue,
    ParserFault,
    StackValue,
    StructValue,
)


class PacketIn:
    """A frame being parsed (13.8). `cursor` and `end` count bits."""

    __slots__ = ("cursor", "data", "end")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.cursor = 0
        self.end = len(data) * 8

    def peek(self, width: int) -> int:
        """`lookahead<bit<width>>()` (13.8.3): the next bits as a number; the cursor stays."""
        start, end = self.cursor, self.cursor + width
        if end > self.end:
            raise ParserFault("PacketTooShort")
        whole = int.from_bytes(self.data[start >> 3 : (end + 7) >> 3], "big")
        return whole >> (-end & 7) & (1 << width) - 1

    def extract(self, header: HeaderValue) -> None:
        """`extract(header)` of fixed width (13.8.1)."""
        width = header.shape.width
        header.fill(self.peek(width))
        self.cursor += width

    def extract_varbit(self, header: HeaderValue, varbit_width: int) -> None:
        """`extract(header, width)` (13.8.2), the varbit `varbit_width` bits wide.

        The order of the checks, which the specification leaves open, is BMv2's (parser.cpp,
        extract_VL).
        """
        if varbit_width % 8:
            raise ParserFault("ParserInvalidArgument")
        width = header.shape.width + varbit_width
        if self.cursor + width > self.end:
            raise ParserFault("PacketTooShort")
        if varbit_width > header.shape.max_varbit:
            raise ParserFault("HeaderTooShort")
        header.fill(self.peek(width), varbit_width)
        self.cursor += width

    def advance(self, width: int) -> None:
        """`advance(width)`: skip bits (13.8.4)."""
        if self.cursor + width > self.end:
            raise ParserFault("PacketTooShort")
        self.cursor += width

    def length(self) -> int:
        """`length()`: bytes of the whole packet (13.8)."""
        return self.end >> 3

    def payload(self) -> BitString:
        """Return what is left."""
        width = self.end - self.cursor
        return self.peek(width), width

    def payload_bytes(self) -> bytes:
        """Return what is left, from the next whole byte on."""
        return self.data[(self.cursor + 7) >> 3 :]


class PacketOut:
    """A frame being built, header by header (16.1)."""

    __slots__ = ("_parts", "_pending", "_pending_width")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._pending = 0  # Bits after the last whole byte.
        self._pending_width = 0

    def emit(self, value: StructValue | StackValue) -> None:
        """`emit(value)`: append a valid header, or all valid headers of a value (16.1)."""
        for header in value.headers():
            if header.valid:
                self.append(*header.bits())

    def append(self, value: int, width: int) -> None:
        """Append bits."""
        value |= self._pending << width
        width += self._pending_width
        self._pending_width = width % 8
        self._pending = value & (1 << self._pending_width) - 1
        self._parts.append((value >> self._pending_width).to_bytes(width // 8, "big"))

    def finish(self, rest: PacketIn) -> bytes:
        """Return what was emitted, then what the parser left, padded to a whole byte."""
        if self._pending_width or rest.cursor & 7:
            self.append(*rest.payload())
            self.append(0, -self._pending_width % 8)
        else:
            self._parts.append(rest.payload_bytes())
        return b"".join(self._parts)
