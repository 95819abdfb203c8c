"""Packet sockets: whole frames in and out of a network interface (packet(7))."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import threading
from collections.abc import Mapping

ETH_P_ALL = 3
PACKET_STATISTICS = 6
PACKET_IGNORE_OUTGOING = 23
SO_ATTACH_FILTER = 26
SO_SNDBUFFORCE = 32
SO_RCVBUFFORCE = 33
SOL_PACKET = 263
BUFFER_BYTES = 8 << 20
"""Bytes of socket buffers, which hold the frames of a burst while the receiver computes."""


class InterfaceError(OSError):
    """An interface cannot be opened; the message gives its name and the reason."""


def set_buffer(sock: socket.socket, option: int, size: int) -> None:
    """Set SO_SNDBUF or SO_RCVBUF to a size in bytes, which the kernel doubles.

    Beyond net.core.wmem_max and rmem_max only with CAP_NET_ADMIN; else up to these.
    """
    force = {socket.SO_SNDBUF: SO_SNDBUFFORCE, socket.SO_RCVBUF: SO_RCVBUFFORCE}[option]
    try:
        sock.setsockopt(socket.SOL_SOCKET, force, size)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, option, size)


def attach_filter(sock: socket.socket, program: bytes) -> None:
    """Attach a classic BPF program to a socket."""
    holder = ctypes.create_string_buffer(program)
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(holder))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, header)


def _bind_to_all(sock: socket.socket) -> None:
    """Bind a packet socket to all interfaces, which Python's `bind` cannot name."""
    address = struct.pack(
        "HHiHBB8s", socket.AF_PACKET, socket.htons(ETH_P_ALL), 0, 0, 0, 0, bytes(8)
    )
    if ctypes.CDLL(None, use_errno=True).bind(sock.fileno(), address, len(address)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def open_packet_socket(interface: str | None, program: bytes | None = None) -> socket.socket:
    """Return a non-blocking packet socket that receives an interface's incoming frames
    only.

    `interface` None: those of all interfaces, as far as the program accepts them. `program`: a
    classic BPF program that is attached before the first frame can arrive. Raises InterfaceError
    without the privilege, or without the interface.
    """
    try:
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    except PermissionError as error:
        raise InterfaceError(
            errno.EPERM,
            f"packet socket on {interface}: not permitted; run as root (or with CAP_NET_RAW)",
        ) from error
    try:
        sock.setblocking(False)
        sock.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            set_buffer(sock, option, BUFFER_BYTES)
        if program is not None:
            attach_filter(sock, program)
        if interface is None:
            _bind_to_all(sock)
        else:
            sock.bind((interface, ETH_P_ALL))
    except OSError as error:
        sock.close()
        raise InterfaceError(
            error.errno or errno.ENODEV,
            f"interface {interface!r}: {os.strerror(error.errno or errno.ENODEV)}; `ip link` lists "
            "the interfaces",
        ) from error
    return sock


class FullCounts:
    """Counts the frames that found no room in packet sockets, or in their receive rings.

    The kernel starts again from 0 at each reading (packet(7)): there must be no other reader.
    """

    def __init__(self, sockets: Mapping[int, socket.socket]) -> None:
        self._sockets = sockets
        self._counts = dict.fromkeys(sockets, 0)
        self._reading = threading.Lock()

    def read(self) -> dict[int, int]:
        """Return the frames of each port so far."""
        with self._reading:
            for port, sock in self._sockets.items():
                _, lost = struct.unpack("II", sock.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
                self._counts[port] += lost
            return dict(self._counts)
