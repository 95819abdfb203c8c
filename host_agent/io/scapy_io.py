"""Frames through Scapy: slow, but each is a Scapy packet."""

from __future__ import annotations

import select

import numpy as np

from hopsum_scapy import Hopsum, build, open_socket, parse
from host_agent.io.port import Frames, udp_sink
from p4switch.packet_io.sockets import InterfaceError
from protocol.wire import UDP_PORT


class ScapyPort:
    """A `FramePort` that builds each frame with the Scapy layer, and parses each one.

    About 1,000 frames a second. Frames of others than hopsum are left out.
    """

    def __init__(self, interface: str) -> None:
        try:
            self._socket = open_socket(interface)
        except (OSError, ValueError) as error:
            # Scapy raises ValueError for an interface that is not there.
            raise InterfaceError(
                f"interface {interface!r}: {error}; expected an interface of this host, and "
                "permission to open packet sockets (root)"
            ) from error
        self._sink = udp_sink(interface, UDP_PORT)

    def send(self, frames: Frames) -> int:
        """Send frames (n, length); all are accepted."""
        for row in frames:
            self._socket.send(build(row.tobytes()))
        return len(frames)

    def receive(self, limit: int = 256) -> list[Frames]:
        """Return received frames, at most `limit`, one array (1, length) each."""
        taken: list[Frames] = []
        while len(taken) < limit and select.select([self], [], [], 0.0)[0]:
            _, frame, _ = self._socket.recv_raw()
            if frame is not None and Hopsum in parse(frame):
                taken.append(np.frombuffer(frame, dtype=np.uint8)[None, :])
        return taken

    def fileno(self) -> int:
        """Return the packet socket."""
        number: int = self._socket.fileno()
        return number

    def close(self) -> None:
        """Close the sockets."""
        self._socket.close()
        self._sink.close()
