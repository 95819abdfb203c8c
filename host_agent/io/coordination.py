"""A process of the coordination ([004][]) with its connections: TCP along the tree, in a thread.

Children connect to their parent and, where the tree has a ring, a process to its successor; all
that is said between two processes goes over the connection of the one that opens.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from hopsum.coordination.encoding import FrameError, FrameReader, VersionError, framed, preface
from hopsum.coordination.events import CoordinationOptions, Event, Rejection, Stall, Start
from hopsum.coordination.failure import CoordinationError, OperatorError
from hopsum.coordination.link import LinkOptions
from hopsum.coordination.messages import Frame, Refusal
from hopsum.coordination.operators import Operator
from hopsum.coordination.participant import Participant
from hopsum.coordination.reduction import ExternalAnd
from hopsum.coordination.tree import CoordinationTree
from hopsum.host_agent.io.wakeup import Wakeup

LOGGER = logging.getLogger("hopsum-agent")

Address = tuple[str, int]
"""IPv4 address and TCP port."""

OPTIONS = CoordinationOptions(
    LinkOptions(heartbeat=2.0, silence=15.0, join=300.0, resend=5.0), cycle=0.01
)
"""Timeout in seconds; on a busy machine a process may not be scheduled for seconds.

TCP reports the end of a process at once; timeouts are for hosts and links that die.
"""
READ_BYTES = 1 << 16
MOST_UNHEARD = 256
"""Maximum number of connections that have not identified themselves."""
RETRY_SECONDS = 0.05
FAREWELL_SECONDS = 2.0
"""Seconds for a process's last messages, such as which process is lost."""


@dataclass(eq=False, slots=True)
class _Connection:
    """One end of a TCP connection.

    `peer`: the rank at the other end, -1 until known. `incarnation`: of an incoming one.
    `address`: where it comes from, an incoming one.
    """

    sock: socket.socket
    peer: int = -1
    incarnation: int = 0
    opening: bool = False
    address: str = ""
    stream: FrameReader = field(default_factory=FrameReader)
    out: bytearray = field(default_factory=bytearray)


class Coordinator:
    """Process `rank` of a tree. `addresses`: where each process listens, by rank.

    `reduction`: of the bit vectors, elsewhere than on the tree or its ring (`combined`). `wake`:
    called, in a thread, when `events` has something, or raises. All methods may be called from any
    thread, and raise what ended the coordination, such as ProcessLost with the name of a dead
    process. OSError if this rank's address is taken.
    """

    def __init__(
        self,
        tree: CoordinationTree,
        rank: int,
        addresses: Sequence[Address],
        options: CoordinationOptions = OPTIONS,
        reduction: ExternalAnd | None = None,
        wake: Callable[[], None] | None = None,
    ) -> None:
        self._tree = tree
        self._rank = rank
        self._addresses = addresses
        self._server = socket.create_server(addresses[rank], backlog=len(tree.names))
        self._server.setblocking(False)
        self._lock = threading.RLock()
        self._participant = Participant(
            tree, rank, 1 + secrets.randbits(62), time.monotonic(), options, reduction
        )
        self._reduction = reduction
        self._events: list[Event] = []
        self._closing = False
        self._ended = False
        self._wakeup = Wakeup()
        self._wake = wake
        ring = tree.ring
        after = [ring[(ring.index(rank) + 1) % len(ring)]] if ring else []
        self._opens = {peer for peer in (tree.parents[rank], *after) if peer not in (-1, rank)}
        self._opened: dict[int, _Connection] = {}
        self._retry_at: dict[int, float] = dict.fromkeys(self._opens, 0.0)
        self._early: dict[int, bytearray] = {peer: bytearray() for peer in self._opens}
        self._incoming: dict[tuple[int, int], _Connection] = {}
        self._answered: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(
            target=self._run, name=f"coordination of {tree.names[rank]}", daemon=True
        )

    # -- the process

    def start(self) -> None:
        """Start connecting."""
        self._thread.start()

    def begin_iteration(self, number: int) -> None:
        """Publish the number of the iteration that begins; it must increase.

        Raises OperatorError if operators of the last have not started.
        """
        self._call(lambda participant, now: participant.begin_iteration(number, now))

    def end_iteration(self) -> None:
        """Request no more operators of this iteration; pending ones may still start.

        Processes that differ in their operators then fail, each with an IterationMismatch.
        """
        self._call(lambda participant, now: participant.end_iteration(now))

    def ready(self, *operators: Operator) -> None:
        """Request collectives, each once per iteration.

        Twice, or after `end_iteration`, is an IterationMismatch at all processes.
        """
        self._call(lambda participant, now: participant.ready_together(operators, now))

    def combined(self, words: Sequence[int]) -> None:
        """Process the result of this process's last vector, if that is combined elsewhere."""
        reduction = self._reduction
        assert reduction is not None

        def go_on(participant: Participant, now: float) -> None:
            reduction.completed(words)
            participant.advance(now)

        self._call(go_on)

    def events(self) -> list[Event]:
        """Return and clear the events; `Start`s have the same order at all processes."""
        with self._lock:
            self._take_events()
            events, self._events = self._events, []
            if not events:
                self._check()
            return events

    def leave(self) -> None:
        """Leave; the connections stay until all have left."""
        self._call(lambda participant, now: participant.leave(now))

    @property
    def done(self) -> bool:
        """Whether all processes have left."""
        with self._lock:
            return self._participant.done

    def close(self) -> None:
        """Close after the last messages; a process that has not left is lost to the others."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._wakeup.set()
        if self._thread.ident is None:
            self._end()
        else:
            self._thread.join()
        self._wakeup.close()

    def _call(self, action: Callable[[Participant, float], None]) -> None:
        with self._lock:
            self._check()
            action(self._participant, time.monotonic())
            self._wakeup.set()

    def _check(self) -> None:
        failure = self._participant.failure
        if failure is not None:
            raise failure
        if (self._closing or self._ended) and not self._participant.done:
            raise CoordinationError(
                f"process {self._tree.names[self._rank]}: its coordination has been closed"
            )

    # -- the thread

    def _run(self) -> None:
        self._selector.register(self._server, selectors.EVENT_READ)
        self._selector.register(self._wakeup.fileno(), selectors.EVENT_READ)
        until = float("inf")
        try:
            while True:
                with self._lock:
                    now = time.monotonic()
                    if self._closing or self._participant.done:
                        until = min(until, now + FAREWELL_SECONDS)
                    patience = self._step(now)
                    quiet = not any(connection.out for connection in self._connections())
                    if now >= until or (until < float("inf") and quiet):
                        return
                for key, events in self._selector.select(min(patience, max(0.0, until - now))):
                    with self._lock:
                        self._serve(key, events)
        finally:
            self._end()

    def _step(self, now: float) -> float:
        """Run due timers; return the seconds until the next one."""
        participant = self._participant
        for peer, due in list(self._retry_at.items()):
            if due <= now:
                self._open(peer, now)
        deadline = participant.deadline
        if deadline is not None and deadline <= now:
            participant.tick(now)
        self._carry()
        waits = [due - now for due in self._retry_at.values()]
        if participant.deadline is not None:
            waits.append(participant.deadline - now)
        return max(0.0, min(waits, default=60.0))

    def _carry(self) -> None:
        """Send the participant's frames, and pass its events to the caller."""
        for frame in self._participant.take_output():
            if frame.target in self._early:
                self._early[frame.target] += framed(frame)
                continue
            connection = self._way(frame)
            if connection is not None:
                connection.out += framed(frame)
                self._flush(connection)
        events = self._take_events()
        if events or self._participant.failure is not None or self._participant.done:
            self._tell()

    def _take_events(self) -> bool:
        """Move the participant's events to the caller's; return whether there were any."""
        events = self._participant.take_events()
        self._events += events
        return bool(events)

    def _way(self, frame: Frame) -> _Connection | None:
        """Return the connection for a frame; None if it is lost."""
        if frame.target in self._opens:
            return self._opened.get(frame.target)
        if not isinstance(frame.message, Refusal):
            self._answered[frame.target] = frame.to
        return self._incoming.get((frame.target, frame.to))

    def _open(self, peer: int, now: float) -> None:
        """Start connecting to a peer."""
        del self._retry_at[peer]
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # From the address by which the peer knows this one.
        sock.bind((self._addresses[self._rank][0], 0))
        connection = _Connection(sock, peer, opening=True)
        if sock.connect_ex(self._addresses[peer]) in (0, errno.EINPROGRESS):
            self._selector.register(sock, selectors.EVENT_WRITE, connection)
        else:
            sock.close()
            self._retry_at[peer] = now + RETRY_SECONDS

    def _serve(self, key: selectors.SelectorKey, events: int) -> None:
        if key.fileobj is self._server:
            self._accept()
        elif key.data is None:
            self._wakeup.clear()
        elif key.data.sock.fileno() < 0:
            # It ended while others of the same turn were served.
            pass
        elif key.data.opening:
            self._opening(key.data)
        else:
            if events & selectors.EVENT_WRITE:
                self._flush(key.data)
            if events & selectors.EVENT_READ:
                self._read(key.data)

    def _accept(self) -> None:
        # It may be gone again, or there may be no descriptor for it.
        with contextlib.suppress(OSError):
            sock, (address, _) = self._server.accept()
            unheard = sum(
                isinstance(key.data, _Connection) and key.data.peer < 0
                for key in (self._selector.get_map() or {}).values()
            )
            if unheard >= MOST_UNHEARD or address not in {own for own, _ in self._addresses}:
                sock.close()
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = _Connection(sock, address=address)
            self._selector.register(sock, selectors.EVENT_READ, connection)

    def _opening(self, connection: _Connection) -> None:
        """Process an established connection, or a refused one, if the peer is not listening yet."""
        if connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._selector.unregister(connection.sock)
            connection.sock.close()
            self._retry_at[connection.peer] = time.monotonic() + RETRY_SECONDS
            return
        connection.opening = False
        self._opened[connection.peer] = connection
        self._selector.modify(connection.sock, selectors.EVENT_READ, connection)
        connection.out += preface() + self._early.pop(connection.peer, b"")
        self._flush(connection)

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.sock.recv(READ_BYTES)
            frames = connection.stream.take(data)
        except BlockingIOError:
            return
        except VersionError as error:
            self._differ(connection, error)
            return
        except (OSError, FrameError) as error:
            self._lost(connection, str(error))
            return
        if not data:
            self._lost(connection, "it closed its connection")
            return
        for frame in frames:
            if connection.address and not self._is_at(frame.source, connection.address):
                self._lost(
                    connection,
                    f"it sent a frame of process {frame.source}, which has another address",
                )
                return
            if connection.incarnation == 0 and connection.peer < 0:
                connection.peer, connection.incarnation = frame.source, frame.incarnation
                self._incoming[frame.source, frame.incarnation] = connection
                connection.out += preface()
                # On a ring nothing else is sent back.
                self._flush(connection)
            self._participant.receive(frame, time.monotonic())

    def _is_at(self, rank: int, address: str) -> bool:
        """Return whether there is a live process of this rank."""
        return 0 <= rank < len(self._addresses) and self._addresses[rank][0] == address

    def _differ(self, connection: _Connection, error: VersionError) -> None:
        """Reject the other end, which has another version."""
        if connection.peer in self._opened:
            name = self._tree.names[connection.peer]
            self._participant.refused(f"it does not understand {name}: {error}")
        else:
            with contextlib.suppress(OSError):
                LOGGER.warning("a process at %s: %s", connection.sock.getpeername()[0], error)
                connection.sock.send(preface())
        self._lost(connection, str(error))

    def _flush(self, connection: _Connection) -> None:
        try:
            while connection.out:
                del connection.out[: connection.sock.send(connection.out)]
        except BlockingIOError:
            pass
        except OSError as error:
            connection.out.clear()
            self._lost(connection, str(error))
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.out else 0)
        self._selector.modify(connection.sock, events, connection)

    def _lost(self, connection: _Connection, reason: str) -> None:
        """Process the end of a connection; that of a neighbour means the end of its process."""
        if connection.sock.fileno() < 0:
            return
        self._selector.unregister(connection.sock)
        connection.sock.close()
        peer = connection.peer
        known = self._opened.pop(peer, None) is connection
        if not known:
            self._incoming.pop((peer, connection.incarnation), None)
            known = connection.incarnation != 0
            known = known and self._answered.get(peer) == connection.incarnation
        if known:
            own = self._tree.names[self._rank]
            self._participant.disconnected(peer, f"{reason}, to {own}", time.monotonic())

    def _connections(self) -> Iterable[_Connection]:
        return (*self._opened.values(), *self._incoming.values())

    def _end(self) -> None:
        with self._lock:
            self._ended = True
            for key in list((self._selector.get_map() or {}).values()):
                if key.data is not None:
                    key.data.sock.close()
            self._selector.close()
            self._server.close()
            self._tell()

    def _tell(self) -> None:
        if self._wake is not None:
            self._wake()


def started(event: Event) -> Operator | None:
    """Return the operator that an event starts; log the processes that are waited for.

    Raises OperatorError for an operator that is given up.
    """
    match event:
        case Start(operator):
            return operator
        case Rejection(operator, reason):
            raise OperatorError(f"operator {operator.name} cannot start: {reason}")
        case Stall(operator, missing):
            LOGGER.warning("operator %s waits for %s", operator.name, ", ".join(missing))
    return None
