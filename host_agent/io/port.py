"""A network interface as a source and sink of whole frames, in batches."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hopsum.host_agent.c_structures import c_fields
from hopsum.host_agent.codec import JOB_START, TREE_AT, group_by_length
from hopsum.host_agent.datapath.library import ROOM, STRIDE, Flow, Output, OutputRows
from p4switch.packet_io.compile import FLAGS, NoCompilerError, compile_shared
from p4switch.packet_io.receive_ring import ReceiveRing
from p4switch.packet_io.sockets import InterfaceError, attach_filter, open_packet_socket

LOGGER = logging.getLogger("hopsum-agent")

ETH_P_IP = 0x0800
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


class RunOutcome(NamedTuple):
    """Results of `run`: frames that its caller must handle."""

    received: list[Frames]
    """Frames that no flow has taken, as `receive` returns them."""
    unsent: list[Frames]
    """Frames of flows that a full queue rejected, in order."""
    others: bool
    """Whether the other descriptor may be readable."""


@runtime_checkable
class LinksPort(FramePort, Protocol):
    """Interface of a port with one interface for each link of a host."""

    interfaces: Mapping[int, str]
    """By the host's port; empty if there is but one interface."""

    def use_links(self, job: int, ports: Mapping[int, int]) -> None:
        """Send a job's frames of each tree from these ports, which are keys of `interfaces`.

        Frames of others leave by the first interface.
        """


@runtime_checkable
class FlowPort(FramePort, Protocol):
    """Interface of a port that drives flows by itself.

    `native`: whether there is the C compiler that this takes; else there is no `run`.
    """

    native: bool

    def run(self, flows: Sequence[int], until: float, others: int, deferrable: float) -> RunOutcome:
        """Move frames of flows (flow.h, by address) until something else is to be done.

        In a steady stream frames are received together; of those of no flow, `deferrable` may wait
        for one another. It ends at `until` (time.monotonic, seconds), when the descriptor `others`
        is readable but for calls that flows take, when a flow has finished something, at a frame of
        no flow, or when a queue is full.
        """


def tree_key(frame: bytes) -> int:
    """Return job << 8 | tree of a frame."""
    return int.from_bytes(frame[JOB_START : TREE_AT + 1], "big")


def loses(error: OSError, several: bool) -> bool:
    """Return whether an error says that the interface of a link, of `several` or alone, is away.

    What is sent then is lost, as on a link without a carrier. An interface that is removed takes a
    port that has no other with it.
    """
    return error.errno == errno.ENETDOWN or (several and error.errno == errno.ENXIO)


VLAN_TAG_PRESENT = 0xFFFFF000 + 48
"""SKF_AD_OFF + SKF_AD_VLAN_TAG_PRESENT: a frame's outer tag is taken off before filters run."""


INTERFACE_INDEX = 0xFFFFF000 + 8
"""SKF_AD_OFF + SKF_AD_IFINDEX."""


def udp_filter(port: int, interfaces: Sequence[int] = ()) -> bytes:
    """Return a classic BPF program that accepts untagged IPv4 UDP frames to a port.

    They have no IPv4 options, say Don't Fragment and are no fragments. `interfaces`: accept those
    from interfaces of these indices only; empty: from any.
    """
    code = [(0x20, 0, 0, INTERFACE_INDEX)] if interfaces else []
    for left, index in zip(range(len(interfaces), 0, -1), interfaces, strict=True):
        code.append((0x15, left, 0, index))  # over those left, and the rejection after them
    if interfaces:
        code.append((0x06, 0, 0, 0))
    code += [
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


class _Links(ctypes.Structure):
    """`struct links` of mmsg.c."""

    _fields_ = c_fields("io/mmsg.c", "links")


class _Run(ctypes.Structure):
    """`struct run` of mmsg.c."""

    _fields_ = c_fields("io/mmsg.c", "run", {"output": OutputRows})


RING_FRAMES = 2048
"""Frames that a port's receive ring holds."""


_OTHERS = 1
"""packet_run has returned since the other descriptor is readable, or at a signal."""


@cache
def _native() -> ctypes.CDLL | None:
    """Return the batched system calls, or None without a compiler."""
    try:
        flow = resources.files("hopsum.host_agent.datapath").joinpath("flow.h").read_text()
        text = resources.files("hopsum.host_agent.io").joinpath("mmsg.c").read_text()
        flags = (*FLAGS, "-D_GNU_SOURCE", f"-DKEY={JOB_START}")
        library = ctypes.CDLL(str(compile_shared("mmsg", flow + text, flags)))
    except NoCompilerError:
        return None
    pointer = ctypes.c_void_p
    number = ctypes.c_uint32
    library.packet_send.argtypes = (ctypes.c_int, pointer, pointer, number, number, number)
    library.packet_receive.argtypes = (ctypes.c_int, pointer, number, number, pointer)
    library.packet_take.argtypes = (pointer, pointer, number, number, pointer)
    library.packet_run.argtypes = (pointer,)
    library.packet_moderate.argtypes = (pointer, ctypes.c_double)
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


def _index(interface: str) -> int:
    """Return the index of an interface. Raises InterfaceError."""
    try:
        return socket.if_nametoindex(interface)
    except OSError as error:
        raise InterfaceError(
            f"interface {interface!r}: {error.strerror}; `ip link` lists the interfaces"
        ) from None


class PacketPort:
    """A FramePort on an interface, over AF_PACKET.

    While an interface is down what is sent is lost, as on a link without a carrier (`loses`).
    `interface`: of a host with several links those by port, the first for frames of no tree; then
    `udp_port` is needed. `udp_port`: receive only what `udp_filter` keeps for that port, and keep
    the kernel from answering (`udp_sink`). Raises InterfaceError.
    """

    def __init__(self, interface: str | Mapping[int, str], *, udp_port: int | None = None) -> None:
        self._library = _native()
        self.native = self._library is not None
        self.interfaces = {} if isinstance(interface, str) else dict(interface)
        self._indices = {port: _index(name) for port, name in self.interfaces.items()}
        self._trees: dict[int, int] = {}
        """Index of the interface by job << 8 | tree."""
        self._set_links()
        program = None if udp_port is None else udp_filter(udp_port, (*self._indices.values(),))
        # Bound to none, the socket receives from all that the filter names.
        self._socket = open_packet_socket(
            interface if isinstance(interface, str) else None, program
        )
        self._ring = self._open_ring()
        self._make_room(256)
        names = [*self.interfaces.values()] or [str(interface)]
        self._sinks = [] if udp_port is None else [udp_sink(name, udp_port) for name in names]

    def _open_ring(self) -> ReceiveRing | None:
        """Return the socket's receive ring; None if the kernel gives it none."""
        if self._library is None:
            return None
        try:
            return ReceiveRing(self._socket, RING_FRAMES, longer=False)
        except OSError as error:
            LOGGER.info("frames are received by system calls, not through a ring: %s", error)
            return None

    def use_links(self, job: int, ports: Mapping[int, int]) -> None:
        """Send frames of trees from other interfaces than the first, see `LinksPort`."""
        self._trees = {key: at for key, at in self._trees.items() if key >> 8 != job}
        self._trees |= {job << 8 | tree: self._indices[port] for tree, port in ports.items()}
        self._set_links()

    def _set_links(self) -> None:
        """Make the table of interfaces that mmsg.c reads."""
        home = next(iter(self._indices.values()), 0)
        other = {key: index for key, index in self._trees.items() if index != home}
        self._tables = (
            np.array([*other], dtype=np.int64),
            np.array([*other.values()], dtype=np.int64),
        )
        keys, indices = (table.ctypes.data for table in self._tables)
        self._links = _Links(home, len(other), keys, indices)
        self._run: _Run | None = None

    def _make_room(self, limit: int) -> None:
        """Allocate rows for received frames."""
        self._rows = np.empty((limit, STRIDE), dtype=np.uint8)
        self._lengths = np.empty(limit, dtype=np.uint32)
        self._addresses = self._rows.ctypes.data, self._lengths.ctypes.data
        self._run = None

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
            self._socket.fileno(),
            ctypes.addressof(self._links),
            frames.ctypes.data,
            *(n, length, frames.strides[0]),
        )
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
            n = self._receive_native(self._library, limit)
        return self._taken(0, n)

    def _receive_native(self, library: ctypes.CDLL, limit: int) -> int:
        rows, lengths_at = self._addresses
        if self._ring is not None:
            ring = ctypes.addressof(self._ring.state)
            taken: int = library.packet_take(ring, rows, limit, STRIDE, lengths_at)
            error = 0 if taken else self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        else:
            taken = library.packet_receive(self._socket.fileno(), rows, limit, STRIDE, lengths_at)
            error = max(0, -taken)
        if error not in (0, errno.ENETDOWN):
            raise OSError(error, f"receiving frames: {os.strerror(error)}")
        return max(0, taken)

    def _taken(self, start: int, stop: int) -> list[Frames]:
        """Return copies of received frames."""
        lengths = np.minimum(self._lengths[start:stop], STRIDE)
        return [group.copy() for group in group_by_length(self._rows[start:stop], lengths)]

    def run(self, flows: Sequence[int], until: float, others: int, deferrable: float) -> RunOutcome:
        """Move frames of flows, see `FlowPort.run`; the caller owns the arrays."""
        assert self._library is not None
        need = max([ROOM, *(Flow.from_address(each).most_output for each in flows)])
        if self._run is None or self._output.room < need:
            self._run = self._make_run(need)
        run = self._run
        addresses = (ctypes.c_void_p * len(flows))(*flows)
        run.flows, run.count = ctypes.addressof(addresses), len(flows)
        run.until, run.others, run.deferrable = until, others, deferrable
        why: int = self._library.packet_run(ctypes.addressof(run))
        if why < 0:
            raise OSError(-why, f"moving frames: {os.strerror(-why)}")
        return RunOutcome(
            self._taken(run.processed, run.received),
            self._output.copies(run.sent, run.out.made),
            why == _OTHERS,
        )

    def _make_run(self, room: int) -> _Run:
        self._output = Output(room)
        rows, lengths_at = self._addresses
        return _Run(
            fd=self._socket.fileno(),
            links=ctypes.addressof(self._links),
            ring=ctypes.addressof(self._ring.state) if self._ring is not None else None,
            rows=rows,
            lengths=lengths_at,
            limit=len(self._rows),
            stride=STRIDE,
            out=self._output.rows,
        )

    def _send_plain(self, frames: Frames) -> int:
        for number, frame in enumerate(frames):
            try:
                self._send_one(frame.tobytes())
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.ENOBUFS):
                    return number
                if not loses(error, bool(self.interfaces)):
                    raise
        return len(frames)

    def _send_one(self, frame: bytes) -> None:
        if not self.interfaces:
            self._socket.send(frame)
            return
        index = self._trees.get(tree_key(frame), self._links.home)
        self._socket.sendto(frame, (socket.if_indextoname(index), ETH_P_IP))

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
        if self._ring is not None:
            self._ring.close()
        self._socket.close()
        for sink in self._sinks:
            sink.close()
