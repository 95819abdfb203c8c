# SPDX-License-Identifier: GPL-2.0-only
# scapy.contrib.description = hopsum: sums in the network, hop by hop
# scapy.contrib.status = library
"""The hopsum header, hop stack and lanes as Scapy layers (docs/protocol.md).

A part of Scapy's layers, under Scapy's licence; it imports nothing of hopsum. The layout stands
here again: `tests/host_agent/io/test_hopsum_scapy.py` holds it against `protocol/wire.py`.

>>> packet = Ether() / IP() / UDP(chksum=0) / Hopsum(job=1, epoch=1, lanes=[1] * 32)
>>> packet[Hopsum].stack = [Hop(aggregate=1, child=0, fan_in=2, port=3), Hop(fan_in=1)]
>>> len(Ether(bytes(packet))[Hopsum].lanes)
32
"""

from __future__ import annotations

from typing import Any

from scapy.config import conf
from scapy.fields import (
    BitEnumField,
    BitField,
    ByteField,
    Field,
    FieldListField,
    FlagsField,
    IntField,
    MultipleTypeField,
    PacketListField,
    ShortField,
    SignedByteField,
    SignedIntField,
    SignedShortField,
)
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw, bind_layers
from scapy.supersocket import SuperSocket

__all__ = [
    "FLAGS",
    "IP",
    "KINDS",
    "LANES_MAX",
    "REDUCTIONS",
    "UDP",
    "UDP_PORT",
    "VERSION",
    "WIDTHS",
    "Ether",
    "Hop",
    "Hopsum",
    "Packet",
    "SuperSocket",
    "build",
    "open_listener",
    "open_socket",
    "parse",
]

VERSION = 4
UDP_PORT = 0x4853
ETHERNET_BYTES = 14
LANES_MAX = 352
KINDS = {1: "contribution", 2: "result", 3: "replicated", 4: "inspect", 5: "request"}
FLAGS = {
    0x01: "overflow",
    0x02: "stale",
    0x04: "bypass",
    0x08: "ecn",
    0x10: "sequenced",
    0x20: "repair",
}
REDUCTIONS = {
    0: "sum",
    1: "and",
    2: "max",
    3: "xor",
    4: "none",
    5: "broadcast",
    8: "reduce_sum",
    9: "reduce_and",
    10: "reduce_max",
    11: "reduce_xor",
}
WIDTHS = {0: "width_32", 1: "width_16", 2: "width_8"}


class Hop(Packet):
    """One entry of the hop stack: instructions for the next switch, or the child index for the
    server."""

    name = "hop"
    fields_desc = [  # noqa: RUF012
        BitField("aggregate", 0, 1),
        BitField("clear", 0, 1),
        BitField("child", 0, 9),
        BitField("fan_in", 1, 10),
        BitField("port", 0, 11),
    ]

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        """Return no payload: the following bytes are the next entry."""
        return b"", s


def _values(value: Field[int, int], per_lane: int) -> FieldListField:
    return FieldListField("lanes", [], value, max_count=LANES_MAX * per_lane)


class Hopsum(Packet):
    """A hopsum packet. `hops` is computed if omitted; the values in the lanes are the rest of it.

    `lanes`: values of 32 bits, or as wide as `width` says.
    With the reduction `none` there are none, with `broadcast` and `reduce_...` in one direction.

    The fragment is called `fragment_number` here: `Packet.fragment` is Scapy's.
    """

    name = "hopsum"
    fields_desc = [  # noqa: RUF012
        BitField("version", VERSION, 4),
        BitEnumField("kind", 1, 4, KINDS),
        FlagsField("flags", 0, 8, FLAGS),
        BitEnumField("reduction", 0, 4, REDUCTIONS),
        BitEnumField("width", 0, 4, WIDTHS),
        ByteField("exponent", 0),
        ShortField("job", 1),
        ByteField("tree", 0),
        ByteField("hops", None),
        ShortField("epoch", 1),
        ShortField("worker", 0),
        ShortField("weight", 1),
        ShortField("sequence", 0),
        IntField("fragment_number", 0),
        PacketListField("stack", [], Hop, count_from=lambda packet: packet.hops),
        MultipleTypeField(
            [
                (_values(SignedShortField("lane", 0), 2), lambda packet: packet.width == 1),
                (_values(SignedByteField("lane", 0), 4), lambda packet: packet.width == 2),
            ],
            _values(SignedIntField("lane", 0), 1),
        ),
    ]

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        """Fill in the counts."""
        if self.hops is None:
            pkt = pkt[:7] + bytes([len(self.stack)]) + pkt[8:]
        return pkt + pay

    def mysummary(self) -> str:
        """Return one line: kind, worker, fragment."""
        return self.sprintf(
            "hopsum %Hopsum.kind% job %Hopsum.job% tree %Hopsum.tree% epoch %Hopsum.epoch% "
            "fragment %Hopsum.fragment_number% worker %Hopsum.worker% weight %Hopsum.weight% "
            "[%Hopsum.flags%]"
        )


def parse(frame: bytes) -> Packet:
    """Return the packet in a frame of any content; `Hopsum in packet` says if it is hopsum's."""
    # Of a frame shorter than its header Ether raises struct.error.
    packet: Packet = Ether(frame) if len(frame) >= ETHERNET_BYTES else Raw(frame)
    return packet


def build(frame: bytes) -> Packet:
    """Return the hopsum packet rebuilt from its fields; Scapy computes counts, lengths and
    checksums.

    What is not hopsum's comes back as it is.
    """
    packet = parse(frame)
    if Hopsum not in packet:
        return packet
    old = packet[Hopsum]
    fields: dict[str, Any] = dict(old.fields)
    del fields["hops"], fields["stack"]
    stack = [Hop(**hop.fields) for hop in old.stack]
    ip, udp = packet[IP], packet[UDP]
    built: Packet = (
        Ether(src=packet.src, dst=packet.dst)
        / IP(src=ip.src, dst=ip.dst, tos=ip.tos, id=ip.id, flags=ip.flags, ttl=ip.ttl)
        / UDP(sport=udp.sport, dport=udp.dport, chksum=0)
        / Hopsum(stack=stack, **fields)
    )
    return built


def open_socket(interface: str) -> SuperSocket:
    """Scapy's layer 2 socket on an interface; it receives everything except what it sends."""
    opened: SuperSocket = conf.L2socket(iface=interface, promisc=False)
    return opened


def open_listener(interface: str) -> SuperSocket:
    """Scapy's listening socket on an interface; it also receives what is sent there."""
    opened: SuperSocket = conf.L2listen(iface=interface, promisc=False)
    return opened


bind_layers(UDP, Hopsum, sport=UDP_PORT, dport=UDP_PORT)
