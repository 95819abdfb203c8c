"""Batches of hopsum frames: recognition of a stream's frames, and frames from header and lanes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopsum.network.model import Network
from hopsum.protocol.wire import (
    CHILD_MASK,
    CHILD_SHIFT,
    ETHERNET_BYTES,
    HEADER_BYTES,
    HOP_BYTES,
    IPV4_BYTES,
    LANE_BYTES,
    UDP_BYTES,
    VERSION,
    Address,
    Flag,
    Header,
    Hop,
    Kind,
    Reduction,
    frame_bytes,
    frame_template,
    ipv4_checksum,
)

Frames = NDArray[np.uint8]
"""Frames of one length: shape (n, length)."""

HEADER_START = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES
STACK_START = HEADER_START + HEADER_BYTES
JOB_START = HEADER_START + 4
TREE_AT = HEADER_START + 6
MAC_BYTES, IP_BYTES = 6, 4
SOURCE_IP_AT = ETHERNET_BYTES + 12
DESTINATION_IP_AT = SOURCE_IP_AT + IP_BYTES
TOS_AT = ETHERNET_BYTES + 1
TOTAL_LENGTH_AT = ETHERNET_BYTES + 2
CHECKSUM_AT = ETHERNET_BYTES + 10
UDP_LENGTH_AT = ETHERNET_BYTES + IPV4_BYTES + 4
KIND_AT = HEADER_START
HOPS_AT = HEADER_START + 7
FLAGS_AT = HEADER_START + 1
REDUCTION_AT = HEADER_START + 2
EXPONENT_AT = HEADER_START + 3
WORKER_AT = HEADER_START + 10
FRAGMENT_AT = HEADER_START + 16
_U16 = np.dtype(">u2")
_U32 = np.dtype(">u4")
_I32 = np.dtype(">i4")

FIRST = 10
LAST = 58
"""The bytes FIRST..LAST of a frame are looked at as six words of 64 bits: the headers from the
Ethernet type to the sequence number, which the fragment follows."""

_IDENTITY = {
    "ether_type": (12, 2),
    "version_ihl": (14, 1),
    "total_length": (16, 2),
    "fragment_offset": (20, 2),
    "protocol": (23, 1),
    "ports": (34, 4),
    "udp_length": (38, 2),
    "version_kind": (42, 1),
    "job": (46, 2),
    "tree": (48, 1),
    "hops": (49, 1),
}
"""Offset and size of the fields that identify a stream."""
_NO_REDUCTION = 0xFF & ~reduce(or_, (each << 4 for each in Reduction))
"""Bits that no reduction has."""
EPOCH_AT = HEADER_START + 8
WEIGHT_AT = HEADER_START + 12
SEQUENCE_AT = HEADER_START + 14


def some(mask: NDArray[np.bool_]) -> bool:
    """Return whether any is true; four times as fast as `any` on a frame's worth."""
    return bool(np.count_nonzero(mask))


def every(mask: NDArray[np.bool_]) -> bool:
    """Return whether all are true."""
    return bool(np.count_nonzero(mask) == len(mask))


def common_number(frames: Frames, start: int, stop: int) -> int | None:
    """Return the number in bytes start..stop that all frames (n, length) share; None: they differ.

    Bytes are compared many times as fast as short arrays. n > 0.
    """
    fields = frames[:, start:stop].tobytes()
    first = fields[: stop - start]
    return int.from_bytes(first, "big") if fields == first * len(frames) else None


def by_tree(frames: Frames) -> list[tuple[int, Frames]]:
    """Return frames (n, length) by their trees, in the order of these; n > 0."""
    only = common_number(frames, TREE_AT, TREE_AT + 1)
    if only is not None:
        return [(only, frames)]
    trees = frames[:, TREE_AT].tobytes()
    ordered = frames[np.argsort(frames[:, TREE_AT], kind="stable")]
    groups = []
    end = 0
    for tree in sorted(set(trees)):
        start, end = end, end + trees.count(tree)
        groups.append((tree, ordered[start:end]))
    return groups


# Columns of frames. (A view as records costs three times as much on one frame.)


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


def reduction_byte(reduction: Reduction) -> int:
    """Return the byte of a reduction in frames."""
    return reduction << 4


NO_LANES = np.uint8(reduction_byte(Reduction.NONE))
"""The reduction byte of frames without lanes on the wire, in both directions."""


_KNOWN = np.zeros(256, dtype=np.bool_)
_KNOWN[[reduction_byte(each) for each in Reduction]] = True


def known_reductions(frames: Frames) -> NDArray[np.bool_]:
    """Return which frames (n, length) have a reduction that exists, or are too short for any."""
    if frames.shape[1] <= REDUCTION_AT:
        return np.ones(len(frames), dtype=np.bool_)
    known: NDArray[np.bool_] = _KNOWN[frames[:, REDUCTION_AT]]
    return known


def epochs_of(frames: Frames) -> NDArray[np.int64]:
    """Epochs."""
    return frames[:, EPOCH_AT : EPOCH_AT + 2].view(_U16)[:, 0].astype(np.int64)


def workers_of(frames: Frames) -> NDArray[np.int64]:
    """Worker numbers."""
    return frames[:, WORKER_AT : WORKER_AT + 2].view(_U16)[:, 0].astype(np.int64)


def weights_of(frames: Frames) -> NDArray[np.int64]:
    """Weights: workers summed."""
    return frames[:, WEIGHT_AT : WEIGHT_AT + 2].view(_U16)[:, 0].astype(np.int64)


def sequences_of(frames: Frames) -> NDArray[np.int64]:
    """Sequence numbers on the link."""
    return frames[:, SEQUENCE_AT : SEQUENCE_AT + 2].view(_U16)[:, 0].astype(np.int64)


def children_of(frames: Frames) -> NDArray[np.int64]:
    """Child indices in the first stack entry."""
    entries = frames[:, STACK_START : STACK_START + HOP_BYTES].view(_U32)[:, 0]
    return (entries >> CHILD_SHIFT & CHILD_MASK).astype(np.int64)


def tos_of(frames: Frames) -> NDArray[np.uint8]:
    """IP ToS bytes, sharing memory. To change them, see `mark`."""
    return frames[:, TOS_AT]


def mark(frames: Frames, tos: int) -> None:
    """Set the IP ToS byte of frames (or of one, without rows) of one form, and their checksum.

    All have the same IPv4 header, as frames that one `Form` made have.
    """
    if not len(frames):
        return
    header = frames.reshape(-1, frames.shape[-1])[0, ETHERNET_BYTES : ETHERNET_BYTES + IPV4_BYTES]
    changed = bytearray(header.tobytes())
    changed[1] = tos
    changed[10:12] = b"\0\0"
    frames[..., TOS_AT] = tos
    checksum = ipv4_checksum(bytes(changed))
    frames[..., CHECKSUM_AT] = checksum >> 8
    frames[..., CHECKSUM_AT + 1] = checksum & 0xFF


def number(frames: Frames, sequences: NDArray[np.int64], flags: np.uint8) -> None:
    """Give frames sequence numbers (n,), and flags in addition to those that they have."""
    frames[:, SEQUENCE_AT : SEQUENCE_AT + 2].view(_U16)[:, 0] = sequences
    frames[:, FLAGS_AT] |= flags


def sent_back(frames: Frames, kind: Kind) -> Frames:
    """Return copies of frames as another kind, with source and destination swapped."""
    back = frames.copy()
    back[:, 0:6], back[:, 6:12] = frames[:, 6:12], frames[:, 0:6]
    back[:, 26:30], back[:, 30:34] = frames[:, 30:34], frames[:, 26:30]
    back[:, KIND_AT] = VERSION << 4 | kind
    return back


def group_by_length(rows: Frames, lengths: NDArray[np.uint32]) -> list[Frames]:
    """Split rows of frames into runs of equal length, each (n, length)."""
    if not len(rows):
        return []
    # Bytes are compared many times as fast as short arrays.
    if lengths.tobytes() == lengths[:1].tobytes() * len(lengths):
        return [rows[:, : int(lengths[0])]]
    starts = np.flatnonzero(np.diff(lengths)) + 1
    return [
        run[:, : int(run_lengths[0])]
        for run, run_lengths in zip(np.split(rows, starts), np.split(lengths, starts), strict=True)
    ]


class Matcher:
    """Separates a stream's frames from others, and plain ones from those that need a closer look.

    A frame belongs when its lengths, ports, version, number of hops, job and tree are those of
    `template` and its kind is the template's (with `either_result`: RESULT or REPLICATED). It is
    plain when, on top, it is of the template's epoch, has no flag of `unusual_flags`, and (with
    `weighed`) the template's weight. It may have any reduction, as each call has its own.
    """

    def __init__(
        self,
        template: Frames,
        *,
        either_result: bool = False,
        weighed: bool = False,
        unusual_flags: int = 0xFF,
    ) -> None:
        belongs = np.zeros(LAST, dtype=np.uint8)
        for start, size in _IDENTITY.values():
            belongs[start : start + size] = 0xFF
        belongs[REDUCTION_AT] = _NO_REDUCTION
        if either_result:
            belongs[KIND_AT] = 0xFE
        plain = belongs.copy()
        plain[FLAGS_AT] = unusual_flags
        plain[EPOCH_AT : EPOCH_AT + 2] = 0xFF
        if weighed:
            plain[WEIGHT_AT : WEIGHT_AT + 2] = 0xFF
        self._length = template.shape[-1]
        self.expected = template[..., FIRST:LAST].copy().view(np.uint64)
        # Copies: words of C begin at multiples of their size.
        self.belongs = belongs[FIRST:].copy().view(np.uint64)
        self.plain = plain[FIRST:].copy().view(np.uint64)
        # One frame is compared as one long number, in a fifth of the time.
        self._plain_bits = int.from_bytes(plain[FIRST:].tobytes(), "big")
        self._expected_bits = int.from_bytes(self.expected.tobytes(), "big") & self._plain_bits

    def all_plain(self, frames: Frames) -> bool:
        """Return whether every frame of a batch is a plain one of the stream."""
        if frames.shape[1] != self._length:
            return False
        if len(frames) == 1:
            bits = int.from_bytes(frames[0, FIRST:LAST].tobytes(), "big")
            return bits & self._plain_bits == self._expected_bits
        difference = frames[:, FIRST:LAST].view(np.uint64) ^ self.expected
        difference &= self.plain
        return not np.count_nonzero(difference)

    def sift(self, frames: Frames) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which frames are plain, and which belong without being plain: two masks (n,)."""
        if frames.shape[1] != self._length:
            none = np.zeros(len(frames), dtype=np.bool_)
            return none, none
        difference = frames[:, FIRST:LAST].view(np.uint64) ^ self.expected
        belongs: NDArray[np.bool_] = np.logical_not(np.any(difference & self.belongs, axis=1))
        plain: NDArray[np.bool_] = np.logical_not(np.any(difference & self.plain, axis=1))
        return plain, belongs & ~plain


class Form:
    """One form of frame: everything fixed but fragment, flags, exponent and lanes.

    `tos`: the IP ToS byte, see `hopsum.protocol.tos.tos_of_level`; `mark` changes that of frames to
    come.
    """

    def __init__(
        self,
        source: Address,
        destination: Address,
        header: Header,
        stack: Sequence[Hop],
        lanes: int,
        tos: int = 0,
    ) -> None:
        self.template = frame_template(source, destination, header, stack, lanes, tos)
        self.length = frame_bytes(lanes, len(stack))
        self.lanes_start = STACK_START + HOP_BYTES * len(stack)
        self.prefix = self.template[: self.lanes_start]

    def mark(self, tos: int) -> None:
        """Give the frames made from now on another ToS byte."""
        mark(self.template, tos)

    def make(self, fragments: Any, exponents: Any, flags: Any = 0) -> Frames:
        """Return new frames of this form, whose lanes the caller fills in.

        `fragments`: numbers (n,), modulo 2^32; `exponents`, `flags`: (n,) or one for all.
        """
        frames = np.empty((len(fragments), self.length), dtype=np.uint8)
        frames[:, : self.lanes_start] = self.prefix
        frames[:, FRAGMENT_AT : FRAGMENT_AT + 4].view(_U32)[:, 0] = fragments
        frames[:, EXPONENT_AT] = exponents
        frames[:, FLAGS_AT] = flags
        return frames

    def values(self, frames: Frames) -> NDArray[np.int32]:
        """Return the lanes of frames as big-endian numbers (n, lanes), sharing memory."""
        values: NDArray[np.int32] = frames[:, self.lanes_start :].view(_I32)
        return values

    def raw(self, frames: Frames) -> Frames:
        """Return the lanes of frames as they are on the wire.

        Bytes (n, 4 * lanes), sharing memory.
        """
        return frames[:, self.lanes_start :]


def raw_lanes(lanes: int, rows: int) -> Frames:
    """Allocate the lanes of `rows` fragments as on the wire."""
    return np.zeros((rows, LANE_BYTES * lanes), dtype=np.uint8)


def address_of(network: Network, host: str) -> Address:
    """Return a host's addresses as in frames."""
    return Address(network.hosts[host].mac_bytes, network.hosts[host].ip_bytes)


UNUSUAL_UPWARD = int(Flag.STALE | Flag.BYPASS)
"""Flags of contributions that are not plain sums."""
UNUSUAL_DOWNWARD = 0xFF & ~int(Flag.ECN | Flag.SEQUENCED | Flag.REPAIR)
"""Flags of results that are not plain."""
