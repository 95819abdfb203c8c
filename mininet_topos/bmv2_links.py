"""The links of an emulation whose switches are BMv2."""

from __future__ import annotations

import contextlib
import socket

from mininet_topos.hosts import EmulatedHosts
from mininet_topos.record import INTERFACES

WAKING = bytes.fromhex("02 00 00 00 00 00  02 00 00 00 00 00  88 b5") + bytes(46)
"""A frame without a receiver, of an EtherType for local experiments: switches drop it."""


class Bmv2Links:
    """States of links, which also lets switches hear again after a link was down.

    BMv2 receives in one thread. While the switch's own interface of a link is down, libpcap keeps
    that thread, and goes on until a frame arrives at this interface, be it up again: no other port
    is heard. Hosts send by themselves; between two switches each may wait for the other, so a
    frame goes both ways over a link that has come up.
    """

    def __init__(self, emulation: EmulatedHosts) -> None:
        self._emulation = emulation
        self._between = [
            ends
            for link in emulation.network.links
            for ends in ((link.a, link.b), (link.b, link.a))
            if set(ends) <= set(emulation.network.switches)
        ]
        self._seen = {ends: self._times_up(*ends) for ends in self._between}
        """How often each interface has come up."""

    def states(self) -> dict[str | tuple[str, str], bool]:
        """Return whether links are up, as `EmulatedHosts.link_states` does; wake their ends."""
        states = self._emulation.link_states()
        for ends in self._between:
            times = self._times_up(*ends)
            if times != self._seen[ends] and states[min(ends), max(ends)]:
                self._seen[ends] = times
                self._send(*ends)
        return states

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
