"""Run schedules between real processes: one TCP connection from each rank to each it sends to."""

from __future__ import annotations

import errno
import selectors
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from collectives.execution import Execution

BASE_PORT = 0x4854
CHUNK_BYTES = 1 << 18


class PeerLost(ConnectionError):
    """A peer vanished or never came; the message names its rank and address."""


@dataclass(slots=True)
class _Outlet:
    """A connection to a rank we send to, and bytes the kernel has not taken yet."""

    sock: socket.socket
    rest: memoryview = field(default_factory=lambda: memoryview(b""))


class TcpCollective:
    """One rank among `addresses` (IPv4, by rank); connections stay open between schedules.

    `targets`: ranks this one sends to; `sources`: ranks that send to it.
    Raises PeerLost when a peer is not there within `timeout` seconds, or leaves.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[str],
        *,
        targets: Sequence[int],
        sources: Sequence[int],
        port: int = BASE_PORT,
        timeout: float = 30.0,
    ) -> None:
        self.rank = rank
        self._addresses = addresses
        self._timeout = timeout
        self._selector = selectors.DefaultSelector()
        self._outlets: dict[int, _Outlet] = {}
        self._inlets: dict[int, socket.socket] = {}
        self._early: dict[int, bytearray] = {}
        with socket.create_server((addresses[rank], port), backlog=len(addresses) + 1) as server:
            for target in targets:
                self._outlets[target] = _Outlet(self._connect(target, port))
            self._accept(server, set(sources))
        for outlet in self._outlets.values():
            outlet.sock.setblocking(False)
        for source, sock in self._inlets.items():
            sock.setblocking(False)
            self._selector.register(sock, selectors.EVENT_READ, source)

    def _connect(self, target: int, port: int) -> socket.socket:
        deadline = time.monotonic() + self._timeout
        # A peer that has not come up yet refuses: try again, more slowly each time.
        pause = 0.01
        waiter = selectors.DefaultSelector()
        while True:
            try:
                sock = socket.create_connection((self._addresses[target], port), self._timeout)
            except OSError as error:
                if error.errno not in (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ETIMEDOUT):
                    raise
                if time.monotonic() + pause > deadline:
                    raise PeerLost(
                        f"rank {target} at {self._addresses[target]}:{port} did not come up "
                        f"within {self._timeout:g} s"
                    ) from error
                waiter.select(pause)
                pause = min(pause * 2, 0.5)
                continue
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(self.rank.to_bytes(4, "big"))
            return sock

    def _accept(self, server: socket.socket, missing: set[int]) -> None:
        server.settimeout(self._timeout)
        while missing:
            try:
                sock, _ = server.accept()
                sock.settimeout(self._timeout)
                greeting = sock.recv(4, socket.MSG_WAITALL)
            except TimeoutError as error:
                raise PeerLost(
                    f"ranks {sorted(missing)} did not connect within {self._timeout:g} s"
                ) from error
            source = int.from_bytes(greeting, "big")
            if len(greeting) < 4 or source not in missing:
                sock.close()
                continue
            missing.discard(source)
            self._inlets[source] = sock

    def run(self, execution: Execution, progress: Callable[[], None] | None = None) -> None:
        """Do this rank's part of a schedule; returns when all is sent and received."""
        for source, early in list(self._early.items()):
            del self._early[source]
            self._take(execution, source, bytes(early))
        writing: set[int] = set()
        while True:
            for target in self._outlets:
                if self._push(execution, target) != (target in writing):
                    writing ^= {target}
                    outlet = self._outlets[target]
                    if target in writing:
                        self._selector.register(outlet.sock, selectors.EVENT_WRITE, None)
                    else:
                        self._selector.unregister(outlet.sock)
            if execution.done and not writing:
                return
            events = self._selector.select(self._timeout)
            if not events:
                raise PeerLost(f"rank {self.rank}: nothing moved for {self._timeout:g} s")
            for key, _ in events:
                if key.data is not None:
                    self._pull(execution, key.data)
            if progress is not None:
                progress()

    def _push(self, execution: Execution, target: int) -> bool:
        """Send what can be sent; True while the kernel's buffer is full."""
        outlet = self._outlets[target]
        while True:
            if not outlet.rest:
                data = (
                    execution.outgoing(target, CHUNK_BYTES) if target in execution.targets else b""
                )
                if not data:
                    return False
                outlet.rest = memoryview(data)
            try:
                sent = outlet.sock.send(outlet.rest)
            except BlockingIOError:
                return True
            except OSError as error:
                raise self._lost(target) from error
            outlet.rest = outlet.rest[sent:]

    def _pull(self, execution: Execution, source: int) -> None:
        try:
            data = self._inlets[source].recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise self._lost(source) from error
        if not data:
            if not execution.done:
                raise self._lost(source)
            self._selector.unregister(self._inlets[source])
            return
        self._take(execution, source, data)

    def _take(self, execution: Execution, source: int, data: bytes) -> None:
        # A peer may be a schedule ahead: what belongs to the next one waits for it.
        if source in execution.sources:
            data = execution.incoming(source, data)
        if data:
            self._early.setdefault(source, bytearray()).extend(data)

    def _lost(self, rank: int) -> PeerLost:
        return PeerLost(f"rank {rank} at {self._addresses[rank]} closed its connection")

    @property
    def retransmissions(self) -> int:
        """Segments that the kernel has sent again (tcpi_total_retrans of tcp(7)'s TCP_INFO)."""
        total = 0
        for outlet in self._outlets.values():
            info = outlet.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
            total += int.from_bytes(info[100:104], sys.byteorder)
        return total

    def close(self) -> None:
        """Close all connections."""
        self._selector.close()
        for outlet in self._outlets.values():
            outlet.sock.close()
        for sock in self._inlets.values():
            sock.close()
