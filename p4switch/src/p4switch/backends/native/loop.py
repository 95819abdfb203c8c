"""The packet loop of a native engine: between packet sockets, in threads without Python."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import socket
import threading
from dataclasses import dataclass

from p4switch.backends.native.engine import NativeEngine, log, packets_of
from p4switch.backends.native.library import BatchResult
from p4switch.packet_io.receive_ring import ReceiveRing
from p4switch.packet_io.sockets import set_buffer
from p4switch.targets.v1model.engine import ControlError

SOL_PACKET = 263
PACKET_AUXDATA = 8


@dataclass(frozen=True, slots=True)
class PortCounts:
    """Traffic of a port.

    rx_errors: frames that the kernel cut, or errors of the socket. tx_errors: frames that the
    interface refused. Of the CPU port, rx are packet-outs and tx packet-ins.
    """

    rx_packets: int
    rx_bytes: int
    tx_packets: int
    tx_bytes: int
    rx_errors: int
    tx_errors: int


@dataclass(frozen=True, slots=True)
class LostFrames:
    """Frames for ports without a socket, and frames for the CPU that found its ring full."""

    unconnected: int
    cpu: int


class PacketLoop:
    """Runs a native engine between packet sockets. Close it before the engine.

    While it runs, all calls of the engine except `process` are allowed.
    """

    def __init__(self, engine: NativeEngine) -> None:
        self.engine = engine
        self.cpu_port = engine.options.cpu_port
        self._library = engine.library
        self._loop = self._library.loop_create(engine.switch, engine.options.packet_threads)
        self._taken = self._library.output_create()
        if not self._loop or not self._taken:
            raise MemoryError("no memory or descriptors for the packet loop")
        self._sockets: dict[int, tuple[socket.socket, ReceiveRing | None]] = {}
        self._thread: threading.Thread | None = None
        self._failure = 0
        engine.clock = self.now_us

    def add_port(
        self, port: int, packet_socket: socket.socket, ring: ReceiveRing | None = None
    ) -> None:
        """Connect a port to a bound AF_PACKET socket, which may receive through a ring.

        Both stay the caller's to close.

        ControlError if the port is not 0..510, is the CPU's or has a socket already.
        """
        if not 0 <= port < 511 or port == self.cpu_port:
            raise ControlError("INVALID_ARGUMENT", f"port {port} cannot have a socket")
        if port in self._sockets:
            raise ControlError("ALREADY_EXISTS", f"port {port} has a socket already")
        packet_socket.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        half = self.engine.options.send_buffer // 2
        set_buffer(packet_socket, socket.SO_SNDBUF, half)
        state = None if ring is None else ctypes.byref(ring.state)
        failed = self._library.loop_add_port(self._loop, port, packet_socket.fileno(), state)
        if failed:
            raise OSError(failed, f"port {port}: {os.strerror(failed)}")
        self._sockets[port] = packet_socket, ring

    def ports(self) -> list[int]:
        """Return connected ports."""
        return sorted(self._sockets)

    def start(self) -> None:
        """Run in threads of their own.

        Messages of `log_msg` are kept for the engine's `log_messages` if they are logged.
        """
        self._library.log(self.engine.switch, log.isEnabledFor(logging.INFO))
        self._thread = threading.Thread(target=self._run, name="packet loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._failure = self._library.loop_run(self._loop)

    def stop(self, *, finish: bool = False) -> None:
        """Stop the threads; OSError if they had already ended by themselves.

        Packets in progress are dropped unless they are to be finished.
        """
        if self._thread is None:
            return
        self._library.loop_stop(self._loop, finish)
        self._thread.join()
        self._thread = None
        if self._failure:
            raise OSError(self._failure, f"packet loop: {os.strerror(self._failure)}")

    def close(self) -> None:
        """Stop and free everything; packets in queues are lost."""
        self.stop()
        loop, self._loop = self._loop, None
        if loop:
            self.engine.clock = None
            self._library.loop_destroy(loop)
            self._library.output_destroy(self._taken)

    def inject(self, frame: bytes) -> None:
        """Receive a frame at the CPU port."""
        if self.cpu_port is None:
            raise ControlError("FAILED_PRECONDITION", "the switch has no CPU port")
        if self._library.loop_inject(self._loop, frame, len(frame)):
            raise OSError(errno.ENOMEM, "no memory for a packet-out")

    def cpu_event(self) -> int:
        """Return a descriptor that is readable when frames for the CPU wait."""
        return int(self._library.loop_cpu_event(self._loop))

    def take_cpu_frames(self) -> list[bytes]:
        """Return frames that left by the CPU port since the last call. For one thread at a time."""
        result = BatchResult()
        self._library.loop_take_cpu(self._loop, self._taken, ctypes.byref(result))
        return [data for _, data in packets_of(result)]

    def now_us(self) -> int:
        """Return the loop's clock in microseconds, which timestamps packets and entries."""
        return int(self._library.loop_clock(self._loop))

    def counts(self, port: int) -> PortCounts:
        """Return counts of a port, the CPU port included."""
        values = (ctypes.c_uint64 * 6)()
        self._library.loop_counts(self._loop, port, values)
        return PortCounts(*values)

    def lost(self) -> LostFrames:
        """Return the numbers of frames that no port took."""
        values = (ctypes.c_uint64 * 2)()
        self._library.loop_lost(self._loop, values)
        return LostFrames(*values)
