"""`packet_in` and `packet_out`: a cursor over a frame's bits, and a frame in the making."""

from __future__ import annotations

from p4switch.backends.reference.values import Object, ParserFault


class PacketIn:
    """A frame being parsed. `cursor` and `end` count bits."""

    __slots__ = ("cursor", "data", "end")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.cursor = 0
        self.end = len(data) * 8

    def take(self, width: int) -> int:
        """Return the bit the next `width` bits start at, having moved beyond them."""
        start = self.cursor
        if start + width > self.end:
            raise ParserFault("PacketTooShort")
        self.cursor = start + width
        return start

    def bits(self, start: int, width: int) -> int:
        """`width` bits from bit `start`, as a number."""
        end = start + width
        whole = int.from_bytes(self.data[start >> 3 : (end + 7) >> 3], "big")
        return whole >> (-end & 7) & (1 << width) - 1

    def _unpack(self, target: Object, start: int, width: int) -> None:
        if start & 7:
            size = (width + 7) // 8
            raw = self.bits(start, width) << (size * 8 - width)
            target.unpack(raw.to_bytes(size, "big"), 0)
        else:
            target.unpack(self.data, start >> 3)

    def extract(self, header: Object) -> None:
        """Fill a header of fixed width and make it valid."""
        width = header.WIDTH
        self._unpack(header, self.take(width), width)

    def extract_varbit(self, header: Object, varbit_width: int) -> None:
        """Fill a header with a varbit of `varbit_width` bits and make it valid.

        The order of the checks is BMv2's (parser.cpp, extract_VL).
        """
        if varbit_width % 8:
            raise ParserFault("ParserInvalidArgument")
        width = header.WIDTH + varbit_width
        if self.cursor + width > self.end:
            raise ParserFault("PacketTooShort")
        if varbit_width > header.MAX_VARBIT:
            raise ParserFault("HeaderTooShort")
        header.unpack_bits(self.bits(self.take(width), width), varbit_width)

    def peek(self, width: int) -> int:
        """Return the next `width` bits, the cursor left where it is."""
        if self.cursor + width > self.end:
            raise ParserFault("PacketTooShort")
        return self.bits(self.cursor, width)

    def peek_into(self, target: Object) -> None:
        """Fill an object of fixed width from the next bits."""
        if self.cursor + target.WIDTH > self.end:
            raise ParserFault("PacketTooShort")
        self._unpack(target, self.cursor, target.WIDTH)

    def advance(self, width: int) -> None:
        """Skip `width` bits."""
        self.take(width)

    def length(self) -> int:
        """Bytes of the whole packet."""
        return self.end >> 3

    def payload(self) -> tuple[int, int]:
        """Return what is left: (value, width in bits)."""
        width = self.end - self.cursor
        return self.bits(self.cursor, width), width

    def payload_bytes(self) -> bytes:
        """Return what is left, from the next whole byte on."""
        return self.data[(self.cursor + 7) >> 3 :]


class PacketOut:
    """A frame being put together, header by header."""

    __slots__ = ("_parts", "_pending", "_pending_width")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._pending = 0  # bits after the last whole byte
        self._pending_width = 0

    def emit(self, header: Object) -> None:
        """Append a valid header."""
        if header.WHOLE_BYTES and self._pending_width == 0:
            self._parts.append(header.pack())
        else:
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
