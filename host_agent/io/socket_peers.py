"""The process at the other end of a Unix socket, as the kernel knows it (SO_PEERCRED, unix(7))."""

from __future__ import annotations

import pwd
import socket
import struct
from pathlib import Path
from typing import NamedTuple

_CREDENTIALS = struct.Struct("iII")
"""struct ucred: process, user, group."""


class Peer(NamedTuple):
    """A process, and the user whose it was when it connected or began to listen."""

    process: int
    user: int

    def __str__(self) -> str:
        """Name the process, which may have ended since, and its user."""
        try:
            command = f" ({Path(f'/proc/{self.process}/comm').read_text().strip()!a})"
        except OSError:
            command = ""
        try:
            user = pwd.getpwuid(self.user).pw_name
        except KeyError:
            user = str(self.user)
        return f"process {self.process}{command} of user {user}"


def peer_of(connected: socket.socket) -> Peer:
    """Return the process that a socket is connected to."""
    data = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Peer(*_CREDENTIALS.unpack(data)[:2])


def listener_at(address: str) -> Peer | None:
    """Return the process that listens at an address (SOCK_SEQPACKET); None if none answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        try:
            probe.connect(address)
        except OSError:
            return None
        return peer_of(probe)
