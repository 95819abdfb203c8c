"""The links of an emulation whose switches are BMv2."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import time
from collections.abc import Iterable

from hopsum.mininet_topos.hosts import EmulatedHosts
from hopsum.mininet_topos.record import INTERFACES

WAKING = bytes.fromhex("02 00 00 00 00 00  02 00 00 00 00 00  88 b5") + bytes(46)
"""A frame without a receiver, of an EtherType for local experiments: switches drop it."""
IFF_UP = 1
SIOCSIFNAME = 0x8923
AWAY_SECONDS = 0.02
"""How long names are away: libpcap looks for them every millisecond when a processor is free."""


class Bmv2Links:
    """Link states of BMv2 switches, which keeps these receiving while one of their links is down.

    BMv2 receives in one thread. When the switch's own interface of a link goes down, libpcap keeps
    that thread until a frame arrives at this interface: it receives at no other port. It gives up
    an interface whose name is gone (`pcap_wait_for_frames_mmap`), so interfaces that are down get
    another name for a moment. BMv2 receives there again once they are up. One that is up again
    before it was seen to be down works again when a frame arrives. Hosts send by themselves; two
    switches may wait for each other, so a frame is sent both ways over a link that has come up.
    """

    def __init__(self, emulation: EmulatedHosts) -> None:
        self._emulation = emulation
        switches = emulation.network.switches
        self._own = [
            ends
            for link in emulation.network.links
            for ends in ((link.a, link.b), (link.b, link.a))
            if ends[0] in switches
        ]
        self._down: set[tuple[str, str]] = set()
        """Switches' interfaces that are down, and how often each had come up."""
        self._seen = {ends: self._times_up(*ends) for ends in self._own if ends[1] in switches}
        """How often each interface between switches has come up."""

    def states(self) -> dict[str | tuple[str, str], bool]:
        """Return whether links are up, as `EmulatedHosts.link_states` does; free their ends."""
        states = self._emulation.link_states()
        down = {
            (self._emulation.interface(*ends), self._times_up(*ends))
            for ends in self._own
            if not states[min(ends), max(ends)] and self._is_down(*ends)
        }
        if down - self._down:
            # All of them: the thread would block at the next one.
            _take_away(interface for interface, _ in down)
        self._down = down
        for ends, seen in self._seen.items():
            times = self._times_up(*ends)
            if times != seen and states[min(ends), max(ends)]:
                self._seen[ends] = times
                self._send(*ends)
        return states

    def _is_down(self, node: str, neighbour: str) -> bool:
        """Return whether an interface itself is down, not only its peer."""
        path = INTERFACES / self._emulation.interface(node, neighbour) / "flags"
        try:
            return not int(path.read_text(), 16) & IFF_UP
        except OSError:
            return False

    def _times_up(self, node: str, neighbour: str) -> str:
        path = INTERFACES / self._emulation.interface(node, neighbour) / "carrier_up_count"
        try:
            return path.read_text()
        except OSError:
            return ""

    def _send(self, node: str, neighbour: str) -> None:
        # It may have gone down again, or its switch away.
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sock,
        ):
            sock.bind((self._emulation.interface(node, neighbour), 0))
            sock.send(WAKING)


def _take_away(interfaces: Iterable[str]) -> None:
    """Give interfaces that are down other names for `AWAY_SECONDS`."""
    away = {}
    try:
        for interface in interfaces:
            # It may be up again, or gone.
            with contextlib.suppress(OSError):
                other = f"hopsum-{socket.if_nametoindex(interface)}"
                _rename(interface, other)
                away[other] = interface
        time.sleep(AWAY_SECONDS)
    finally:
        for other, interface in away.items():
            with contextlib.suppress(OSError):
                _rename(other, interface)


def _rename(interface: str, name: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, SIOCSIFNAME, struct.pack("16s24s", interface.encode(), name.encode()))
