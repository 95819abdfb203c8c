"""Columns of batches of frames (n, length)."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from hopsum.host_agent.codec import (
    EXPONENT_AT,
    FLAGS_AT,
    FRAGMENT_AT,
    HOPS_AT,
    KIND_AT,
    REDUCTION_AT,
    SEQUENCE_AT,
    TOS_AT,
    Frames,
)
from hopsum.protocol.wire import Kind, Reduction, carries_lanes

_U16 = np.dtype(">u2")
_U32 = np.dtype(">u4")


def fragments_of(frames: Frames) -> NDArray[np.int64]:
    """Fragment numbers, modulo 2^32."""
    return frames[:, FRAGMENT_AT : FRAGMENT_AT + 4].view(_U32)[:, 0].astype(np.int64)


def flags_of(frames: Frames) -> NDArray[np.uint8]:
    """Return flags, sharing memory."""
    return frames[:, FLAGS_AT]


def kinds_of(frames: Frames) -> NDArray[np.uint8]:
    """Kinds of packet."""
    kinds: NDArray[np.uint8] = np.bitwise_and(frames[:, KIND_AT], 0x0F)
    return kinds


def exponents_of(frames: Frames) -> NDArray[np.uint8]:
    """Exponent bytes, sharing memory."""
    return frames[:, EXPONENT_AT]


def reductions_of(frames: Frames) -> NDArray[np.uint8]:
    """Return the bytes that hold the reductions, sharing memory (`reduction_byte`)."""
    return frames[:, REDUCTION_AT]


def sequences_of(frames: Frames) -> NDArray[np.int64]:
    """Sequence numbers on the link."""
    return frames[:, SEQUENCE_AT : SEQUENCE_AT + 2].view(_U16)[:, 0].astype(np.int64)


def tos_of(frames: Frames) -> NDArray[np.uint8]:
    """IP ToS bytes, sharing memory. To change them, see `mark`."""
    return frames[:, TOS_AT]


@cache
def _carry_lanes(byte: int, *, up: bool) -> bool:
    return carries_lanes(Reduction(byte >> 4), up=up)


def are_bare(frames: Frames) -> NDArray[np.bool_]:
    """Return which frames (n, length) have no lanes on the wire; a request goes by its stack."""
    kinds, up = kinds_of(frames), frames[:, HOPS_AT] > 0
    up = np.where(kinds == Kind.REQUEST, up, kinds == Kind.CONTRIBUTION)
    carries = [
        _carry_lanes(code, up=way)
        for code, way in zip(reductions_of(frames).tolist(), up.tolist(), strict=True)
    ]
    return ~np.array(carries)
