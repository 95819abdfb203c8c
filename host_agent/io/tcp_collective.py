"""Run schedules between real processes: one TCP connection for each channel."""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from hopsum.collectives.execution import Channel, Execution
from hopsum.protocol.errors import OperationError

BASE_PORT = 0x4854
CHUNK_BYTES = 1 << 18
_GREETING = struct.Struct(">QII")
"""Greeting, the first bytes on a connection: the collective's id, rank and chain."""
MOST_GREETING = 256
"""Maximum number of connections that have not identified themselves."""


PROGRESS_SECONDS = 30.0
"""Time without progress after which a peer is lost."""


class PeerLost(OperationError):
    """A peer was lost or never connected; the message names its rank and address."""


def no_progress(rank: int, seconds: float = PROGRESS_SECONDS) -> PeerLost:
    """Return the error of a rank that has neither sent nor received anything for `seconds`."""
    return PeerLost(f"rank {rank}: no progress for {seconds:g} s")


@dataclass(slots=True)
class _Outlet:
    """A connection of a sending channel, and bytes that the kernel has not accepted yet."""

    sock: socket.socket
    rest: memoryview = field(default_factory=lambda: memoryview(b""))


class TcpCollective:
    """One node among `addresses` (IPv4, by node); connections stay open between schedules.

    `port`: where all of them listen. `server`: a socket that listens there already
    for this node; it is closed when all are connected.
    `whose`: a number that those who are to meet have in common, and others at the same ports have
    not: connections of these are closed. So are those from another address than the peer's.
    `targets`: channels this one sends on; `sources`: those it receives from. Bytes that a schedule
    cannot take in yet stay in the kernel, which slows the sender down.
    Raises PeerLost when a peer is not there within `timeout` seconds, or leaves.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[str],
        *,
        targets: Sequence[Channel],
        sources: Sequence[Channel],
        port: int = BASE_PORT,
        server: socket.socket | None = None,
        timeout: float = PROGRESS_SECONDS,
        tos: int = 0,
        whose: int = 0,
    ) -> None:
        self.rank = rank
        self._whose = whose
        self.sent_bytes = 0
        """Bytes accepted by the kernel, of all schedules."""
        self._addresses = addresses
        self._timeout = timeout
        self._still_since = time.monotonic()
        """Time when bytes last moved, or the timeout was postponed (`postpone`)."""
        self._selector = selectors.DefaultSelector()
        self._outlets: dict[Channel, _Outlet] = {}
        self._inlets: dict[Channel, socket.socket] = {}
        if server is None:
            server = socket.create_server((addresses[rank], port), backlog=len(sources) + 1)
        with server:
            for target in targets:
                self._outlets[target] = _Outlet(self._connect(target, port))
            self._accept(server, set(sources))
        for outlet in self._outlets.values():
            outlet.sock.setblocking(False)
        for sock in self._inlets.values():
            sock.setblocking(False)
        self.mark(tos)

    def mark(self, tos: int) -> None:
        """Set the IP ToS byte of future packets, including acknowledgements and retransmissions.

        SO_PRIORITY is left alone: the queues of links go by the ToS byte (`link_queues`), and
        pfifo_fast's bands do not follow the order of socket priorities (tc-prio(8)).
        """
        for sock in (*(outlet.sock for outlet in self._outlets.values()), *self._inlets.values()):
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)

    def _connect(self, target: Channel, port: int) -> socket.socket:
        address = self._addresses[target.peer]
        deadline = time.monotonic() + self._timeout
        # A peer that has not come up yet refuses: try again, more slowly each time.
        pause = 0.01
        waiter = selectors.DefaultSelector()
        while True:
            try:
                # From the address by which the peer knows this one.
                own = (self._addresses[self.rank], 0)
                sock = socket.create_connection((address, port), self._timeout, own)
            except OSError as error:
                if error.errno not in (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ETIMEDOUT):
                    raise
                if time.monotonic() + pause > deadline:
                    raise PeerLost(
                        f"rank {target.peer} at {address}:{port} accepted no connection within "
                        f"{self._timeout:g} s"
                    ) from error
                waiter.select(pause)
                pause = min(pause * 2, 0.5)
                continue
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(_GREETING.pack(self._whose, self.rank, target.chain))
            return sock

    def _accept(self, server: socket.socket, missing: set[Channel]) -> None:
        peers = {self._addresses[channel.peer] for channel in missing}
        deadline = time.monotonic() + self._timeout
        greeting: dict[socket.socket, tuple[str, bytearray]] = {}
        server.setblocking(False)
        with selectors.DefaultSelector() as selector:
            selector.register(server, selectors.EVENT_READ)
            try:
                while missing:
                    ready = selector.select(deadline - time.monotonic())
                    if not ready:
                        ranks = sorted({channel.peer for channel in missing})
                        raise PeerLost(f"ranks {ranks} did not connect within {self._timeout:g} s")
                    # A closed connection makes room for a new one.
                    for key, _ in sorted(ready, key=lambda each: each[0].fileobj is server):
                        if key.fileobj is server:
                            _welcome(server, peers, greeting, selector)
                            continue
                        sock = key.fileobj
                        assert isinstance(sock, socket.socket)
                        address, read = greeting[sock]
                        if _greets(sock, read):
                            selector.unregister(sock)
                            del greeting[sock]
                            if self._take_in(sock, address, bytes(read), missing):
                                deadline = time.monotonic() + self._timeout
            finally:
                for sock in greeting:
                    sock.close()

    def _take_in(
        self, sock: socket.socket, address: str, greeting: bytes, missing: set[Channel]
    ) -> bool:
        """Keep a connection on which a missing peer has greeted, and close any other.

        Returns whether it is kept.
        """
        source = self._greeted(greeting)
        if source not in missing or self._addresses[source.peer] != address:
            sock.close()
            return False
        missing.discard(source)
        self._inlets[source] = sock
        return True

    def _greeted(self, greeting: bytes) -> Channel | None:
        """Return the greeting peer, None if it is not one of this collective."""
        if len(greeting) != _GREETING.size:
            return None
        whose, rank, chain = _GREETING.unpack(greeting)
        return Channel(rank, chain) if whose == self._whose else None

    def run(self, execution: Execution, progress: Callable[[], None] | None = None) -> None:
        """Execute this rank's part of a schedule; return when all is sent and received."""
        self._check_channels(execution)
        writing: set[Channel] = set()
        reading: set[Channel] = set()
        self.postpone()
        while True:
            for target in self._push_all(execution) ^ writing:
                writing ^= {target}
                self._watch(self._outlets[target].sock, target in writing, False, target)
            for source in execution.sources:
                if (execution.wanted(source) > 0) != (source in reading):
                    reading ^= {source}
                    self._watch(self._inlets[source], source in reading, True, source)
            if execution.done and not writing:
                return
            for key, _ in self._next_events():
                incoming, channel = key.data
                if incoming:
                    self._pull(execution, channel)
            if progress is not None:
                progress()

    def _next_events(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait until bytes can move. Raises PeerLost when none have for too long."""
        while (left := self._still_since + self._timeout - time.monotonic()) > 0:
            if events := self._selector.select(left):
                self.postpone()
                return events
        raise no_progress(self.rank, self._timeout)

    def postpone(self) -> None:
        """Restart the timeout, from any thread, since the network is known to have failed."""
        self._still_since = time.monotonic()

    def _check_channels(self, execution: Execution) -> None:
        strange = {*execution.targets} - self._outlets.keys()
        strange |= {*execution.sources} - self._inlets.keys()
        if strange:
            raise ValueError(
                f"rank {self.rank}: the schedule uses channels {sorted(strange)}, which have no "
                "connection; name all channels when creating the collective"
            )

    def _watch(self, sock: socket.socket, wanted: bool, incoming: bool, channel: Channel) -> None:
        if wanted:
            event = selectors.EVENT_READ if incoming else selectors.EVENT_WRITE
            self._selector.register(sock, event, (incoming, channel))
        else:
            self._selector.unregister(sock)

    def _push_all(self, execution: Execution) -> set[Channel]:
        """Send as much as possible; return the channels whose kernel buffers are full."""
        full: set[Channel] = set()
        moved = True
        # Sending on one channel may unblock receiving on another.
        while moved:
            moved = False
            for target in execution.targets:
                if target not in full:
                    moved |= self._push(execution, target, full)
        return full

    def _push(self, execution: Execution, target: Channel, full: set[Channel]) -> bool:
        """Send as much as possible on one channel; return whether that was anything."""
        outlet = self._outlets[target]
        moved = False
        while True:
            if not outlet.rest:
                data = execution.outgoing(target, CHUNK_BYTES)
                if not data:
                    return moved
                outlet.rest = memoryview(data)
                moved = True
            try:
                sent = outlet.sock.send(outlet.rest)
            except BlockingIOError:
                full.add(target)
                return moved
            except OSError as error:
                raise self._lost(target) from error
            self.sent_bytes += sent
            outlet.rest = outlet.rest[sent:]

    def _pull(self, execution: Execution, source: Channel) -> None:
        wanted = min(CHUNK_BYTES, execution.wanted(source))
        if not wanted:
            return
        try:
            data = self._inlets[source].recv(wanted)
        except BlockingIOError:
            return
        except OSError as error:
            raise self._lost(source) from error
        if not data:
            raise self._lost(source)
        execution.incoming(source, data)

    def _lost(self, channel: Channel) -> PeerLost:
        peer = channel.peer
        return PeerLost(f"rank {peer} at {self._addresses[peer]} closed its connection")

    @property
    def retransmissions(self) -> int:
        """Segments that the kernel has retransmitted (tcpi_total_retrans of tcp(7)'s TCP_INFO)."""
        total = 0
        for outlet in self._outlets.values():
            info = outlet.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
            total += int.from_bytes(info[100:104], sys.byteorder)
        return total

    def abort(self) -> None:
        """Abort: a `run` in another thread raises PeerLost soon; nothing more can be exchanged."""
        for sock in (*(outlet.sock for outlet in self._outlets.values()), *self._inlets.values()):
            # The peer may have ended the connection already.
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close all connections."""
        self._selector.close()
        for outlet in self._outlets.values():
            outlet.sock.close()
        for sock in self._inlets.values():
            sock.close()


def _welcome(
    server: socket.socket,
    peers: Collection[str],
    greeting: dict[socket.socket, tuple[str, bytearray]],
    selector: selectors.BaseSelector,
) -> None:
    """Accept a connection from a peer's address, to read its greeting."""
    try:
        sock, (address, _) = server.accept()
    except OSError:
        # It is gone again, or there is no descriptor for it.
        return
    if address not in peers or len(greeting) >= MOST_GREETING:
        sock.close()
        return
    sock.setblocking(False)
    greeting[sock] = address, bytearray()
    selector.register(sock, selectors.EVENT_READ)


def _greets(sock: socket.socket, read: bytearray) -> bool:
    """Continue to read a greeting; return whether it is complete or has ended."""
    try:
        data = sock.recv(_GREETING.size - len(read))
    except BlockingIOError:
        return False
    except OSError:
        return True
    read += data
    return not data or len(read) == _GREETING.size
