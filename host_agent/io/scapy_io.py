"""Frames through Scapy: slow, but each is a Scapy packet."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Mapping

import numpy as np

from hopsum.host_agent.interfaces import ONLY_PORT
from hopsum.host_agent.io.port import Frames, loses, tree_key, udp_sink
from hopsum.protocol.wire import UDP_PORT
from hopsum_scapy import Hopsum, SuperSocket, build, open_socket, parse
from p4switch.packet_io.sockets import InterfaceError


class ScapyPort:
    """A `FramePort` that builds each frame with the Scapy layer, and parses each one.

    About 1,000 frames a second. Frames of others than hopsum are left out. `interface`: of a host
    with several links those by port, the first for frames of no tree.
    """

    def __init__(self, interface: str | Mapping[int, str]) -> None:
        self.interfaces = {} if isinstance(interface, str) else dict(interface)
        named = self.interfaces or {ONLY_PORT: str(interface)}
        self._sockets: dict[int, SuperSocket] = {}
        self._trees: dict[int, SuperSocket] = {}
        """By job << 8 | tree."""
        self._sinks: list[socket.socket] = []
        self._ready = select.epoll()
        try:
            for port, name in named.items():
                self._sockets[port] = opened(open_socket, name)
                self._ready.register(self._sockets[port], select.EPOLLIN)
                self._sinks.append(udp_sink(name, UDP_PORT))
        except InterfaceError:
            self.close()
            raise
        self._home = next(iter(self._sockets.values()))
        self._of_descriptor = {each.fileno(): each for each in self._sockets.values()}

    def use_links(self, job: int, ports: Mapping[int, int]) -> None:
        """Send frames of trees from other interfaces than the first, see `LinksPort`."""
        self._trees = {key: at for key, at in self._trees.items() if key >> 8 != job}
        self._trees |= {job << 8 | tree: self._sockets[port] for tree, port in ports.items()}

    def send(self, frames: Frames) -> int:
        """Send frames (n, length); all are accepted."""
        for frame in (row.tobytes() for row in frames):
            try:
                self._trees.get(tree_key(frame), self._home).send(build(frame))
            except OSError as error:
                if not loses(error, bool(self.interfaces)):
                    raise
        return len(frames)

    def receive(self, limit: int = 256) -> list[Frames]:
        """Return received frames, at most `limit`, one array (1, length) each."""
        taken: list[Frames] = []
        while len(taken) < limit and (ready := self._ready.poll(0)):
            for descriptor, _ in ready[: limit - len(taken)]:
                frame = self._received(self._of_descriptor[descriptor])
                if frame is not None and Hopsum in parse(frame):
                    taken.append(np.frombuffer(frame, dtype=np.uint8)[None, :])
        return taken

    def _received(self, link: SuperSocket) -> bytes | None:
        """Return a frame; None if the interface is away, or something else is to be read."""
        try:
            frame: bytes | None = link.recv_raw()[1]
            return frame
        except OSError as error:
            if not loses(error, bool(self.interfaces)):
                raise
            return None

    def fileno(self) -> int:
        """Return a descriptor that is readable when a packet socket is."""
        return self._ready.fileno()

    def close(self) -> None:
        """Close the sockets."""
        self._ready.close()
        for opened in self._sockets.values():
            opened.close()
        for sink in self._sinks:
            sink.close()


def opened(open_one: Callable[[str], SuperSocket], interface: str) -> SuperSocket:
    """Open a packet socket by a function of hopsum_scapy. Raises InterfaceError."""
    try:
        return open_one(interface)
    except (OSError, ValueError) as error:
        # Scapy raises ValueError for an interface that is not there.
        raise InterfaceError(
            f"interface {interface!r}: {error}; expected an interface of this host, and "
            "permission to open packet sockets (root)"
        ) from error
