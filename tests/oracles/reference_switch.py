"""The oracle: one switch in plain Python, from the tables of the protocol and not from the P4.

Frames in, frames and outcomes out, the same entries by name as the real one takes. It does not
lose packets on purpose and knows nothing of queues.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from hopsum.protocol import wire
from hopsum.protocol.outcomes import Outcome
from hopsum.protocol.tos import URGENT
from hopsum.protocol.wire import Flag, Kind, Reduction, Width
from tests.oracles.reference_state import SUMMED_FLAGS, Arrivals, SentLog, Slot
from tests.oracles.reference_values import combine, is_known
from tests.packet.hopsum.packets import LAST_HOP, Packet
from tests.packet.hopsum.switches import CPU_PORT, Build, Frame, Match, Switch

DROP = 511
PACKET_OUT_BYTES = 7
TAGS = (b"\x81\x00", b"\x88\xa8")
"""EtherTypes of VLAN tags."""
GROUP_MAC, GROUP_IP = wire.REPLICATED_MAC, wire.REPLICATED_IP
SWITCH_MAC = bytes.fromhex("020048530000")
"""Source of requests for results."""


@dataclass(frozen=True)
class Sender:
    """The admission entry of a port."""

    results: bool
    base: int
    mask: int
    fan_in: int = 0
    children: int = 0


class ReferenceSwitch(Switch):
    """One switch."""

    def __init__(self, build: Build) -> None:
        self.build = build
        self.forget()
        self.admission: dict[tuple[int, int, int], Sender] = {}
        self.replication: dict[tuple[int, int, int], tuple[int, bool]] = {}
        self.groups: dict[int, list[int]] = {}
        self.routes: dict[tuple[int, int], tuple[int, int]] = {}
        self.l2: dict[int, tuple[str, int]] = {}
        self.counts: Counter[Outcome] = Counter()

    def forget(self) -> None:
        """Lose all registers, as at a reboot."""
        count = self.build.slots
        self.slots = [Slot() for _ in range(count)]
        self._from_children = [Arrivals() for _ in range(count)]
        self._from_parent = [Arrivals() for _ in range(count)]
        self._logs = {up: [SentLog() for _ in range(count)] for up in (True, False)}
        self._sent = {up: [(0, 0)] * count for up in (True, False)}

    # --- control plane

    def insert(
        self, table: str, matches: Mapping[str, Match], action: str, **arguments: int
    ) -> None:
        """See `Switch`."""
        if table == "admission":
            self.admission[_numbers(matches, "job", "tree", "ingress_port")] = Sender(
                action == "admit_results",
                arguments["slot_base"],
                arguments["window_mask"],
                arguments.get("fan_in", 0),
                arguments.get("children", 0),
            )
        elif table == "replication":
            key = _numbers(matches, "job", "tree", "epoch")
            self.replication[key] = arguments["group"], bool(arguments["clear"])
        elif table == "ipv4_route":
            route = matches["dst_addr"]
            assert isinstance(route, tuple)
            self.routes[route] = arguments["dst_mac"], arguments["port"]
        elif table == "l2_forward":
            mac = matches["dst_mac"]
            assert isinstance(mac, int)
            self.l2[mac] = action, next(iter(arguments.values()))
        else:
            raise AssertionError(f"the reference has no table {table}")

    def delete(self, table: str, matches: Mapping[str, Match]) -> None:
        """See `Switch`."""
        assert table == "admission", "the reference forgets admissions only"
        del self.admission[_numbers(matches, "job", "tree", "ingress_port")]

    def multicast(self, group: int, ports: Iterable[int]) -> None:
        """See `Switch`."""
        self.groups[group] = list(ports)

    def outcomes(self) -> list[int]:
        """See `Switch`."""
        return [self.counts[outcome] for outcome in Outcome]

    # --- packets

    def forward(self, packets: Iterable[Frame]) -> list[Frame]:
        """See `Switch`."""
        out = [left for port, frame in packets for left in self._one(port, frame)]
        return sorted(out, key=lambda packet: packet[0])

    def _one(self, port: int, frame: bytes) -> list[Frame]:
        if port == CPU_PORT:
            return self._from_controller(frame)
        kind = self._kind_of(frame)
        if kind == "plain":
            return self._plain(port, frame)
        packet = self._read(frame) if kind == "hopsum" else None
        if packet is None or packet.kind == Kind.INSPECT:
            return self._dropped(Outcome.MALFORMED)
        if packet.hops and not 0 <= packet.hops[0].port < CPU_PORT:
            return self._dropped(Outcome.MALFORMED)
        sender = self.admission.get((packet.job, packet.tree, port))
        if sender is None:
            return self._dropped(Outcome.NOT_ADMITTED)
        if packet.kind == Kind.REQUEST:
            return self._request(packet, frame, port, sender)
        if sender.results != (packet.kind != Kind.CONTRIBUTION):
            return self._dropped(Outcome.NOT_ADMITTED)
        slot = self.slots[self._index(sender, packet.fragment)]
        if sender.results:
            return self._result(packet, frame, port, slot, sender)
        if packet.flags & Flag.BYPASS:
            self.counts[Outcome.BYPASSED] += 1
            return self._popped(frame, _unnumbered(packet))
        if packet.flags & Flag.STALE or not packet.hops[0].aggregate:
            self.counts[Outcome.FORWARDED] += 1
            return self._popped(frame, _unnumbered(packet))
        if not sender.children >> packet.hops[0].child & 1:
            return self._dropped(Outcome.NOT_ADMITTED)
        if packet.hops[0].fan_in != sender.fan_in:
            return self._dropped(Outcome.MALFORMED)
        child = packet.hops[0].child
        asks = []
        again = False
        if packet.sequenced and child <= sender.mask:
            arrivals = self._from_children[self._index(sender, child)]
            missing, again = arrivals.take(packet)
            asks = self._ask(packet, frame, port, missing)
        return asks + self._contribution(packet, frame, port, slot, sender, again=again)

    def _index(self, sender: Sender, number: int) -> int:
        return (sender.base + (number & sender.mask)) % self.build.slots

    # --- losses on the link

    def _ask(self, packet: Packet, frame: bytes, port: int, missing: int | None) -> list[Frame]:
        """The frame back to where it came from, as a request for one that is missing."""
        if missing is None:
            return []
        self.counts[Outcome.REQUESTED] += 1
        asked = replace(packet, kind=Kind.REQUEST, sequence=missing, sequenced=True, repair=False)
        source = frame[:6], frame[30:34]
        if packet.kind == Kind.REPLICATED:
            source = SWITCH_MAC, bytes(4)
        return [(port, _addressed(_rewritten(frame, asked), source, (frame[6:12], frame[26:30])))]

    def _number(self, packet: Packet, frame: bytes, sender: Sender, *, up: bool) -> bytes:
        """The frame of a sum or result that is forwarded, with its number."""
        number = self._logs[up][sender.base % self.build.slots].number(packet)
        numbered = _unnumbered(packet)
        if number is not None:
            self._sent[up][self._index(sender, number)] = number, packet.fragment
            numbered = replace(numbered, sequence=number, sequenced=True)
        return _urgent(_rewritten(frame, numbered), urgent=False)

    def _request(self, packet: Packet, frame: bytes, port: int, sender: Sender) -> list[Frame]:
        """The parent requests sums, with their stack; a child requests results."""
        up = sender.results
        if bool(packet.hops) != up:
            return self._dropped(Outcome.MALFORMED)
        number, fragment = self._sent[up][self._index(sender, packet.sequence)]
        packet = replace(packet, fragment=fragment)
        slot = self.slots[self._index(sender, fragment)]
        ready = slot.complete and not slot.cleared if up else slot.kept
        ready = ready and slot.fits(packet)
        if number != packet.sequence or not slot.is_of(packet) or not ready:
            return self._dropped(Outcome.UNANSWERED)
        self.counts[Outcome.REPEATED] += 1
        again = _sum(slot, replace(packet, sequenced=True, repair=True))
        if not up:
            return self._answer(again, frame, port, slot)
        again = replace(again, kind=Kind.CONTRIBUTION)
        back = _addressed(
            _rewritten(frame, again), (frame[:6], frame[30:34]), (frame[6:12], frame[26:30])
        )
        return [(port, back)]

    def _answer(self, packet: Packet, frame: bytes, port: int, slot: Slot) -> list[Frame]:
        """The result that a slot keeps, back to who lacks it; without a stack."""
        result = replace(_sum(slot, packet), kind=Kind.REPLICATED, hops=())
        bare = without(_rewritten(frame, replace(result, hops=packet.hops)), len(packet.hops))
        group = GROUP_MAC, GROUP_IP
        return [(port, _addressed(bare, (frame[:6], frame[30:34]), group))]

    # --- sums and results

    def _contribution(
        self, packet: Packet, frame: bytes, port: int, slot: Slot, sender: Sender, *, again: bool
    ) -> list[Frame]:
        hop = packet.hops[0]
        agrees = slot.cleared or slot.fan_in == hop.fan_in
        agrees = agrees and (slot.reduction, slot.width) == (packet.reduction, packet.width)
        if slot.gives_way_to(packet):
            if slot.job and not slot.cleared and not slot.complete:
                self.counts[Outcome.TAKEN_OVER] += 1
            self._open(slot, packet)
        elif slot.is_of(packet) and not agrees:
            return self._dropped(Outcome.MALFORMED)
        elif again and slot.is_of(packet) and hop.child in slot.children:
            return self._dropped(Outcome.DUPLICATE)
        elif (
            slot.is_of(packet)
            and slot.kept
            and sender.children.bit_count() == 1
            and slot.fits(packet)
        ):
            self.counts[Outcome.ANSWERED] += 1
            return self._answer(_unnumbered(packet), frame, port, slot)
        elif not slot.is_of(packet) or slot.cleared:
            self.counts[Outcome.STALE] += 1
            question = _unnumbered(replace(packet, flags=packet.flags | Flag.STALE))
            return self._popped(frame, question)
        elif hop.child not in slot.children:
            if slot.complete:
                return self._dropped(Outcome.MALFORMED)
            self._add(slot, packet)
        elif slot.complete:
            self.counts[Outcome.RE_EMITTED] += 1
            return self._left(self._number(_sum(slot, packet), frame, sender, up=True), packet)
        else:
            return self._dropped(Outcome.DUPLICATE)
        if not slot.complete:
            return self._dropped(Outcome.AGGREGATED)
        self.counts[Outcome.COMPLETED] += 1
        return self._left(self._number(_sum(slot, packet), frame, sender, up=True), packet)

    def _open(self, slot: Slot, packet: Packet) -> None:
        slot.job, slot.tree = packet.job, packet.tree
        slot.epoch, slot.fragment = packet.epoch, packet.fragment
        slot.cleared = slot.kept = False
        slot.children = {packet.hops[0].child}
        slot.fan_in = packet.hops[0].fan_in
        slot.weight = packet.weight
        slot.flags = packet.flags & SUMMED_FLAGS
        slot.exponent = packet.exponent
        slot.reduction, slot.width = packet.reduction, packet.width
        slot.values = packet.values

    def _add(self, slot: Slot, packet: Packet) -> None:
        slot.children.add(packet.hops[0].child)
        slot.weight = (slot.weight + packet.weight) % 2**16
        slot.flags |= packet.flags & SUMMED_FLAGS
        slot.exponent = max(slot.exponent, packet.exponent)
        reduction, width = Reduction(packet.reduction), Width(packet.width)
        slot.values, wraps = combine(slot.values, packet.values, reduction, width)
        if wraps:
            self.counts[Outcome.OVERFLOW] += 1
            slot.flags |= Flag.OVERFLOW

    def _result(
        self, packet: Packet, frame: bytes, port: int, slot: Slot, sender: Sender
    ) -> list[Frame]:
        if packet.kind != Kind.REPLICATED:
            self._clear(packet, slot, clears=packet.hops[0].clear)
            return self._popped(frame, _unnumbered(packet))
        found = self.replication.get((packet.job, packet.tree, packet.epoch))
        if found is None:
            return self._dropped(Outcome.NOT_ADMITTED)
        group, clears = found
        ports = [to for to in self.groups.get(group, ()) if to != port]
        if not clears:
            self._clear(packet, slot, clears=False)
            frame = _rewritten(frame, _unnumbered(packet))
            return [(to, frame) for to in ports]
        asks = []
        if packet.sequenced:
            arrivals = self._from_parent[sender.base % self.build.slots]
            missing, _ = arrivals.take(packet)
            asks = self._ask(packet, frame, port, missing)
        if slot.is_of(packet) and slot.kept:
            return asks + self._dropped(Outcome.DUPLICATE)
        if slot.gives_way_to_result(packet):
            self.counts[Outcome.KEPT] += 1
            slot.open_for_result(packet)
            slot.keep(packet)
        elif self._clear(packet, slot, clears=True):
            slot.keep(packet)
        frame = self._number(packet, frame, sender, up=False)
        return asks + [(to, frame) for to in ports]

    def _clear(self, packet: Packet, slot: Slot, *, clears: bool) -> bool:
        """Clear a slot if it is the packet's to clear."""
        cleared = clears and slot.is_of(packet) and not slot.cleared
        if cleared:
            slot.cleared = True
        self.counts[Outcome.CLEARED if cleared else Outcome.RESULT] += 1
        return cleared

    def _plain(self, port: int, frame: bytes) -> list[Frame]:
        found = self._route(frame)
        if found is not None:
            mac, to = found
            ttl = frame[22]
            if ttl <= 1:
                return []
            header = bytearray(frame[14 : 14 + 4 * (frame[14] & 15)])
            header[8] -= 1
            header[10:12] = bytes(2)
            header[10:12] = wire.ipv4_checksum(bytes(header)).to_bytes(2, "big")
            rest = frame[6:14] + bytes(header) + frame[14 + len(header) :]
            self.counts[Outcome.PLAIN] += 1
            return [(to, mac.to_bytes(6, "big") + rest)]
        action, number = self.l2.get(int.from_bytes(frame[:6], "big"), ("drop", DROP))
        if action == "drop":
            return []
        self.counts[Outcome.PLAIN] += 1
        targets = [number] if action == "forward" else self.groups.get(number, [])
        return [(to, frame) for to in targets if action == "forward" or to != port]

    def _route(self, frame: bytes) -> tuple[int, int] | None:
        if frame[12:14] != b"\x08\x00":
            return None
        address = int.from_bytes(frame[30:34], "big")
        for (prefix, length), route in sorted(self.routes.items(), key=lambda r: -r[0][1]):
            if address >> 32 - length == prefix >> 32 - length:
                return route
        return None

    def _from_controller(self, frame: bytes) -> list[Frame]:
        if len(frame) >= PACKET_OUT_BYTES and frame[0] == 0:
            port = int.from_bytes(frame[1:3], "big") & 511
            return [(port, frame[PACKET_OUT_BYTES:])]
        packet = self._read(frame[PACKET_OUT_BYTES:]) if frame[:1] == b"\1" else None
        if packet is None or packet.kind != Kind.INSPECT:
            return self._dropped(Outcome.MALFORMED)
        self.counts[Outcome.INSPECTED] += 1
        index = int.from_bytes(frame[3:7], "big") % self.build.slots
        slot = self.slots[index]
        bitmap = sum(1 << child for child in slot.children)
        header = b"\1" + CPU_PORT.to_bytes(2, "big") + index.to_bytes(4, "big")
        header += bitmap.to_bytes(64, "big")
        header += struct.pack(">HH??", len(slot.children), slot.fan_in, slot.cleared, slot.job != 0)
        shown = _sum(slot, packet)
        shown = replace(shown, job=slot.job, tree=slot.tree, epoch=slot.epoch)
        shown = replace(shown, fragment=slot.fragment)
        if not slot.values:
            shown = replace(shown, values=(0,) * self.build.lanes)
        return [(CPU_PORT, header + _rewritten(frame[PACKET_OUT_BYTES:], shown))]

    # --- reading and writing frames

    def _kind_of(self, frame: bytes) -> str:
        """`hopsum`, `plain` or `malformed`, as far as the headers in front of ours tell."""
        if len(frame) < 14:
            return "malformed"
        ip, tags = 14, 0
        while frame[ip - 2 : ip] in TAGS and tags < 2:
            ip, tags = ip + 4, tags + 1
            if len(frame) < ip:
                return "malformed"
        if frame[ip - 2 : ip] != b"\x08\x00":
            return "plain"
        if len(frame) < ip + 20 or frame[ip] >> 4 != 4 or frame[ip] & 15 < 5:
            return "malformed"
        transport = ip + 4 * (frame[ip] & 15)
        if len(frame) < transport:
            return "malformed"
        if frame[ip + 9] != wire.UDP_PROTOCOL:
            return "plain"
        if int.from_bytes(frame[ip + 6 : ip + 8], "big") & 0x1FFF:
            return self._kind_of_later_fragment(frame, ip, transport)
        if len(frame) < transport + 8:
            return "malformed"
        port = int.from_bytes(frame[transport + 2 : transport + 4], "big")
        if port != wire.UDP_PORT:
            return "plain"
        whole = frame[20:22] == b"\x40\x00"
        from_ours = int.from_bytes(frame[transport : transport + 2], "big") == wire.UDP_PORT
        ours = transport == 34 and not tags and whole and from_ours
        return "hopsum" if ours else "malformed"

    def _kind_of_later_fragment(self, frame: bytes, ip: int, transport: int) -> str:
        """Of an IPv4 fragment that is not the first: it must not show hopsum's ports."""
        if transport - ip > 20 or int.from_bytes(frame[ip + 2 : ip + 4], "big") < 24:
            return "plain"
        ports = frame[transport : transport + 4]
        ours = 2 * wire.UDP_PORT.to_bytes(2, "big")
        return "malformed" if len(ports) < 4 or ports == ours else "plain"

    def _read(self, frame: bytes) -> Packet | None:
        """The packet, or None if this switch cannot take it."""
        if self._kind_of(frame) != "hopsum" or len(frame) < 62 or frame[42] >> 4 != wire.VERSION:
            return None
        kind, hops = frame[42] & 15, frame[49]
        fewest = dict.fromkeys(Kind, 0) | {Kind.CONTRIBUTION: 2, Kind.RESULT: 1}
        if kind not in fewest or not is_known(frame[44]):
            return None
        reduction = Reduction(frame[44] >> 4)
        stacked = kind in (Kind.CONTRIBUTION, Kind.RESULT, Kind.REQUEST)
        if not fewest[Kind(kind)] <= hops <= (self.build.max_hops if stacked else 0):
            return None
        try:
            # A UDP checksum is not ours to check.
            packet = Packet.read(frame[:40] + bytes(2) + frame[42:])
        except ValueError:
            return None
        # A request is as long as the packet that showed the loss.
        of_sum = kind == Kind.CONTRIBUTION or (kind == Kind.REQUEST and hops > 0)
        carries = wire.carries_lanes(reduction, up=of_sum)
        if len(packet.values) != (self.build.lanes if carries else 0):
            return None
        if kind == Kind.REQUEST and reduction == Reduction.NONE:
            return None
        if kind == Kind.INSPECT and not carries:
            return None
        if kind != Kind.INSPECT and not (packet.job and packet.epoch and packet.weight):
            return None
        return packet

    def _popped(self, frame: bytes, packet: Packet) -> list[Frame]:
        """The frame of a packet that has been dealt with, its first entry gone."""
        return self._left(_rewritten(frame, packet), packet)

    def _left(self, frame: bytes, packet: Packet) -> list[Frame]:
        """The frame without its first entry, where that entry says."""
        return [(packet.hops[0].port, without(frame, 1))]

    def _dropped(self, outcome: Outcome) -> list[Frame]:
        self.counts[outcome] += 1
        return []


def _unnumbered(packet: Packet) -> Packet:
    """The packet for who has another neighbour than who numbered it."""
    return replace(packet, sequenced=False, repair=False)


def without(frame: bytes, entries: int) -> bytes:
    """Return the frame without its first stack entries."""
    short = bytearray(frame[:62] + frame[62 + 4 * entries :])
    short[49] -= entries
    short[40:42] = bytes(2)
    return _fitted(short)


def _fitted(frame: bytearray) -> bytes:
    """The frame with its lengths corrected."""
    total = len(frame) - 14
    frame[16:18] = total.to_bytes(2, "big")
    frame[38:40] = (total - 20).to_bytes(2, "big")
    return _checked(frame)


def _addressed(frame: bytes, source: tuple[bytes, bytes], target: tuple[bytes, bytes]) -> bytes:
    """The frame from one (MAC, IP) to another, urgently."""
    return _urgent(
        target[0] + source[0] + frame[12:26] + source[1] + target[1] + frame[34:], urgent=True
    )


def _urgent(frame: bytes, *, urgent: bool) -> bytes:
    """The frame with or without its mark of urgency."""
    marked = bytearray(frame)
    marked[15] = marked[15] & ~URGENT | URGENT * urgent
    return _checked(marked)


def _checked(frame: bytearray) -> bytes:
    """The frame with its IPv4 checksum recomputed."""
    frame[24:26] = bytes(2)
    frame[24:26] = wire.ipv4_checksum(bytes(frame[14:34])).to_bytes(2, "big")
    return bytes(frame)


def _sum(slot: Slot, packet: Packet) -> Packet:
    """The packet with the slot's sum in it."""
    flags = packet.flags & ~int(SUMMED_FLAGS) | slot.flags
    return replace(
        packet,
        weight=slot.weight,
        exponent=slot.exponent,
        flags=flags,
        reduction=slot.reduction,
        width=slot.width,
        values=slot.values,
    )


def _rewritten(frame: bytes, packet: Packet) -> bytes:
    """The frame with the header fields and lanes of `packet` (the stack stays)."""
    stack_end = 62 + 4 * len(packet.hops)
    made = bytearray(replace(packet, hops=(LAST_HOP,) * len(packet.hops)).frame())
    head = frame[:40] + bytes(2) + bytes(made[42:62]) + frame[62:stack_end]
    return _fitted(bytearray(head + made[stack_end:]))


def _numbers(matches: Mapping[str, Match], *names: str) -> tuple[int, int, int]:
    """The exact matches of these keys."""
    values = [matches[name] for name in names]
    a, b, c = (value for value in values if isinstance(value, int))
    return a, b, c
