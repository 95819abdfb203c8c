"""Encoding of frames as bytes, field by field in the order of the dataclasses.

Whole numbers are varints (LEB128, seven bits a byte, the lowest first), texts and tuples begin with
their length, and a message begins with its place in `MESSAGES`. A bit vector is its length, its
iteration and its words of 32 bits, big-endian. docs/coordination.md has the layout with an example.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from hopsum.coordination.messages import Frame, Message
from hopsum.coordination.operators import WORD_BITS, BitVector
from hopsum.protocol.errors import InputError

MESSAGES: tuple[type, ...] = get_args(Message)
"""Message types by number; 0 on the wire is no message, 1 the first of these."""

VERSION = 1
"""Version of the layout of frames and messages: incremented by every change."""
_PREFACE = struct.Struct(">4sH")
_MAGIC = b"HSCO"
LENGTH = struct.Struct(">I")
"""On a stream every frame is preceded by its length in bytes."""
MOST_BYTES = 1 << 24
"""Maximum length of a frame: an order table of some 200,000 operators."""
_MOST_VARINT = 10


class FrameError(InputError):
    """Bytes that are not a frame; the message says where they are wrong."""


class VersionError(FrameError):
    """The other end uses another version of the layout; the message names both."""

    def __init__(self, version: int) -> None:
        super().__init__(
            f"its messages have version {version}, those of this process version {VERSION}: run "
            "the same version of hopsum on all hosts"
        )


def preface(version: int = VERSION) -> bytes:
    """Return the preface of a stream, sent in both directions."""
    return _PREFACE.pack(_MAGIC, version)


def encode(frame: Frame) -> bytes:
    """Return a frame's bytes, without its length."""
    out = bytearray()
    for value in (
        frame.source,
        frame.target,
        frame.incarnation,
        frame.to,
        frame.sequence,
        frame.acknowledged,
    ):
        _write_number(out, value)
    if frame.message is None:
        out.append(0)
    else:
        kind: type = type(frame.message)
        out.append(1 + MESSAGES.index(kind))
        _writer(kind)(out, frame.message)
    return bytes(out)


def decode(data: bytes) -> Frame:
    """Return the frame encoded in bytes by `encode`. Raises FrameError."""
    reader = _Reader(data)
    source, target, incarnation, to, sequence, acknowledged = (reader.number() for _ in range(6))
    kind = reader.byte()
    if kind > len(MESSAGES):
        raise FrameError(f"message number {kind}; expected 0 to {len(MESSAGES)}")
    message = _reader(MESSAGES[kind - 1])(reader) if kind else None
    if reader.at != len(data):
        raise FrameError(f"{len(data)} bytes, of which the message takes {reader.at}")
    return Frame(source, target, incarnation, to, sequence, acknowledged, message)


class FrameReader:
    """Splits the bytes of a connection into a preface and frames."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._begun = False

    def take(self, data: bytes) -> list[Frame]:
        """Return the frames that are complete with these bytes. Raises FrameError, VersionError."""
        self._rest += data
        frames: list[Frame] = []
        at = 0
        if not self._begun:
            if len(self._rest) < _PREFACE.size:
                return frames
            magic, version = _PREFACE.unpack_from(self._rest)
            if magic != _MAGIC:
                raise FrameError(
                    f"{bytes(self._rest[:8])!r} do not begin as coordination does, with {_MAGIC!r}"
                )
            if version != VERSION:
                raise VersionError(version)
            at, self._begun = _PREFACE.size, True
        while len(self._rest) - at >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._rest, at)
            if length > MOST_BYTES:
                raise FrameError(f"a frame of {length} bytes; expected {MOST_BYTES} at most")
            end = at + LENGTH.size + length
            if end > len(self._rest):
                break
            frames.append(decode(bytes(self._rest[at + LENGTH.size : end])))
            at = end
        del self._rest[:at]
        return frames


def framed(frame: Frame) -> bytes:
    """Return a frame's bytes on a stream: with its length before them."""
    data = encode(frame)
    return LENGTH.pack(len(data)) + data


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise FrameError(f"{len(self.data)} bytes end within a field at {self.at}")
        self.at += count
        return self.data[self.at - count : self.at]

    def byte(self) -> int:
        return self.take(1)[0]

    def number(self) -> int:
        value = 0
        for place in range(_MOST_VARINT):
            byte = self.byte()
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                return value
        raise FrameError(f"a number at {self.at - _MOST_VARINT} has no end")


def _write_number(out: bytearray, value: int) -> None:
    if not 0 <= value < 1 << 7 * _MOST_VARINT:
        raise FrameError(f"number {value}; expected 0 to 2^{7 * _MOST_VARINT} - 1")
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


@cache
def _writer(kind: Any) -> Callable[[bytearray, Any], None]:
    """Return the encoder of a type."""
    if kind is int or kind is bool:
        return _write_number
    if kind is str:
        return _write_text
    if kind is BitVector:
        return _write_vector
    if get_origin(kind) is tuple:
        members = get_args(kind)
        if members[-1] is Ellipsis:
            write = _writer(members[0])

            def write_all(out: bytearray, values: tuple[Any, ...]) -> None:
                _write_number(out, len(values))
                for value in values:
                    write(out, value)

            return write_all
        writes = [_writer(member) for member in members]

        def write_each(out: bytearray, values: tuple[Any, ...]) -> None:
            for write, value in zip(writes, values, strict=True):
                write(out, value)

        return write_each
    named = [(name, _writer(hint)) for name, hint in _hints(kind)]

    def write_fields(out: bytearray, value: Any) -> None:
        for name, write in named:
            write(out, getattr(value, name))

    return write_fields


@cache
def _reader(kind: Any) -> Callable[[_Reader], Any]:
    """Return the decoder of a type."""
    if kind is int:
        return _Reader.number
    if kind is bool:
        return _read_truth
    if kind is str:
        return _read_text
    if kind is BitVector:
        return _read_vector
    if get_origin(kind) is tuple:
        members = get_args(kind)
        if members[-1] is Ellipsis:
            read = _reader(members[0])
            return lambda reader: tuple(read(reader) for _ in range(reader.number()))
        reads = [_reader(member) for member in members]
        return lambda reader: tuple(read(reader) for read in reads)
    reads = [_reader(hint) for _, hint in _hints(kind)]
    return lambda reader: kind(*[read(reader) for read in reads])


def _hints(kind: type) -> list[tuple[str, Any]]:
    hints = get_type_hints(kind)
    return [(field.name, hints[field.name]) for field in fields(kind)]


def _read_truth(reader: _Reader) -> bool:
    value = reader.number()
    if value > 1:
        raise FrameError(f"truth value {value} before byte {reader.at}; expected 0 or 1")
    return bool(value)


def _write_text(out: bytearray, text: str) -> None:
    data = text.encode()
    _write_number(out, len(data))
    out += data


def _read_text(reader: _Reader) -> str:
    try:
        return reader.take(reader.number()).decode()
    except UnicodeDecodeError as error:
        raise FrameError(f"text before byte {reader.at}: {error}") from None


def _write_vector(out: bytearray, vector: BitVector) -> None:
    _write_number(out, vector.length)
    _write_number(out, vector.iteration)
    out += struct.pack(f">{len(vector.words)}I", *vector.words)


def _read_vector(reader: _Reader) -> BitVector:
    length, iteration = reader.number(), reader.number()
    count = -(-length // WORD_BITS)
    words = struct.unpack(f">{count}I", reader.take(4 * count))
    return BitVector.from_words(length, words, iteration)
