"""Frames without lanes on the wire, which agents handle as if they had lanes of zeros."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hopsum.host_agent.codec import (
    CHECKSUM_AT,
    HOPS_AT,
    KIND_AT,
    REDUCTION_AT,
    TOTAL_LENGTH_AT,
    UDP_LENGTH_AT,
    Frames,
    every,
    reduction_byte,
)
from hopsum.protocol.wire import LANE_BYTES, Kind, Reduction, carries_lanes

_BY_STACK = 2


def _bare_kinds() -> bytes:
    """Return by kind << 4 | reduction: whether frames have no lanes on the wire, or _BY_STACK."""
    bare = bytearray(256)
    for reduction in Reduction:
        up, down = (not carries_lanes(reduction, up=up) for up in (True, False))
        for kind in Kind:
            bare[kind << 4 | reduction] = up if kind is Kind.CONTRIBUTION else down
        if up != down:
            bare[Kind.REQUEST << 4 | reduction] = _BY_STACK
    return bytes(bare)


_BARE_KINDS = _bare_kinds()
_BARE_KINDS_OF = np.frombuffer(_BARE_KINDS, np.uint8)


def are_bare(frames: Frames) -> NDArray[np.bool_]:
    """Return which frames (n, length) have no lanes on the wire.

    See `hopsum.protocol.wire.carries_lanes`. A request goes by its stack.
    """
    codes = frames[:, KIND_AT] << 4
    codes |= frames[:, REDUCTION_AT] >> 4
    bare: NDArray[np.uint8] = _BARE_KINDS_OF[codes]
    if np.count_nonzero(bare == _BY_STACK):
        up = frames[:, HOPS_AT] > 0
        broadcast = frames[:, REDUCTION_AT] == reduction_byte(Reduction.BROADCAST)
        bare = np.where(bare == _BY_STACK, up == broadcast, bare)
    return bare.astype(np.bool_)


def with_lanes(frames: Frames, lanes: int) -> list[Frames]:
    """Return received frames (n, length), with zero lanes added where the wire has none.

    Agents look at frames of either kind alike. Each batch has one length.
    """
    if frames.shape[1] <= HOPS_AT:
        return [frames]
    size = LANE_BYTES * lanes
    return [_resized(run, size) if bare else run for bare, run in _runs(frames)]


def without_lanes(batches: Sequence[Frames], lanes: int) -> list[Frames]:
    """Return frames as they are sent: those without lanes on the wire lose their zero lanes.

    Each batch, given and returned, has one length.
    """
    size = LANE_BYTES * lanes
    return [
        _resized(run, -size) if bare else run for frames in batches for bare, run in _runs(frames)
    ]


def _runs(frames: Frames) -> list[tuple[bool, Frames]]:
    """Split frames (n, length) where those without lanes on the wire begin and end."""
    if not len(frames):
        return [(False, frames)]
    # Nearly always all are alike. Bytes are compared many times as fast as short arrays.
    fields = frames[:, KIND_AT : REDUCTION_AT + 1].tobytes()
    width = REDUCTION_AT + 1 - KIND_AT
    kinds, reductions = fields[::width], fields[width - 1 :: width]
    if kinds.count(kinds[:1]) == reductions.count(reductions[:1]) == len(frames):
        bare = _BARE_KINDS[(kinds[0] & 0x0F) << 4 | reductions[0] >> 4]
        if bare != _BY_STACK:
            return [(bool(bare), frames)]
    mask = are_bare(frames)
    if every(mask == mask[0]):
        return [(bool(mask[0]), frames)]
    starts = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist()]
    parts = np.split(frames, starts[1:])
    return [(bool(mask[start]), part) for start, part in zip(starts, parts, strict=True)]


_LENGTHS = slice(TOTAL_LENGTH_AT, UDP_LENGTH_AT + 2)
"""The bytes of a frame from its IP length to its UDP length."""


def _resized(frames: Frames, change: int) -> Frames:
    """Return copies of frames with `change` more bytes at their ends, zeros, or fewer.

    Their headers say so.
    """
    count, length = frames.shape
    resized = np.empty((count, length + change), dtype=np.uint8)
    if change > 0:
        resized[:, :length] = frames
        resized[:, length:] = 0
    else:
        resized[...] = frames[:, : length + change]
    lengths = frames[:, _LENGTHS].tobytes()
    each = _LENGTHS.stop - _LENGTHS.start
    if lengths == lengths[:each] * count:
        resized[:, _LENGTHS] = _changed(lengths[:each], change)
    else:
        for row in range(count):
            resized[row, _LENGTHS] = _changed(lengths[row * each : (row + 1) * each], change)
    return resized


@lru_cache(maxsize=1024)
def _changed(lengths: bytes, change: int) -> NDArray[np.uint8]:
    """Return a frame's bytes `_LENGTHS` once it is `change` bytes longer (RFC 1624 checksum)."""
    changed = bytearray(lengths)

    def word(at: int) -> slice:
        return slice(at - _LENGTHS.start, at - _LENGTHS.start + 2)

    total, udp, checksum = word(TOTAL_LENGTH_AT), word(UDP_LENGTH_AT), word(CHECKSUM_AT)
    before = int.from_bytes(changed[total], "big")
    after = (before + change) & 0xFFFF
    folded = (~int.from_bytes(changed[checksum], "big") & 0xFFFF) + (~before & 0xFFFF) + after
    folded = (folded & 0xFFFF) + (folded >> 16)
    folded = (folded & 0xFFFF) + (folded >> 16)
    changed[checksum] = (~folded & 0xFFFF).to_bytes(2, "big")
    changed[total] = after.to_bytes(2, "big")
    changed[udp] = ((int.from_bytes(changed[udp], "big") + change) & 0xFFFF).to_bytes(2, "big")
    return np.frombuffer(bytes(changed), np.uint8)
