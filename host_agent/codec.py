"""Batches of hopsum frames: grouping, matching a stream's, and their constant parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import zip_longest
from operator import or_

import numpy as np
from numpy.typing import NDArray

from hopsum.network.model import Network
from hopsum.protocol.wire import (
    ETHERNET_BYTES,
    HEADER_BYTES,
    HOP_BYTES,
    IPV4_BYTES,
    UDP_BYTES,
    Address,
    Flag,
    Header,
    Hop,
    Reduction,
    Width,
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
TURN_FRAMES = 8
"""Frames of one sender that go out before it is the next one's turn, see `in_turns`."""

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
_NO_REDUCTION = 0xFF & ~reduce(or_, [*(each << 4 for each in Reduction), *Width])
"""Bits that neither a reduction nor a width has."""
EPOCH_AT = HEADER_START + 8
WEIGHT_AT = HEADER_START + 12
SEQUENCE_AT = HEADER_START + 14


def common_number(frames: Frames, start: int, stop: int) -> int | None:
    """Return the number in bytes start..stop that all frames (n, length) share; None: they differ.

    Bytes are compared many times as fast as short arrays. n > 0.
    """
    fields = frames[:, start:stop].tobytes()
    first = fields[: stop - start]
    return int.from_bytes(first, "big") if fields == first * len(frames) else None


def by_number(frames: Frames, start: int, stop: int) -> list[tuple[int, Frames]]:
    """Return frames (n, length) by the number in their bytes start..stop, in its order; n > 0."""
    only = common_number(frames, start, stop)
    if only is not None:
        return [(only, frames)]
    numbers = np.zeros(len(frames), np.int64)
    for at in range(start, stop):
        numbers = numbers << 8 | frames[:, at]
    order = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[order], return_index=True)
    return list(zip(found.tolist(), np.split(frames[order], starts[1:]), strict=True))


def in_turns(senders: Sequence[Sequence[Frames]]) -> list[Frames]:
    """Return the batches of all senders, a few frames of each in turn."""
    if len(senders) == 1:
        return [*senders[0]]
    turns = zip_longest(*map(_pieces, senders))
    return [piece for turn in turns for piece in turn if piece is not None]


def _pieces(batches: Sequence[Frames]) -> Iterator[Frames]:
    for frames in batches:
        for start in range(0, len(frames), TURN_FRAMES):
            yield frames[start : start + TURN_FRAMES]


def reduction_byte(reduction: Reduction, width: Width = Width.WIDTH_32) -> int:
    """Return the byte of a reduction and a width in frames."""
    return reduction << 4 | width


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
    """What `struct matcher` of datapath/frames.h compares frames with: a stream's, plain or not.

    A frame belongs when its lengths, ports, version, number of hops, job and tree are those of
    `template` and its kind is the template's (with `either_result`: RESULT or REPLICATED). It is
    plain when, on top, it is of the template's epoch, has no flag of `unusual_flags`, and (with
    `weighed`) the template's weight. It may have any reduction and width, as each call has its own.
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
        self.expected = template[..., FIRST:LAST].copy().view(np.uint64)
        # Copies: words of C begin at multiples of their size.
        self.belongs = belongs[FIRST:].copy().view(np.uint64)
        self.plain = plain[FIRST:].copy().view(np.uint64)


class Form:
    """One form of frame: everything fixed but fragment, flags, exponent and lanes."""

    def __init__(
        self,
        source: Address,
        destination: Address,
        header: Header,
        stack: Sequence[Hop],
        lanes: int,
    ) -> None:
        self.template = frame_template(source, destination, header, stack, lanes)
        self.lanes_start = STACK_START + HOP_BYTES * len(stack)
        self.prefix = self.template[: self.lanes_start]


def address_of(network: Network, host: str) -> Address:
    """Return a host's addresses as in frames."""
    return Address(network.hosts[host].mac_bytes, network.hosts[host].ip_bytes)


UNUSUAL_UPWARD = int(Flag.STALE | Flag.BYPASS)
"""Flags of contributions that are not plain sums."""
UNUSUAL_DOWNWARD = 0xFF & ~int(Flag.ECN | Flag.SEQUENCED | Flag.REPAIR | Flag.OVERFLOW)
"""Flags of results that are not plain; OVERFLOW only is one of values of 8 bits."""
