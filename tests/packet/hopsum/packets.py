"""hopsum packets as values: made, sent as frames, read back, and checked by the rules of IP."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hopsum.protocol import wire
from hopsum.protocol.wire import Flag, Hop, Kind, Reduction, Width
from tests.oracles.reference_values import wrapped

SERVER = wire.Address(bytes.fromhex("02000a000063"), bytes([10, 0, 0, 99]))
LINK_FLAGS = Flag.SEQUENCED | Flag.REPAIR
LAST_HOP = Hop(child=0, fan_in=1, port=0)
"""The server's entry, where it does not matter."""


def worker_address(worker: int) -> wire.Address:
    """The addresses of a job's worker."""
    ip = bytes([10, 0, worker >> 8, worker & 0xFF])
    return wire.Address(b"\x02\x00" + ip, ip)


@dataclass(frozen=True)
class Packet:
    """The contents of a hopsum frame without addresses."""

    values: tuple[int, ...]
    """Lanes, signed."""
    kind: int = Kind.CONTRIBUTION
    job: int = 1
    tree: int = 0
    epoch: int = 1
    fragment: int = 0
    worker: int = 0
    weight: int = 1
    flags: int = 0
    reduction: int = Reduction.SUM
    width: int = Width.WIDTH_32
    exponent: int = 0
    hops: tuple[Hop, ...] = ()
    tos: int = 0
    sequence: int = field(default=0, compare=False)
    sequenced: bool = field(default=False, compare=False)
    repair: bool = field(default=False, compare=False)
    """Fields of one link only: `on_link` shows them for comparison."""

    @property
    def on_link(self) -> tuple[int | None, bool]:
        """The number on the link, if it has one, and whether it was sent again."""
        return (self.sequence if self.sequenced else None, self.repair)

    def frame(self) -> bytes:
        """The frame, as a worker or the server sends it."""
        header = wire.Header(
            kind=Kind(self.kind),
            job=self.job,
            tree=self.tree,
            epoch=self.epoch,
            fragment=self.fragment,
            worker=self.worker,
            weight=self.weight,
            flags=self.flags | Flag.SEQUENCED * self.sequenced | Flag.REPAIR * self.repair,
            reduction=Reduction(self.reduction),
            width=Width(self.width),
            exponent=self.exponent,
            sequence=self.sequence,
        )
        worker = worker_address(self.worker)
        up = self.kind in (Kind.CONTRIBUTION, Kind.REQUEST)
        lanes = len(self.values)
        template = wire.frame_template(
            worker if up else SERVER,
            SERVER if up else worker,
            header,
            self.hops,
            lanes,
            self.tos,
        )
        wire.frame_view(template[None, :], lanes, len(self.hops))["lanes"][0] = self.values
        return template.tobytes()

    @classmethod
    def read(cls, frame: bytes) -> Packet:
        """The contents of a frame; ValueError if lengths, checksum or layout are wrong."""
        check_frame(frame)
        hops = frame[49]
        lanes = lane_count(frame)
        view = wire.frame_view(np.frombuffer(frame, np.uint8)[None, :], lanes, hops)[0]
        flags = int(view["flags"])
        return cls(
            values=tuple(view["lanes"].tolist()),
            kind=int(view["version_kind"]) & 15,
            job=int(view["job"]),
            tree=int(view["tree"]),
            epoch=int(view["epoch"]),
            fragment=int(view["fragment"]),
            worker=int(view["worker"]),
            weight=int(view["weight"]),
            flags=flags & ~int(LINK_FLAGS),
            sequenced=bool(flags & Flag.SEQUENCED),
            repair=bool(flags & Flag.REPAIR),
            reduction=int(view["reduction"]) >> 4,
            width=int(view["reduction"]) & 15,
            exponent=int(view["exponent"]),
            hops=tuple(Hop.unpack(word) for word in view["stack"].tolist()),
            tos=int(view["tos"]),
            sequence=int(view["sequence"]),
        )

    def popped(self, **changes: object) -> Packet:
        """The packet behind a switch that obeyed the first entry, with other changes."""
        return replace(self, hops=self.hops[1:], **changes)  # type: ignore[arg-type]


def lane_count(frame: bytes) -> int:
    """How many lanes a frame has by its length."""
    return (len(frame) - wire.frame_bytes(0, frame[49])) // wire.LANE_BYTES


def check_frame(frame: bytes) -> None:
    """Raise ValueError unless lengths and the IPv4 checksum of a hopsum frame are right."""
    if len(frame) < 62:
        raise ValueError(f"a frame of {len(frame)} bytes has no hopsum header")
    total, udp_length = struct.unpack_from(">16xH20xH", frame)
    hops, lanes = frame[49], lane_count(frame)
    expected = wire.frame_bytes(lanes, hops)
    for what, is_length, should in (
        ("frame", len(frame), expected),
        ("IPv4 total length", total, expected - 14),
        ("UDP length", udp_length, expected - 34),
        ("UDP checksum", int.from_bytes(frame[40:42], "big"), 0),
        ("IPv4 checksum", wire.ipv4_checksum(frame[14:34]), 0),
    ):
        if is_length != should:
            raise ValueError(f"{what}: {is_length}, expected {should} ({hops} hops, {lanes} lanes)")


def is_hopsum(frame: bytes) -> bool:
    """Whether a frame is of our protocol."""
    return bool(wire.is_hopsum(np.frombuffer(frame, np.uint8)[None, :])[0])


def lanes_of(lanes: int, seed: int) -> tuple[int, ...]:
    """Values that differ from lane to lane and from seed to seed, small enough for sums."""
    return tuple((seed * 1009 + lane * 31) % 20011 - 10005 for lane in range(lanes))


def add(*vectors: Sequence[int]) -> tuple[int, ...]:
    """The sum lane by lane, modulo 2^32."""
    return tuple(wrapped(sum(lane)) for lane in zip(*vectors, strict=True))


def raw_ipv4(
    payload: bytes,
    *,
    protocol: int = 6,
    ttl: int = 64,
    options: bytes = b"",
    dst: bytes = bytes([10, 0, 0, 2]),
    dst_mac: bytes = bytes.fromhex("02000a000002"),
    fragment: int = 0,
    tos: int = 0,
) -> bytes:
    """An Ethernet frame with an IPv4 packet that is not ours."""
    header = struct.pack(
        ">BBHHHBBH4s4s",
        0x40 | 5 + len(options) // 4,
        tos,
        20 + len(options) + len(payload),
        7,
        fragment,
        ttl,
        protocol,
        0,
        bytes([10, 0, 0, 1]),
        dst,
    )
    header += options
    checksum = wire.ipv4_checksum(header)
    header = header[:10] + checksum.to_bytes(2, "big") + header[12:]
    return dst_mac + bytes.fromhex("02000a000001") + b"\x08\x00" + header + payload
