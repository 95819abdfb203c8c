"""Packets by hand: `hopsum-agent send` and `hopsum-agent sniff`, with the Scapy layer."""

from __future__ import annotations

import json
import re
import select
import time
from collections.abc import Iterator, Sequence
from enum import Enum
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, TypeVar

from hopsum.host_agent.io.scapy_io import opened
from hopsum.protocol.errors import InputError
from hopsum.protocol.lanes import LANES_MAX
from hopsum.protocol.wire import (
    MAX_CHILDREN,
    UDP_PORT,
    VALUE_REDUCTIONS,
    Flag,
    Header,
    Width,
    most_hops,
)
from hopsum_scapy import (
    IP,
    UDP,
    Ether,
    Hop,
    Hopsum,
    Packet,
    open_listener,
    open_socket,
    parse,
)
from p4switch.packet_io.pcap import read_pcap
from p4switch.packet_io.sockets import InterfaceError

LANES_SHOWN = 8
Choice = TypeVar("Choice", bound=Enum)


class CommandError(InputError):
    """An invalid option."""


_HOP_NUMBERS = {
    "child": ("child", MAX_CHILDREN - 1),
    "fan-in": ("fan_in", MAX_CHILDREN),
    "port": ("port", 0x7FF),
}
_HOP_BITS = {"agg": "aggregate", "clear": "clear"}


def parse_hop(text: str) -> Hop:
    """Parse a stack entry such as `agg,child=0,fan-in=2,port=3`; missing fields are 0.

    `fan-in` left out is 1. Raises CommandError.
    """
    fields: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if name in _HOP_BITS and not equals:
            fields[_HOP_BITS[name]] = 1
            continue
        if name not in _HOP_NUMBERS:
            raise CommandError(
                f"hop {text!r}: {part!r}; expected `agg`, `clear`, `child=`, `fan-in=` or `port=`, "
                f"with commas between"
            )
        field, most = _HOP_NUMBERS[name]
        fields[field] = _number(f"hop {text!r}: {name}", value, 0, most)
    return Hop(**fields)


def parse_choice(what: str, name: str, choices: type[Choice]) -> Choice:
    """Return the member of that name, ignoring case. Raises CommandError."""
    known = {choice.name.lower(): choice for choice in choices if choice.name}
    try:
        return known[name.lower()]
    except KeyError:
        raise CommandError(f"{what} {name!r}: expected one of {', '.join(known)}") from None


def parse_flags(names: Sequence[str]) -> int:
    """Return flags by name, such as `bypass`. Raises CommandError."""
    return sum({int(parse_choice("flag", name, Flag)) for name in names})


def parse_width(bits: int) -> Width:
    """Return the width of values of some bits. Raises CommandError."""
    widths = {width.bits: width for width in Width}
    if bits not in widths:
        raise CommandError(f"wire-bits {bits}: expected {', '.join(map(str, widths))}")
    return widths[bits]


def parse_values(text: str, lanes: int, width: Width = Width.WIDTH_32) -> list[int]:
    """Parse values separated by commas, padded with zeros to fill lanes. Raises CommandError."""
    if not 1 <= lanes <= LANES_MAX:
        raise CommandError(f"lanes {lanes}: expected 1 to {LANES_MAX}")
    parts = [part for part in text.split(",") if part.strip()]
    most, limit = lanes * width.per_lane, 1 << width.bits - 1
    if len(parts) > most:
        raise CommandError(f"values: {len(parts)} of them; expected at most {most}, see --lanes")
    values = [_number(f"value {i}", part, -limit, limit - 1) for i, part in enumerate(parts)]
    return values + [0] * (most - len(values))


def _number(what: str, text: str, least: int, most: int) -> int:
    try:
        number = int(text, 0)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise CommandError(f"{what}: {text!r}; expected a whole number from {least} to {most}")
    return number


def make_packet(
    header: Header, hops: Sequence[Hop], values: Sequence[int], addresses: dict[str, str]
) -> Packet:
    """Return a packet as an agent would send it; `addresses`: src_mac, dst_mac, src_ip, dst_ip.

    Raises CommandError.
    """
    lanes = len(values) // header.width.per_lane
    most = most_hops(lanes)
    if len(hops) > most:
        raise CommandError(f"{len(hops)} hops: expected at most {most} with {lanes} lanes")
    if header.width and header.reduction not in VALUE_REDUCTIONS:
        raise CommandError(
            f"wire-bits {header.width.bits} with reduction {header.reduction.name.lower()}: "
            f"expected {Width.WIDTH_32.bits}; only sum and max depend on the width"
        )
    for name, address in addresses.items():
        _check_address(name, address)
    packet = (
        Ether(src=addresses["src_mac"], dst=addresses["dst_mac"])
        / IP(src=addresses["src_ip"], dst=addresses["dst_ip"], id=0, flags="DF", ttl=64)
        / UDP(sport=UDP_PORT, dport=UDP_PORT, chksum=0)
        / Hopsum(
            kind=header.kind,
            flags=header.flags,
            reduction=header.reduction,
            width=header.width,
            exponent=header.exponent,
            job=header.job,
            tree=header.tree,
            epoch=header.epoch,
            worker=header.worker,
            weight=header.weight,
            fragment_number=header.fragment,
            stack=list(hops),
            lanes=list(values),
        )
    )
    return parse(bytes(packet))


def _check_address(name: str, address: str) -> None:
    # Scapy treats invalid addresses as names to look up, or as zeros.
    if name.endswith("mac"):
        if not re.fullmatch(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}", address):
            raise CommandError(f"{name} {address!r}: expected one like 02:00:00:00:00:01")
        return
    try:
        IPv4Address(address)
    except ValueError:
        raise CommandError(f"{name} {address!r}: expected one like 10.0.0.1") from None


def interface_mac(interface: str) -> str:
    """Return the MAC address of one of this host's interfaces. Raises InterfaceError."""
    try:
        return Path("/sys/class/net", interface, "address").read_text().strip()
    except OSError as error:
        raise InterfaceError(
            f"interface {interface!r}: no such interface; `ip link` lists them"
        ) from error


def send_packet(interface: str, packet: Packet, count: int) -> None:
    """Send copies of a packet. Raises InterfaceError."""
    socket = opened(open_socket, interface)
    try:
        for _ in range(count):
            socket.send(packet)
    except OSError as error:
        raise InterfaceError(f"interface {interface!r}: cannot send: {error}; is it up?") from error
    finally:
        socket.close()


def packets_of_file(path: Path) -> Iterator[tuple[float, Packet]]:
    """Yield times and hopsum packets of a capture. Raises CommandError, PcapError."""
    try:
        for seconds, frame in read_pcap(path):
            packet = parse(frame)
            if Hopsum in packet:
                yield seconds, packet
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}; expected a pcap file") from error


def packets_of_interface(interface: str, timeout: float | None) -> Iterator[tuple[float, Packet]]:
    """Yield times and hopsum packets on an interface, both ways, for some seconds (None: forever).

    Listens from the call on. Raises InterfaceError.
    """
    return _heard(opened(open_listener, interface), timeout)


def _heard(socket: Any, timeout: float | None) -> Iterator[tuple[float, Packet]]:
    until = None if timeout is None else time.monotonic() + timeout
    try:
        while True:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not select.select([socket], [], [], left)[0]:
                return
            _, frame, seconds = socket.recv_raw()
            if frame is not None and Hopsum in (packet := parse(frame)):
                yield float(seconds or time.time()), packet
            if left == 0.0:
                return
    finally:
        socket.close()


def one_line(packet: Packet) -> str:
    """Return a summary: kind, source, destination, stack, first values."""
    hopsum = packet[Hopsum]
    shown = " ".join(str(lane) for lane in hopsum.lanes[:LANES_SHOWN])
    more = " ..." if len(hopsum.lanes) > LANES_SHOWN else ""
    bits = 32 >> hopsum.width
    if hopsum.width:
        more += f" (of {bits} bits)"
    stack = " ".join(f"({_hop_text(hop)})" for hop in hopsum.stack) or "none"
    return (
        f"{packet[IP].src} > {packet[IP].dst} {hopsum.mysummary()} hops {stack} "
        f"lanes {len(hopsum.lanes) * bits // 32}: {shown}{more}"
    )


def _hop_text(hop: Hop) -> str:
    bits = [name for name, field in _HOP_BITS.items() if getattr(hop, field)]
    numbers = [f"{name}={getattr(hop, field)}" for name, (field, _) in _HOP_NUMBERS.items()]
    return ",".join([*bits, *numbers])


def as_json(seconds: float, packet: Packet) -> str:
    """Return the packet's fields as one line of JSON."""
    hopsum = packet[Hopsum]
    names = (
        *("version", "kind", "reduction", "width", "exponent", "job", "tree", "epoch", "worker"),
        "weight",
    )
    fields: dict[str, Any] = {name: getattr(hopsum, name) for name in names}
    return json.dumps(
        {
            "time": seconds,
            "src_mac": packet.src,
            "dst_mac": packet.dst,
            "src_ip": packet[IP].src,
            "dst_ip": packet[IP].dst,
            **fields,
            "flags": [f.name.lower() for f in Flag if f.name and int(hopsum.flags) & f],
            "fragment": hopsum.fragment_number,
            "sequence": hopsum.sequence,
            "stack": [dict(hop.fields) for hop in hopsum.stack],
            "lanes": list(hopsum.lanes),
        }
    )
