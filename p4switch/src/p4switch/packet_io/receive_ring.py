"""Receive rings: memory to which the kernel writes a packet socket's frames (packet(7))."""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import struct
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

SOL_PACKET = 263
PACKET_RX_RING = 5
PACKET_COPY_THRESH = 7
PACKET_VERSION = 10
TPACKET_V2 = 1

SLOT_BYTES = 2048
"""Of a frame with the kernel's header before it. A longer frame waits in the socket's buffer."""
BLOCK_BYTES = 1 << 16
"""What the kernel allocates in one piece: whole slots."""
SWITCH_FRAMES = 4096
"""Slots that the ports of a switch share by default: 8 MiB."""
FEWEST_FRAMES, MOST_FRAMES = 64, 1024
"""Of a port by default."""

_libc = ctypes.CDLL(None, use_errno=True)


class RingState(ctypes.Structure):
    """runtime/rings.h, receive_ring."""

    _fields_ = (
        ("slots", ctypes.c_void_p),
        ("count", ctypes.c_uint32),
        ("slot_bytes", ctypes.c_uint32),
        ("next", ctypes.c_uint32),
    )


class ReceiveRing:
    """A ring for at least `frames` frames, through which a packet socket receives from now on.

    Frames that find it full are lost, as are those that wait in the socket when it is made. Of a
    frame too long for a slot the rest is lost, unless `longer`: then it waits in the socket.
    Close it when no packet loop uses it any more, and before the socket. Raises OSError.
    """

    def __init__(self, packet_socket: socket.socket, frames: int, *, longer: bool = True) -> None:
        self._socket = packet_socket
        blocks = -(-frames * SLOT_BYTES // BLOCK_BYTES)
        count = blocks * BLOCK_BYTES // SLOT_BYTES
        for option, value in (
            (PACKET_VERSION, struct.pack("i", TPACKET_V2)),
            (PACKET_COPY_THRESH, struct.pack("i", longer)),
            (PACKET_RX_RING, struct.pack("4I", BLOCK_BYTES, blocks, SLOT_BYTES, count)),
        ):
            _set_option(packet_socket, option, value)
        try:
            self._memory = mmap.mmap(packet_socket.fileno(), blocks * BLOCK_BYTES)
        except OSError:
            self._give_back()
            raise
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.state = RingState(address, count, SLOT_BYTES, 0)

    def close(self) -> None:
        """Unmap the memory, which the kernel keeps with the socket; that receives nothing more."""
        self._memory.close()

    def remove(self) -> None:
        """Close it and give the memory back: the socket receives without a ring."""
        self.close()
        self._give_back()

    def _give_back(self) -> None:
        _set_option(self._socket, PACKET_RX_RING, bytes(16))


def _set_option(packet_socket: socket.socket, option: int, value: bytes) -> None:
    """Set an option, without Python's lock: a ring takes the kernel some 10 ms."""
    if _libc.setsockopt(packet_socket.fileno(), SOL_PACKET, option, value, len(value)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def default_frames(ports: int) -> int:
    """Return the size of each port's ring, in frames, in a switch with this number of ports."""
    return max(FEWEST_FRAMES, min(MOST_FRAMES, SWITCH_FRAMES // max(ports, 1)))


def open_rings(sockets: Mapping[int, socket.socket], frames: int) -> dict[int, ReceiveRing]:
    """Return a ring for each socket; none if `frames` is 0. Raises OSError if one is refused."""
    if not frames or not sockets:
        return {}
    with ThreadPoolExecutor(len(sockets)) as pool:
        waiting = {port: pool.submit(ReceiveRing, sock, frames) for port, sock in sockets.items()}
    rings = {port: made.result() for port, made in waiting.items() if made.exception() is None}
    for made in waiting.values():
        error = made.exception()
        if error is not None:
            for ring in rings.values():
                ring.remove()
            raise error
    return rings
