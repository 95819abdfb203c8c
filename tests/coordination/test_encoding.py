"""Frames of the coordination as bytes."""

from __future__ import annotations

import hashlib
import re
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.coordination.encoding import (
    MESSAGES,
    MOST_BYTES,
    VERSION,
    FrameError,
    FrameReader,
    VersionError,
    decode,
    encode,
    framed,
    preface,
)
from hopsum.coordination.messages import Frame, MissingRanks, Probe, Vector
from hopsum.coordination.operators import BitVector
from tests.support.paths import ROOT

DOCUMENT = (ROOT / "docs" / "coordination.md").read_text()

numbers = st.integers(0, 2**63)
vectors = st.integers(0, 100).flatmap(
    lambda length: st.builds(BitVector, st.just(length), st.integers(0, 2**length - 1), numbers)
)
st.register_type_strategy(BitVector, vectors)
st.register_type_strategy(int, numbers)
frames = st.builds(
    Frame,
    *[numbers] * 6,
    st.one_of(st.none(), *[st.from_type(kind) for kind in MESSAGES]),
)


@pytest.mark.slow
@given(st.lists(frames, max_size=4), st.integers(1, 50))
def test_frames_come_out_as_they_went_in(sent: list[Frame], piece: int) -> None:
    data = preface() + b"".join(framed(frame) for frame in sent)
    stream = FrameReader()
    taken = []
    for start in range(0, len(data), piece):
        taken += stream.take(data[start : start + piece])
    assert taken == sent


@pytest.mark.slow
@given(frames, st.data())
def test_a_shortened_frame_is_an_error(frame: Frame, data: st.DataObject) -> None:
    whole = encode(frame)
    with pytest.raises(FrameError):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(FrameError):
        decode(whole + b"\0")


@given(st.binary(max_size=60))
def test_other_bytes_are_an_error_or_a_frame(data: bytes) -> None:
    try:
        frame = decode(data)
    except FrameError:
        return
    assert decode(encode(frame)) == frame


def test_the_document_says_the_layout() -> None:
    frame = Frame(3, 1, 300, 7, 2, 9, Vector(5, BitVector(33, 1 << 32 | 6, 4)))
    block = re.search(r"^```\n([0-9a-f ]+)\n```$", DOCUMENT, re.MULTILINE)
    assert block is not None
    assert encode(frame) == bytes.fromhex(block[1])
    numbered = re.findall(r"(\d+) (\w+)[,.]", DOCUMENT.partition("Message types:")[2])
    expected = [(str(number), kind.__name__) for number, kind in enumerate(MESSAGES, start=1)]
    assert numbered[: len(MESSAGES)] == expected
    assert encode(Frame(3, 1, 300, 7, 0, 9)) == bytes([3, 1, 0xAC, 2, 7, 0, 9, 0])


def test_errors_are_named() -> None:
    with pytest.raises(FrameError, match="message number 200"):
        decode(bytes([0] * 6 + [200]))
    with pytest.raises(FrameError, match="has no end"):
        decode(b"\xff" * 20)
    with pytest.raises(FrameError, match="number -1"):
        encode(Frame(0, 1, 1, 1, 1, 0, MissingRanks(Probe(1, "a", 0), (-1,))))
    with pytest.raises(FrameError, match="expected 16777216 at most"):
        FrameReader().take(preface() + (MOST_BYTES + 1).to_bytes(4))


def test_a_stream_begins_with_the_version_of_its_frames() -> None:
    stream = FrameReader()
    for byte in preface():
        assert stream.take(bytes([byte])) == []
    frame = Frame(0, 1, 300, 7, 0, 9)
    assert stream.take(framed(frame)) == [frame]
    newer = f"version {VERSION + 1}, those of this process version {VERSION}: .*same version of"
    with pytest.raises(VersionError, match=newer):
        FrameReader().take(preface(VERSION + 1) + framed(frame))
    with pytest.raises(FrameError, match="do not begin as coordination does") as caught:
        FrameReader().take(framed(frame))
    assert not isinstance(caught.value, VersionError)
    assert f"`{preface().hex(' ')}`" in DOCUMENT


def test_a_version_is_one_layout() -> None:
    """Whoever changes what messages hold counts VERSION up, and notes the new digest here."""
    layout = repr([(kind.__name__, layout_of(kind)) for kind in (Frame, *MESSAGES)])
    digest = hashlib.sha256(layout.encode()).hexdigest()[:16]
    assert (VERSION, digest) == (1, "41a8d2f885827734")


def layout_of(kind: Any) -> Any:
    """A type as its fields, down to numbers and texts."""
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return [(field.name, layout_of(hints[field.name])) for field in fields(kind)]
    if get_origin(kind) is tuple:
        return [layout_of(member) for member in get_args(kind)]
    return getattr(kind, "__name__", str(kind)) if get_origin(kind) is None else "message"
