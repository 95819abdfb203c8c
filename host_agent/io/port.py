"""A network interface as a source and sink of whole frames, in batches."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from functools import cache
from importlib import resources
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from p4switch.packet_io.compile import NoCompilerError, compile_shared
from p4switch.packet_io.sockets import InterfaceError, attach_filter, open_packet_socket

STRIDE = 2048
"""Bytes kept of a frame: above the 1514 of a full Ethernet frame."""

Frames = NDArray[np.uint8]


class FramePort(Protocol):
    """Interface of an agent's port."""

    def send(self, frames: Frames) -> int:
        """Send frames (n, length); return the number accepted (fewer if a queue is full)."""

    def receive(self, limit: int = 256) -> list[Frames]:
        """Return received frames, at most `limit`, without blocking.

        In order of arrival; neighbours of one length form one array (n, length).
        """

    def fileno(self) -> int:
        """Return a descriptor that is readable when frames have arrived."""

    def close(self) -> None:
        """Close the port."""


def group_by_length(rows: Frames, lengths: NDArray[np.uint32]) -> list[Frames]:
    """Split received rows into runs of equal length, each (n, length)."""
    if not len(rows):
        return []
    # Bytes are compared many times as fast as short arrays.
    if lengths.tobytes() == lengths[:1].tobytes() * len(lengths):
        return [rows[:, : int(lengths[0])]]
    starts = np.flatnonzero(np.diff(lengths)) + 1
    return [
        run[:, : int(run_lengths[0])]
        for run, run_lengths in zip(np.split(rows, starts), np.split(lengths, starts), strict=True)
    ]


VLAN_TAG_PRESENT = 0xFFFFF000 + 48
"""SKF_AD_OFF + SKF_AD_VLAN_TAG_PRESENT: a frame's outer tag is taken off before filters run."""


def udp_filter(port: int) -> bytes:
    """Return a classic BPF program that accepts untagged IPv4 UDP frames to a port.

    They have no IPv4 options, say Don't Fragment and are no fragments.
    """
    code = [
        (0x20, 0, 0, VLAN_TAG_PRESENT),
        (0x15, 0, 11, 0),
        (0x28, 0, 0, 12),  # ether type
        (0x15, 0, 9, 0x0800),
        (0x28, 0, 0, 14),  # version, header length, type of service
        (0x54, 0, 0, 0xFF00),
        (0x15, 0, 6, 0x4500),
        (0x28, 0, 0, 20),  # IPv4 flags and fragment offset
        (0x15, 0, 4, 0x4000),
        (0x30, 0, 0, 23),  # protocol
        (0x15, 0, 2, 17),
        (0x28, 0, 0, 36),  # UDP destination port
        (0x15, 1, 0, port),
        (0x06, 0, 0, 0),
        (0x06, 0, 0, 0x40000),
    ]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


@cache
def _native() -> ctypes.CDLL | None:
    """Return the batched system calls, or None without a compiler."""
    try:
        text = resources.files("host_agent.io").joinpath("mmsg.c").read_text()
        library = ctypes.CDLL(str(compile_shared("mmsg", text)))
    except NoCompilerError:
        return None
    pointer = ctypes.c_void_p
    number = ctypes.c_uint32
    library.packet_send.argtypes = (ctypes.c_int, pointer, number, number, number)
    library.packet_receive.argtypes = (ctypes.c_int, pointer, number, number, pointer)
    return library


def udp_sink(interface: str, port: int) -> socket.socket:
    """Hold a UDP port on an interface, and drop what arrives there.

    So the kernel does not answer with ICMP port unreachable, and no other process can send from
    that port. Raises InterfaceError if another one has it.
    """
    sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
    attach_filter(sink, struct.pack("HBBI", 0x06, 0, 0, 0))
    try:
        sink.bind(("", port))
    except OSError as error:
        sink.close()
        raise InterfaceError(
            f"interface {interface!r}: UDP port {port}: {error}; expected it free (is another "
            "agent running there?)"
        ) from error
    return sink


class PacketPort:
    """A FramePort on an interface, over AF_PACKET.

    While the interface is down (ENETDOWN) what is sent is lost, as on a link without a carrier.
    `udp_port`: receive only what `udp_filter` keeps for that port, and keep the kernel from
    answering (`udp_sink`). Raises InterfaceError.
    """

    def __init__(self, interface: str, *, udp_port: int | None = None) -> None:
        self._library = _native()
        program = None if udp_port is None else udp_filter(udp_port)
        self._socket = open_packet_socket(interface, program)
        self._sink: socket.socket | None = None
        self._make_room(256)
        if udp_port is not None:
            self._sink = udp_sink(interface, udp_port)

    def _make_room(self, limit: int) -> None:
        """Allocate rows for received frames."""
        self._rows = np.empty((limit, STRIDE), dtype=np.uint8)
        self._lengths = np.empty(limit, dtype=np.uint32)
        self._addresses = self._rows.ctypes.data, self._lengths.ctypes.data

    def send(self, frames: Frames) -> int:
        """Send frames (n, length); return the number that the kernel accepted."""
        if not len(frames):
            return 0
        if self._library is None:
            return self._send_plain(frames)
        if frames.strides[1] != 1:
            frames = np.ascontiguousarray(frames)
        n, length = frames.shape
        done: int = self._library.packet_send(
            self._socket.fileno(), frames.ctypes.data, n, length, frames.strides[0]
        )
        if done == -errno.ENETDOWN:
            return len(frames)
        if done < 0:
            raise OSError(-done, f"sending frames: {os.strerror(-done)}")
        return done

    def receive(self, limit: int = 256) -> list[Frames]:
        """Return received frames, at most `limit`; the caller owns the arrays."""
        if limit > len(self._rows):
            self._make_room(limit)
        if self._library is None:
            n = self._receive_plain(limit)
        else:
            rows, lengths_at = self._addresses
            n = self._library.packet_receive(self._socket.fileno(), rows, limit, STRIDE, lengths_at)
            if n == -errno.ENETDOWN:
                n = 0
            if n < 0:
                raise OSError(-n, f"receiving frames: {os.strerror(-n)}")
        lengths = self._lengths[:n]
        groups = group_by_length(self._rows[:n], np.minimum(lengths, STRIDE))
        return [group.copy() for group in groups]

    def _send_plain(self, frames: Frames) -> int:
        for number, frame in enumerate(frames):
            try:
                self._socket.send(frame.tobytes())
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.ENOBUFS):
                    return number
                if error.errno != errno.ENETDOWN:
                    raise
        return len(frames)

    def _receive_plain(self, limit: int) -> int:
        for number in range(limit):
            try:
                self._lengths[number] = self._socket.recv_into(memoryview(self._rows[number]))
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.ENETDOWN):
                    return number
                raise
        return limit

    def fileno(self) -> int:
        """Return the packet socket."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the sockets."""
        self._socket.close()
        if self._sink is not None:
            self._sink.close()
