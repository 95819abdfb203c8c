"""Packet loop between interfaces, an engine and the P4Runtime service."""

from __future__ import annotations

import errno
import fcntl
import select
import socket
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from os import close, eventfd, eventfd_read, eventfd_write

from p4switch.device.offloads import completed
from p4switch.targets.v1model.engine import ControlError, Digest, Engine, EngineStatistics, Packet

FrameSink = Callable[[Sequence[bytes]], None]
DigestSink = Callable[[Sequence[Digest]], None]

BATCH = 64
"""Maximum frames taken from a port in one turn of the Python loop."""
LARGEST_FRAME = 65_536
PRIORITIES = 8

SOL_PACKET = 263
PACKET_AUXDATA = 8
AUXDATA = struct.Struct("=I12xHH")
"""Status, VLAN tag and its EtherType in `struct tpacket_auxdata` (linux/if_packet.h)."""
AUXDATA_ROOM = socket.CMSG_SPACE(20)
TP_STATUS_CSUMNOTREADY = 0x8
TP_STATUS_VLAN_VALID = 0x10
TP_STATUS_VLAN_TPID_VALID = 0x40
ETHERTYPE_VLAN = 0x8100
SIOCGIFMTU = 0x8921
SIOCOUTQ = 0x5411
KERNEL_FRAME = 2304
"""Bytes that the kernel accounts for a frame of 1,500 (`runtime/loop_state.h`)."""
LOST = frozenset(
    {
        errno.EAGAIN,
        errno.ENOBUFS,
        errno.ENETDOWN,
        errno.EMSGSIZE,
        errno.ENXIO,
        errno.ENODEV,
    }
)
"""Errors of sending that cost a frame and no more."""


class Plane(ABC):
    """Runs packets through whichever engine is in use; `ports` are bound packet sockets.

    Frames that leave at the CPU port go to `on_frames`, digests to `on_digests`, in the
    plane's thread.
    """

    def __init__(
        self,
        ports: Mapping[int, socket.socket],
        cpu_port: int | None,
        on_frames: FrameSink,
        on_digests: DigestSink,
    ) -> None:
        self._ports = dict(ports)
        self._cpu_port = cpu_port
        self._on_frames = on_frames
        self._on_digests = on_digests

    @abstractmethod
    def now_us(self) -> int:
        """Return the data plane's clock in microseconds."""

    @abstractmethod
    def use(self, engine: Engine, handover: Callable[[], None] | None = None) -> None:
        """Run packets through another engine from now on; the ports stay open.

        Packets that the previous engine has begun are dropped. With a `handover` they are finished,
        and it is called then, while frames wait at the ports.
        """

    @abstractmethod
    def interrupt(self) -> None:
        """Drop all packets from now on, including those in flight, for shutdown; do not wait."""

    @abstractmethod
    def statistics(self) -> EngineStatistics:
        """Return the statistics of the current engine."""

    @abstractmethod
    def inject(self, frame: bytes) -> None:
        """Receive a frame at the CPU port; FAILED_PRECONDITION if there is none."""

    @abstractmethod
    def close(self) -> None:
        """Stop. The caller's sockets stay open."""


class PythonPlane(Plane):
    """A plane for any engine: a loop over the sockets in Python."""

    def __init__(
        self,
        ports: Mapping[int, socket.socket],
        cpu_port: int | None,
        on_frames: FrameSink,
        on_digests: DigestSink,
    ) -> None:
        super().__init__(ports, cpu_port, on_frames, on_digests)
        self._start_ns = time.monotonic_ns()
        self._engine: Engine | None = None
        self._injected: deque[tuple[Engine, bytes]] = deque()  # With the engine they are for.
        self._waiting: set[int] = set()
        """Ports whose interfaces may hold frames back."""
        self._wake = eventfd(0)
        self._closed = False
        self._processing = threading.Lock()
        self._thread = threading.Thread(target=self._loop, name="packet-loop", daemon=True)
        self._thread.start()

    def now_us(self) -> int:
        """See `Plane`."""
        return (time.monotonic_ns() - self._start_ns) // 1000

    def use(self, engine: Engine, handover: Callable[[], None] | None = None) -> None:
        """See `Plane`."""
        previous = self._engine
        if handover is not None:
            with self._processing:
                handover()
                self._engine = engine
                waiting = [self._injected.popleft() for _ in range(len(self._injected))]
                self._injected.extend((engine, frame) for _, frame in waiting)
        else:
            self._engine = engine
            if previous is not None and previous is not engine:
                previous.interrupt()
        eventfd_write(self._wake, 1)

    def interrupt(self) -> None:
        """See `Plane`."""
        if self._engine is not None:
            self._engine.interrupt()

    def statistics(self) -> EngineStatistics:
        """See `Plane`."""
        return self._engine.statistics() if self._engine is not None else EngineStatistics()

    def inject(self, frame: bytes) -> None:
        """See `Plane`."""
        engine = self._engine
        if engine is None:
            raise ControlError("FAILED_PRECONDITION", "no program runs")
        if self._cpu_port is None:
            raise ControlError("FAILED_PRECONDITION", "the switch has no CPU port")
        self._injected.append((engine, frame))
        eventfd_write(self._wake, 1)

    def close(self) -> None:
        """See `Plane`."""
        if self._closed:
            return
        self._closed = True
        self.interrupt()
        eventfd_write(self._wake, 1)
        self._thread.join()
        # Close it last: waking a loop that has just ended would write to another file.
        close(self._wake)

    def _loop(self) -> None:
        poll = select.poll()
        by_descriptor = {s.fileno(): (number, s) for number, s in self._ports.items()}
        for packet_socket in self._ports.values():
            packet_socket.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        for descriptor in (self._wake, *by_descriptor):
            poll.register(descriptor, select.POLLIN)
        while not self._closed:
            batch: list[Packet] = []
            for descriptor, _ in poll.poll():
                if descriptor == self._wake:
                    eventfd_read(self._wake)
                else:
                    number, packet_socket = by_descriptor[descriptor]
                    batch += ((number, frame) for frame in _receive(packet_socket))
            with self._processing:
                injected = [self._injected.popleft() for _ in range(len(self._injected))]
                # Read after them: a caller that injects for an engine has put it in use before.
                engine = self._engine
                for meant, frame in injected:
                    if meant is engine and self._cpu_port is not None:
                        batch.append((self._cpu_port, frame))
                to_cpu, digests = self._process(engine, batch) if engine and batch else ([], [])
            if to_cpu:
                self._on_frames(to_cpu)
            if digests:
                self._on_digests(digests)

    def _process(self, engine: Engine, batch: Sequence[Packet]) -> tuple[list[bytes], list[Digest]]:
        """Process a batch; return what is for the CPU."""
        to_cpu: list[bytes] = []
        self._look_at_interfaces(engine)
        for number, frame in engine.process(batch, self.now_us()):
            if number == self._cpu_port:
                to_cpu.append(frame)
            elif number in self._ports:
                _send(self._ports[number], frame)
                self._waiting.add(number)
        return to_cpu, engine.take_digests()

    def _look_at_interfaces(self, engine: Engine) -> None:
        """Tell the engine how many frames the interfaces still hold back, of whatever priority."""
        for port in list(self._waiting):
            frames = _held(self._ports[port])
            engine.set_waiting(port, [frames, *[0] * (PRIORITIES - 1)])
            if not frames:
                self._waiting.remove(port)


def _held(packet_socket: socket.socket) -> int:
    """Return how many frames of a socket wait in its interface."""
    try:
        (held,) = struct.unpack("i", fcntl.ioctl(packet_socket, SIOCOUTQ, bytes(4)))
    except OSError:
        return 0
    return -(-int(held) // KERNEL_FRAME)


def _receive(packet_socket: socket.socket) -> list[bytes]:
    """Return the frames that wait at a socket; none if the interface is down."""
    frames: list[bytes] = []
    with suppress(BlockingIOError):
        while len(frames) < BATCH:
            try:
                frame, ancillary, _, _ = packet_socket.recvmsg(LARGEST_FRAME, AUXDATA_ROOM)
                frame = frame_with_tag(frame, ancillary)
                if checksum_is_partial(ancillary):
                    frames += completed(frame, _mtu(packet_socket))
                else:
                    frames.append(frame)
            except OSError as error:
                if error.errno != errno.ENETDOWN:
                    raise
    return frames


def frame_with_tag(frame: bytes, ancillary: Sequence[tuple[int, int, bytes]]) -> bytes:
    """Return a frame with the VLAN tag that the kernel removed, if it had one.

    `ancillary`: as `recvmsg` gives it for a socket with PACKET_AUXDATA.
    """
    status, tag, protocol = _auxiliary(ancillary)
    if not status & TP_STATUS_VLAN_VALID:
        return frame
    if not status & TP_STATUS_VLAN_TPID_VALID:
        protocol = ETHERTYPE_VLAN
    return frame[:12] + struct.pack(">HH", protocol, tag) + frame[12:]


def checksum_is_partial(ancillary: Sequence[tuple[int, int, bytes]]) -> bool:
    """Return whether the sender left a frame's checksum to a network card; see `completed`."""
    return bool(_auxiliary(ancillary)[0] & TP_STATUS_CSUMNOTREADY)


def _auxiliary(ancillary: Sequence[tuple[int, int, bytes]]) -> tuple[int, int, int]:
    """Return the status of a frame, its VLAN tag and the tag's EtherType; zeros if unknown."""
    for level, kind, data in ancillary:
        if (level, kind) == (SOL_PACKET, PACKET_AUXDATA) and len(data) >= AUXDATA.size:
            status, tag, protocol = AUXDATA.unpack_from(data)
            return status, tag, protocol
    return 0, 0, 0


def _mtu(packet_socket: socket.socket) -> int:
    """Return the MTU of a socket's interface in bytes."""
    request = struct.pack("16sI20x", packet_socket.getsockname()[0].encode(), 0)
    (mtu,) = struct.unpack_from("16xI", fcntl.ioctl(packet_socket, SIOCGIFMTU, request))
    return int(mtu)


def _send(packet_socket: socket.socket, frame: bytes) -> None:
    """Send a frame, or drop it if the port's queue is full or the interface is down or gone."""
    try:
        packet_socket.send(frame)
    except OSError as error:
        if error.errno not in LOST:
            raise
