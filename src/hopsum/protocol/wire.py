"""The packet layout: Ethernet / IPv4 / UDP / hopsum header / hop stack / lanes.

`docs/protocol.md` draws it. Frames of one length are handled as one numpy array of shape
(n, frame length), uint8; `frame_view` shows such an array as named, big-endian columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hopsum.protocol.errors import InputError
from hopsum.protocol.lanes import LANES_DEFAULT as LANES_DEFAULT
from hopsum.protocol.lanes import LANES_MAX, LANES_STEP
from hopsum.protocol.tos import UDP_PORT as UDP_PORT

ETHERTYPE_IPV4 = 0x0800
UDP_PROTOCOL = 17

VERSION = 4

ETHERNET_BYTES = 14
IPV4_BYTES = 20
UDP_BYTES = 8
HEADER_BYTES = 20
HOP_BYTES = 4
LANE_BYTES = 4
MTU = 1500
"""Maximum length of the IPv4 packet, without the Ethernet header."""

CHECK_LANES = 3
"""Number of last lanes that hold the check value, not values, in a job with integrity."""
HOPS_DEFAULT = 10
"""Default number of hop stack entries that switches are compiled for."""
MAX_HOPS = 255
"""Maximum of the header's field; `most_hops` is the maximum that the lanes leave room for."""
MAX_CHILDREN = 512
"""Maximum number of flows that a switch or server sums: more than a switch has ports."""
CHILD_SHIFT, CHILD_MASK = 21, 0x1FF
"""Position of the child index in a stack entry, as a 32-bit number."""
MAX_PORT = 510
MAX_WORKERS = 0xFFFF
ADMISSION_SIZE = 4096
"""Entries of a switch's table `admission`."""
EPOCHS = 0xFFFF
"""Number of epochs before the first recurs; 0 is not an epoch (empty slots have it)."""

EXPONENT_BIAS = 127
REPLICATED_MAC = bytes.fromhex("01005e004853")
REPLICATED_IP = bytes([239, 0, 72, 83])
"""Destination of results that switches replicate; no host's kernel listens there."""


class Kind(IntEnum):
    """Kind of packet."""

    CONTRIBUTION = 1
    """A worker's fragment or a partial sum, on its way up."""
    RESULT = 2
    """The total on its way to one worker, along the stack."""
    REPLICATED = 3
    """The total on its way to all workers, copied by the switches; no stack."""
    INSPECT = 4
    """Reads a slot; as packet-out and packet-in only."""
    REQUEST = 5
    """Asks a neighbour to send again what was lost on the link between them."""


class Flag(IntFlag):
    """Flags of the header."""

    OVERFLOW = 0x01
    """A value of the sum wrapped around: of 8 bits it is valid modulo 2^8, else it is invalid."""
    STALE = 0x02
    """A switch found its slot cleared or newer: a question to the server, not a contribution."""
    BYPASS = 0x04
    """No switch may aggregate it: a single worker's fragment for the server."""
    ECN = 0x08
    """The packet, or a part of its sum, met a long queue."""
    SEQUENCED = 0x10
    """The sequence number is valid: the frame's number on its link."""
    REPAIR = 0x20
    """Retransmitted on the link, on request, under its original sequence number."""


QUESTION = Flag.STALE | Flag.BYPASS
"""Flags of a question past all switches, without lanes, for what was sent under its number: a
worker's for a unicast result, a server's for a contribution that no switch sums."""


class Reduction(IntEnum):
    """How lanes combine, as words or by the values in them (`Width`)."""

    SUM = 0
    """Two's complement addition of values, modulo 2^32, 2^16 or 2^8."""
    AND = 1
    """Bitwise and."""
    MAX = 2
    """Maximum of values, in two's complement."""
    XOR = 3
    """Bitwise exclusive or."""
    NONE = 4
    """The packet has no lanes: only exponents and weights are combined."""
    BROADCAST = 5
    """The root's values for all: only results have lanes."""
    REDUCE_SUM = 8
    """As SUM, but for the root alone: only contributions have lanes, as in the next three."""
    REDUCE_AND = 9
    REDUCE_MAX = 10
    REDUCE_XOR = 11

    @property
    def to_root(self) -> Reduction:
        """The reduction for the root alone that corresponds to it; ValueError if there is none."""
        return Reduction(self + Reduction.REDUCE_SUM)


LANE_REDUCTIONS = (Reduction.SUM, Reduction.AND, Reduction.MAX, Reduction.XOR)
"""The reductions of packets that have lanes in both directions."""
ROOT_REDUCTIONS = tuple(each.to_root for each in LANE_REDUCTIONS)
"""The reductions of packets whose sum is for the root alone."""
VALUE_REDUCTIONS = (Reduction.SUM, Reduction.MAX, Reduction.REDUCE_SUM, Reduction.REDUCE_MAX)
"""The reductions that depend on the width of values; packets of all others have WIDTH_32."""


class Width(IntEnum):
    """Width of the values in the lanes: a lane of 32 bits has one, two or four.

    On the wire the values of a fragment are an array of big-endian two's complement integers.
    """

    WIDTH_32 = 0
    WIDTH_16 = 1
    WIDTH_8 = 2

    @property
    def bits(self) -> int:
        """Bits of a value."""
        return 32 >> self

    @property
    def per_lane(self) -> int:
        """Number of values in a lane."""
        return 1 << self


def carries_lanes(reduction: Reduction, *, up: bool) -> bool:
    """Return whether packets have lanes: contributions (`up`), or results.

    A request has them like the packet that showed the loss: as a contribution if it has a stack,
    else as a result.
    """
    if reduction is Reduction.NONE:
        return False
    if reduction is Reduction.BROADCAST:
        return not up
    return up or reduction not in ROOT_REDUCTIONS


class LayoutError(InputError):
    """A value that does not fit the packet layout."""


def check_lanes(lanes: int) -> int:
    """Return `lanes` if it is a valid number of lanes, else raise LayoutError."""
    if not LANES_STEP <= lanes <= LANES_MAX or lanes % LANES_STEP:
        raise LayoutError(
            f"lanes: {lanes} is not possible; expected a multiple of {LANES_STEP} "
            f"from {LANES_STEP} to {LANES_MAX} (frames must fit a {MTU}-byte MTU)"
        )
    return lanes


def most_hops(lanes: int) -> int:
    """Return the maximum number of stack entries next to this number of lanes within the MTU."""
    room = MTU - (frame_bytes(lanes, 0) - ETHERNET_BYTES)
    return min(MAX_HOPS, room // HOP_BYTES)


def check_hops(hops: int, lanes: int) -> int:
    """Return `hops` if such a stack fits next to this number of lanes, else LayoutError."""
    most = most_hops(check_lanes(lanes))
    if not 2 <= hops <= most:
        raise LayoutError(
            f"max-hops: {hops} stack entries are not possible; expected 2 to {most} with "
            f"{lanes} lanes in a {MTU}-byte MTU (fewer lanes leave room for more)"
        )
    return hops


def frame_bytes(lanes: int, hops: int) -> int:
    """Return the length of a frame in bytes, from the Ethernet header on, without FCS."""
    return (
        ETHERNET_BYTES
        + IPV4_BYTES
        + UDP_BYTES
        + HEADER_BYTES
        + HOP_BYTES * hops
        + LANE_BYTES * lanes
    )


@dataclass(frozen=True, slots=True)
class Hop:
    """One entry of the hop stack: what the next switch does ([001 S1][001]).

    `child`: this packet's child index at that switch (0..511); `fan_in`: number of children
    there (1..512); `port`: egress port. Of the server's entry only child and fan_in count.
    """

    aggregate: bool = False
    clear: bool = False
    child: int = 0
    fan_in: int = 1
    port: int = 0

    def pack(self) -> int:
        """Return the entry as a 32-bit number; LayoutError if a field is out of range."""
        if not 0 <= self.child < MAX_CHILDREN:
            raise LayoutError(f"hop child {self.child}: expected 0..{MAX_CHILDREN - 1}")
        if not 0 <= self.fan_in <= MAX_CHILDREN:
            raise LayoutError(f"hop fan-in {self.fan_in}: expected 0..{MAX_CHILDREN}")
        if not 0 <= self.port <= MAX_PORT:
            raise LayoutError(f"hop port {self.port}: expected 0..{MAX_PORT}")
        return (
            self.aggregate << 31
            | self.clear << 30
            | self.child << CHILD_SHIFT
            | self.fan_in << 11
            | self.port
        )

    @classmethod
    def unpack(cls, word: int) -> Hop:
        """Return the entry in a 32-bit number."""
        return cls(
            aggregate=bool(word >> 31),
            clear=bool(word >> 30 & 1),
            child=word >> CHILD_SHIFT & CHILD_MASK,
            fan_in=word >> 11 & 0x3FF,
            port=word & 0x7FF,
        )


def pack_stack(hops: Sequence[Hop]) -> bytes:
    """Return the stack as bytes, first hop first; LayoutError if it is too long."""
    if len(hops) > MAX_HOPS:
        raise LayoutError(f"hop stack of {len(hops)} entries: at most {MAX_HOPS} fit a packet")
    return b"".join(hop.pack().to_bytes(4, "big") for hop in hops)


@lru_cache(maxsize=64)
def frame_dtype(lanes: int, hops: int) -> np.dtype[np.void]:
    """Return the layout of a frame with `hops` stack entries, as a packed big-endian dtype."""
    dtype = np.dtype(
        [
            ("dst_mac", "u1", 6),
            ("src_mac", "u1", 6),
            ("ether_type", ">u2"),
            ("version_ihl", "u1"),
            ("tos", "u1"),
            ("total_length", ">u2"),
            ("identification", ">u2"),
            ("fragment_offset", ">u2"),
            ("ttl", "u1"),
            ("protocol", "u1"),
            ("ipv4_checksum", ">u2"),
            ("src_ip", "u1", 4),
            ("dst_ip", "u1", 4),
            ("src_port", ">u2"),
            ("dst_port", ">u2"),
            ("udp_length", ">u2"),
            ("udp_checksum", ">u2"),
            ("version_kind", "u1"),
            ("flags", "u1"),
            ("reduction", "u1"),
            ("exponent", "u1"),
            ("job", ">u2"),
            ("tree", "u1"),
            ("hops", "u1"),
            ("epoch", ">u2"),
            ("worker", ">u2"),
            ("weight", ">u2"),
            ("sequence", ">u2"),
            ("fragment", ">u4"),
            ("stack", ">u4", (hops,)),
            ("lanes", ">i4", (lanes,)),
        ]
    )
    assert dtype.itemsize == frame_bytes(lanes, hops)
    return dtype


def frame_view(frames: NDArray[np.uint8], lanes: int, hops: int) -> NDArray[np.void]:
    """View frames (n, frame_bytes(lanes, hops)) as n records of `frame_dtype`, sharing memory."""
    return frames.view(frame_dtype(lanes, hops))[:, 0]


@dataclass(frozen=True, slots=True)
class Address:
    """A host's addresses: MAC of 6 bytes, IPv4 of 4 bytes."""

    mac: bytes
    ip: bytes


def ipv4_checksum(header: bytes) -> int:
    """Return the checksum (RFC 1071) of an IPv4 header whose checksum field is zero."""
    # A word's carries come back at its end: the sum is the rest of a division by 2^16 - 1, where 0
    # is that of zeros only.
    number = int.from_bytes(header, "big")
    return (number % 0xFFFF or 0xFFFF * bool(number)) ^ 0xFFFF


@dataclass(frozen=True, slots=True)
class Header:
    """The hopsum header's fields, as numbers; `exponent` as on the wire (biased, 0 = none)."""

    kind: Kind
    job: int
    tree: int
    epoch: int
    fragment: int
    worker: int = 0
    weight: int = 1
    flags: int = 0
    reduction: Reduction = Reduction.SUM
    exponent: int = 0
    sequence: int = 0
    width: Width = Width.WIDTH_32


def frame_template(
    source: Address,
    destination: Address,
    header: Header,
    stack: Sequence[Hop],
    lanes: int,
    tos: int = 0,
) -> NDArray[np.uint8]:
    """Return a frame with zero lanes, shape (frame length,): a template to copy and fill in.

    `lanes`: 0 for a packet without (`carries_lanes`). The IPv4 checksum covers no field that
    varies between the fragments of a stream.
    """
    up = header.kind is Kind.CONTRIBUTION or (header.kind is Kind.REQUEST and bool(stack))
    if lanes or carries_lanes(header.reduction, up=up):
        check_lanes(lanes)
    if header.width and header.reduction not in VALUE_REDUCTIONS:
        raise LayoutError(
            f"{header.reduction.name} with values of {header.width.bits} bits: "
            f"expected {Width.WIDTH_32.bits}, as it does not depend on their width"
        )
    raw_stack = pack_stack(stack)
    if len(stack) > most_hops(lanes):
        raise LayoutError(
            f"hop stack of {len(stack)} entries: {lanes} lanes leave room for {most_hops(lanes)}"
        )
    total = frame_bytes(lanes, len(stack)) - ETHERNET_BYTES
    ipv4 = bytearray(
        bytes([0x45, tos])
        + total.to_bytes(2, "big")
        + bytes([0, 0, 0x40, 0, 64, UDP_PROTOCOL, 0, 0])
        + source.ip
        + destination.ip
    )
    ipv4[10:12] = ipv4_checksum(bytes(ipv4)).to_bytes(2, "big")
    udp = (
        UDP_PORT.to_bytes(2, "big")
        + UDP_PORT.to_bytes(2, "big")
        + (total - IPV4_BYTES).to_bytes(2, "big")
        + b"\0\0"
    )
    hopsum = bytes(
        [
            VERSION << 4 | header.kind,
            header.flags,
            header.reduction << 4 | header.width,
            header.exponent,
        ]
    )
    hopsum += header.job.to_bytes(2, "big") + bytes([header.tree, len(stack)])
    hopsum += header.epoch.to_bytes(2, "big") + header.worker.to_bytes(2, "big")
    hopsum += header.weight.to_bytes(2, "big") + header.sequence.to_bytes(2, "big")
    hopsum += header.fragment.to_bytes(4, "big")
    frame = (
        destination.mac
        + source.mac
        + ETHERTYPE_IPV4.to_bytes(2, "big")
        + bytes(ipv4)
        + udp
        + hopsum
        + raw_stack
        + bytes(LANE_BYTES * lanes)
    )
    return np.frombuffer(frame, dtype=np.uint8).copy()


def is_hopsum(frames: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which rows (n, length) are hopsum packets of this version, bool of shape (n,).

    IP fragments and frames with IPv4 options are not, even to hopsum's port.
    """
    start = ETHERNET_BYTES + IPV4_BYTES
    if frames.shape[1] < start + UDP_BYTES + HEADER_BYTES:
        return np.zeros(len(frames), dtype=np.bool_)
    matches: NDArray[np.bool_] = (
        (frames[:, 12] == ETHERTYPE_IPV4 >> 8)
        & (frames[:, 13] == ETHERTYPE_IPV4 & 0xFF)
        & (frames[:, 14] == 0x45)
        & (frames[:, 20] == 0x40)
        & (frames[:, 21] == 0)
        & (frames[:, 23] == UDP_PROTOCOL)
        & (frames[:, start + 2] == UDP_PORT >> 8)
        & (frames[:, start + 3] == UDP_PORT & 0xFF)
        & (frames[:, start + UDP_BYTES] >> 4 == VERSION)
    )
    return matches


def next_epoch(epoch: int) -> int:
    """Return the epoch after `epoch`: a serial number of 16 bits without 0, 65535 is before 1."""
    return epoch % EPOCHS + 1


def serial_newer(a: int, b: int, bits: int) -> bool:
    """Return whether serial number `a` is newer than `b` (RFC 1982 arithmetic on `bits` bits)."""
    return 0 < (a - b) % (1 << bits) < 1 << (bits - 1)
