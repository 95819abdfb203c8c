"""What a sender left to its network card: checksums of TCP and UDP, and cutting TCP's segments.

A veth pair has no card. It hands frames over with the checksum of the pseudo-header only
(TP_STATUS_CSUMNOTREADY), and TCP's segments as one frame of up to 64 KiB, from which a switch makes
those that would have come over a cable. `runtime/offloads.h` does the same in C.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from p4switch.targets.v1model.hashes import csum16

TCP, UDP = 6, 17
FIN_PSH, CWR = 0x09, 0x80
TAGS = (0x8100, 0x88A8)
IPV4, IPV6 = 0x0800, 0x86DD


class _Place(NamedTuple):
    """Where the parts of a frame begin, and where the IP packet ends."""

    version: int
    protocol: int
    ip: int
    transport: int
    payload: int
    end: int


def completed(frame: bytes, mtu: int) -> list[bytes]:
    """Return a frame with its checksum, or the TCP segments of one longer than `mtu` allows.

    A frame without a whole TCP or UDP header right after its IP header is returned as it is.
    """
    place = _find(frame)
    if place is None:
        return [frame]
    room = mtu - (place.payload - place.ip)
    if place.protocol != TCP or place.end - place.ip <= mtu or room <= 0:
        whole = bytearray(frame)
        _set_checksum(whole, place)
        return [bytes(whole)]
    starts = range(place.payload, place.end, room)
    return [_segment(frame, place, start, room, number) for number, start in enumerate(starts)]


def _find(frame: bytes) -> _Place | None:
    at = 12
    while (kind := int.from_bytes(frame[at : at + 2], "big")) in TAGS:
        at += 4
    ip = at + 2
    if kind == IPV4 and ip + 20 <= len(frame):
        length, _, fragment = struct.unpack_from(">HHH", frame, ip + 2)
        version, protocol, transport = 4, frame[ip + 9], ip + (frame[ip] & 15) * 4
        end = ip + length
        if fragment & 0x3FFF:
            return None
    elif kind == IPV6 and ip + 40 <= len(frame):
        version, protocol, transport = 6, frame[ip + 6], ip + 40
        end = transport + int.from_bytes(frame[ip + 4 : ip + 6], "big")
    else:
        return None
    if end > len(frame) or transport < ip + 20:
        return None
    if protocol == TCP and transport + 20 <= end:
        payload = transport + (frame[transport + 12] >> 4) * 4
        if payload < transport + 20:
            return None
    elif protocol == UDP:
        payload = transport + 8
    else:
        return None
    return _Place(version, protocol, ip, transport, payload, end) if payload <= end else None


def _segment(frame: bytes, whole: _Place, start: int, room: int, number: int) -> bytes:
    payload = frame[start : min(start + room, whole.end)]
    made = bytearray(frame[: whole.payload] + payload)
    place = whole._replace(end=len(made))
    ip, tcp = place.ip, place.transport
    if place.version == 4:
        identification = int.from_bytes(frame[ip + 4 : ip + 6], "big") + number & 0xFFFF
        struct.pack_into(">HH", made, ip + 2, place.end - ip, identification)
        made[ip + 10 : ip + 12] = bytes(2)
        struct.pack_into(">H", made, ip + 10, csum16(bytes(made[ip:tcp])))
    else:
        struct.pack_into(">H", made, ip + 4, place.end - tcp)
    sequence = int.from_bytes(frame[tcp + 4 : tcp + 8], "big") + start - whole.payload
    struct.pack_into(">I", made, tcp + 4, sequence & 0xFFFFFFFF)
    if start + room < whole.end:
        made[tcp + 13] &= ~FIN_PSH
    if number:
        made[tcp + 13] &= ~CWR
    _set_checksum(made, place)
    return bytes(made)


def _set_checksum(frame: bytearray, place: _Place) -> None:
    """RFC 9293, RFC 768 and RFC 8200, section 8.1."""
    field = place.transport + (16 if place.protocol == TCP else 6)
    frame[field : field + 2] = bytes(2)
    first, size = (12, 8) if place.version == 4 else (8, 32)
    addresses = frame[place.ip + first : place.ip + first + size]
    pseudo = struct.pack(">II", place.end - place.transport, place.protocol)
    data = bytes(addresses) + pseudo + bytes(frame[place.transport : place.end])
    checksum = csum16(data)
    if not checksum and place.protocol == UDP:
        checksum = 0xFFFF  # 0 means that there is none.
    struct.pack_into(">H", frame, field, checksum)
